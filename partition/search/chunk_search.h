// Stages for schedules with several stages per pipeline rank: p equal submeshes that cover the cluster's
// first devices, v chunks on each. All chunks are kept in one way (mesh, method, recomputation, boundary),
// since stages on the same devices share their mesh. Among the contiguous cuts of the layers into p v chunks,
// the one where the longest pass is shortest, then the sum of passes, then the cuts earliest. Internal to
// partition/.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "partition/costs/stage_costs.h"
#include "partition/schedules/schedule.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

struct ChunkRequest {
  const StageCosts& costs;
  const Cluster& cluster;
  int ranks = 1;              // p
  RankOfStage rank_of_stage;  // by chunk, as the schedule places them
  std::function<bool(const Submesh&)> allowed = {};
};

// For every shape of submesh and every config that all chunks can have, the best cut. Transfers are not
// filled in.
std::vector<std::vector<AssignedStage>> chunkAssignments(const ChunkRequest& request);

}  // namespace pipeshard
