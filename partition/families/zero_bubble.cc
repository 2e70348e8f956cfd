#include <algorithm>

#include "partition/families/families.h"

namespace pipeshard {
namespace {

struct HandMade {
  int in_flight = 1;     // forward passes before the first backward pass
  int weight_delay = 0;  // input passes that run before the weight pass of an earlier microbatch
};

std::vector<Action> handMadeOrder(StageId stage, int m, const HandMade& shape) {
  std::vector<Action> order;
  int forwards = 0;
  const auto forward = [&] {
    if (forwards < m) order.push_back({stage, ActionKind::kForward, forwards++});
  };
  for (int i = 0; i < shape.in_flight; ++i) forward();
  for (int k = 0; k < m; ++k) {
    order.push_back({stage, ActionKind::kBackwardInput, k});
    if (k >= shape.weight_delay)
      order.push_back({stage, ActionKind::kBackwardWeight, k - shape.weight_delay});
    forward();
  }
  for (int k = std::max(0, m - shape.weight_delay); k < m; ++k)
    order.push_back({stage, ActionKind::kBackwardWeight, k});
  return order;
}

}  // namespace

Schedule zeroBubbleH1Schedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    schedule.orders.push_back(
        handMadeOrder(StageId(rank), request.microbatches, {request.ranks - rank, rank}));
  }
  return schedule;
}

Schedule zeroBubbleH2Schedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    schedule.orders.push_back(
        handMadeOrder(StageId(rank), request.microbatches, {2 * (request.ranks - rank) - 1, 2 * rank}));
  }
  return schedule;
}

}  // namespace pipeshard
