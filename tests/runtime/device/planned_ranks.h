// Plans of the examples, run by ranks that are threads of the test, each on a device of its own or on the
// CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "planning/pipeline.h"
#include "runtime/device/device.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard::testing {

struct PlannedCase {
  std::string name;
  std::string model;
  std::string cluster = "1x1";
  std::string stages = "uniform:1";
  std::string schedule = "";
  std::string method = "";
  int64_t microbatches = 1;
  std::function<void(PlanRequest&)> also = {};
};
void PrintTo(const PlannedCase& of, std::ostream* out);

PlannedTraining plan(const PlannedCase& of);

// What a step leaves, by name: results, what lives on, losses.
struct LeftTensor {
  DataType type = DataType::kUndefined;
  std::vector<std::byte> bytes;
  friend bool operator==(const LeftTensor&, const LeftTensor&) = default;
};
using Outcome = std::map<std::string, LeftTensor>;
// By step and rank.
using Outcomes = std::vector<std::vector<Outcome>>;

inline constexpr int64_t kPlannedSteps = 2;

// A rank's program as a worker loads it: loops are loops.
RankImage imageOf(const PlannedTraining& planned, RankId rank);

// `make_device`: nothing: the CPU. `look`: with each rank's device, when its steps are done. `change`: each
// rank's program before it is run.
Outcomes run(const PlannedTraining& planned, const std::function<std::unique_ptr<Device>()>& make_device,
             const std::function<void(int rank, const Device&)>& look = {},
             const std::function<void(Program&)>& change = {});

}  // namespace pipeshard::testing
