// What devices' memory does to a search: whether it is what keeps plans from being faster, and how much would
// do where nothing fits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/base/error.h"
#include "partition/search/plan_search_request.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// When nothing fits: the least memory of every device with which some plan fits, to within a hundredth, and
// that plan's stages; for people who must choose between more memory, more devices, more microbatches and
// recomputation. With the first and with the largest number of microbatches. Stages are empty where no memory
// would do.
struct LeastMemory {
  int64_t bytes = 0;
  int64_t microbatches = 1;
  std::vector<AssignedStage> stages = {};
};
LeastMemory leastMemory(const PlanSearchRequest& request);

// Objectives within a 32nd of the best are nearly as good: what is simulated may turn them around.
inline constexpr int64_t kNearly = 32;

// What the best assignment of the best plan's number of microbatches has reached, if it would be a 32nd less
// on devices of any memory.
std::optional<int64_t> boundByMemory(const PlanSearchRequest& request, const PlanSearchResult& result);

// An error of PlanSearchRequest::costs that says that a number of microbatches cannot be.
bool saysThatItCannotBe(const Error& error);

}  // namespace pipeshard
