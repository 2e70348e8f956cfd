#include <algorithm>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "partition/families/families.h"

namespace pipeshard {
namespace {

// Megatron's condition: the last group is complete, or has a microbatch for every rank.
bool groupsFit(int ranks, int64_t microbatches, int64_t group) {
  return group > 0 && group >= ranks && group <= microbatches &&
         (microbatches % group == 0 || microbatches % group >= ranks);
}

// "4 or 7 microbatches": the numbers next to `microbatches` for which the group would do.
std::string microbatchesThatFit(int ranks, int64_t microbatches, int64_t group) {
  int64_t below = microbatches;
  while (below > 0 && !groupsFit(ranks, below, group)) --below;
  int64_t above = std::max(microbatches, group);
  while (!groupsFit(ranks, above, group)) ++above;
  return below > 0 ? fmt::format("{} or {} microbatches", below, above)
                   : fmt::format("{} microbatches", above);
}

// Microbatches that run through a chunk before the rank turns to its next one.
int groupSize(const FamilyRequest& request, std::string_view name) {
  const int p = request.ranks;
  const int m = request.microbatches;
  const int64_t wanted = request.option("group", 0);
  if (wanted == 0 && request.options.count("group") == 0) {
    if (m < p) return m;
    int group = p;
    while (!groupsFit(p, m, group)) ++group;
    return group;
  }
  if (groupsFit(p, m, wanted) || (m < p && wanted == m)) return wanted;
  std::vector<int> groups;
  for (int group = std::min(p, m); group <= m; ++group) {
    if (groupsFit(p, m, group) || (m < p && group == m)) groups.push_back(group);
  }
  const std::string others =
      wanted < p ? "" : fmt::format("; with group={} it is {}", wanted, microbatchesThatFit(p, m, wanted));
  fail(ErrorCode::kConfiguration,
       "schedule {}: found group={} for {} ranks and {} microbatches; expected groups of {} to {} whose last "
       "one is complete or has at least {} microbatches; for {} microbatches that is group={}{}",
       name, wanted, p, m, std::min(p, m), m, p, m, fmt::join(groups, ", "), others);
}

struct Step {
  int chunk = 0;
  int microbatch = 0;
};

// Group by group; in a group chunk by chunk; in a chunk microbatch by microbatch.
std::vector<Step> walkGroups(int microbatches, int chunks, int group) {
  std::vector<Step> walk;
  for (int first = 0; first < microbatches; first += group) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int k = first; k < std::min(first + group, microbatches); ++k) walk.push_back({chunk, k});
    }
  }
  return walk;
}

// The walk forwards, and the same backwards through the chunks `warm_up` steps later; with split passes,
// weights `weight_delay` later still.
std::vector<Action> interleavedOrder(const FamilyRequest& request, const std::vector<Step>& walk, int rank,
                                     size_t warm_up, bool split) {
  std::vector<Action> order;
  const auto forward = [&](const Step& step) {
    order.push_back({StageId(step.chunk * request.ranks + rank), ActionKind::kForward, step.microbatch});
  };
  const auto backward = [&](const Step& step, ActionKind kind) {
    const StageId stage((request.chunks - 1 - step.chunk) * request.ranks + rank);
    order.push_back({stage, kind, step.microbatch});
  };
  const size_t delay = rank;
  for (size_t i = 0; i < std::min(warm_up, walk.size()); ++i) forward(walk[i]);
  for (size_t i = 0; i < walk.size(); ++i) {
    if (i + warm_up < walk.size()) forward(walk[i + warm_up]);
    backward(walk[i], split ? ActionKind::kBackwardInput : ActionKind::kBackward);
    if (split && i >= delay) backward(walk[i - delay], ActionKind::kBackwardWeight);
  }
  if (split) {
    for (size_t i = walk.size() - std::min(delay, walk.size()); i < walk.size(); ++i)
      backward(walk[i], ActionKind::kBackwardWeight);
  }
  return order;
}

Schedule makeInterleaved(const FamilyRequest& request, std::string_view name, int forwards_per_hop,
                         bool split) {
  const int group = groupSize(request, name);
  const std::vector<Step> walk = walkGroups(request.microbatches, request.chunks, group);
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks * request.chunks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    const int warm_up = (request.chunks - 1) * group + forwards_per_hop * (request.ranks - 1 - rank);
    schedule.orders.push_back(interleavedOrder(request, walk, rank, warm_up, split));
  }
  return schedule;
}

}  // namespace

Schedule interleavedSchedule(const FamilyRequest& request) {
  return makeInterleaved(request, "interleaved", request.chunks == 1 ? 1 : 2, false);
}

Schedule interleavedZeroBubbleSchedule(const FamilyRequest& request) {
  return makeInterleaved(request, "interleaved-zb", 1, true);
}

Schedule forwardOnlySchedule(const FamilyRequest& request) {
  const std::vector<Step> walk =
      walkGroups(request.microbatches, request.chunks, std::min(request.ranks, request.microbatches));
  Schedule schedule;
  schedule.forward_only = true;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks * request.chunks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    for (const Step& step : walk)
      order.push_back({StageId(step.chunk * request.ranks + rank), ActionKind::kForward, step.microbatch});
  }
  return schedule;
}

}  // namespace pipeshard
