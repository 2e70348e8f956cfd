// Shardings that a model's file gives: ONNX device configurations, as constraints of a plan.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"

namespace pipeshard {

struct FileShardings {
  LogicalMesh mesh;
  std::map<std::string, ShardingSpec> specs;  // by value
  std::vector<std::string> notes;             // for the plan: what was taken, what was skipped
};

// Of the first device configuration under which nodes have shardings; nothing without one. `graph` as it was
// read. On that mesh, or, if there is none, on the one on which most of them are specs (stages of other
// numbers of devices than the first are skipped). Error(kBadModel) for annotations that contradict
// themselves.
std::optional<FileShardings> readFileShardings(const Graph& graph, const std::optional<LogicalMesh>& mesh);

}  // namespace pipeshard
