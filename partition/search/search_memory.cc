#include "partition/search/search_memory.h"

#include <algorithm>
#include <set>

#include "partition/costs/stage_costs.h"
#include "partition/search/assignment_request.h"

namespace pipeshard {
namespace {

// The same costs on devices of another size.
class OtherMemory : public OtherStageCosts {
 public:
  OtherMemory(const StageCosts& costs, int64_t bytes) : OtherStageCosts(costs), bytes_(bytes) {}
  int64_t memoryBytes(const Submesh&) const override { return bytes_; }

 private:
  int64_t bytes_;
};

}  // namespace

bool saysThatItCannotBe(const Error& error) {
  return error.code() == ErrorCode::kBadModel || error.code() == ErrorCode::kConfiguration ||
         error.code() == ErrorCode::kOutOfMemory;
}

// What the best assignment of the best plan's number of microbatches has reached, if it would be a 32nd less
// on devices of any memory.
std::optional<int64_t> boundByMemory(const PlanSearchRequest& request, const PlanSearchResult& result) {
  const int64_t microbatches = result.plans.front().microbatches;
  const auto tried = std::find_if(result.tried.begin(), result.tried.end(), [&](const CountTried& count) {
    return count.microbatches == microbatches;
  });
  if (tried == result.tried.end() || tried->objective_ns == 0) return std::nullopt;
  const OtherMemory costs(*result.costs.costs, INT64_MAX);
  AssignmentRequest free = assignmentRequest(request, costs, microbatches);
  free.bound_ns = tried->objective_ns - tried->objective_ns / kNearly;
  free.any = true;
  return assignStagesToMeshes(free).assignments.empty() ? std::nullopt : std::optional(tried->objective_ns);
}

LeastMemory leastMemory(const PlanSearchRequest& request) {
  LeastMemory least{INT64_MAX};
  for (const size_t count : std::set<size_t>{request.first, request.microbatches.size() - 1}) {
    CountedCosts counted;
    try {
      counted = (request.costs_in_need ? request.costs_in_need : request.costs)(request.microbatches[count]);
    } catch (const Error& error) {
      if (!saysThatItCannotBe(error)) throw;
      continue;
    }
    const auto solve = [&](int64_t bytes) {
      const OtherMemory costs(*counted.costs, bytes);
      AssignmentRequest assignment = assignmentRequest(request, costs, request.microbatches[count]);
      return assignStagesToMeshes(assignment).assignments;
    };
    int64_t fits = INT64_MAX, too_small = 0;
    for (int64_t bytes = 1 << 10; bytes <= int64_t{1} << 50 && fits == INT64_MAX; bytes *= 4)
      (solve(bytes).empty() ? too_small : fits) = bytes;
    while (fits != INT64_MAX && fits - too_small > fits / 100) {
      const int64_t middle = too_small + (fits - too_small) / 2;
      (solve(middle).empty() ? too_small : fits) = middle;
    }
    if (fits < least.bytes) least = {fits, request.microbatches[count], solve(fits).front().stages};
  }
  return least;
}

}  // namespace pipeshard
