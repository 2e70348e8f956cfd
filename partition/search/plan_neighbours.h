// What a plan would cost with one decision made otherwise: a cut moved by a layer, two neighbouring stages on
// other shares of their devices or joined, a stage on another mesh or with or without recomputation, another
// schedule. A stage that changes gets the best option for its layers and devices: of those that fit, the one
// with the least time for all passes and the update. All else stays. Internal to partition/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/search/plan_search.h"

namespace pipeshard {

struct PlanNeighbour {
  Neighbour about;
  std::optional<PredictedPlan> plan;  // where it can be
};

struct NeighbourRequest {
  const PlanSearchRequest& search;
  const CountedCosts& costs;
  std::vector<ScheduleSpec> schedules;  // that are tried besides the plan's, for stages of their own
  int64_t passes = 0;                   // so many are simulated, then no more neighbours are looked at
};

std::vector<PlanNeighbour> neighboursOf(const PredictedPlan& plan, const NeighbourRequest& request);

// "2x1 zero2, recomputing": of several devices the mesh and the method, if it is not auto.
std::string configText(const StageConfig& config);
// "1x4 from device 4".
std::string submeshText(const Submesh& submesh);

}  // namespace pipeshard
