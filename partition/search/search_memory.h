// What devices' memory does to a search: whether it is what keeps plans from being faster, and (leastMemory,
// plan_search.h) how much would do where nothing fits. Internal to partition/.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/base/error.h"
#include "partition/search/plan_search.h"

namespace pipeshard {

// Objectives within a 32nd of the best are nearly as good: what is simulated may turn them around.
inline constexpr int64_t kNearly = 32;

// What the best assignment of the best plan's number of microbatches has reached, if it would be a 32nd less
// on devices of any memory.
std::optional<int64_t> boundByMemory(const PlanSearchRequest& request, const PlanSearchResult& result);

// An error of PlanSearchRequest::costs that says that a number of microbatches cannot be.
bool saysThatItCannotBe(const Error& error);

}  // namespace pipeshard
