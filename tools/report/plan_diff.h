// What two plans decide differently: for `pipeshard plan --diff A B`.
#pragma once

#include <string>
#include <vector>

#include "ir/plan/plan.h"

namespace pipeshard {

struct PlanDifference {
  std::string part;   // one of planParts()
  std::string where;  // "stage 1: devices"; of shardings, which values: "h.*.attn.weight"
  std::string left;   // "-": not there
  std::string right;
  std::vector<std::string> values = {};  // of shardings: all values (or nodes) that differ in this way
  friend bool operator==(const PlanDifference&, const PlanDifference&) = default;
};

// "training", "devices", "meshes", "layers", "stages", "microbatches", "schedule", "recomputation",
// "shardings", "predictions", "other": the order in which differences come.
const std::vector<std::string>& planParts();

// Every field of plan.json in which they differ; none: they are equal. Values (and nodes) whose shardings
// differ are grouped: those of one pattern (the name with * for its numbers) that change from the same spec
// to the same spec. It does not count as a difference of shardings that a value has moved to another stage.
std::vector<PlanDifference> diffPlans(const Plan& left, const Plan& right);

// A table by part; of each part so many rows at most.
std::string printDifferences(const std::vector<PlanDifference>& differences, size_t most_rows);
std::string differencesToJson(const std::vector<PlanDifference>& differences);

}  // namespace pipeshard
