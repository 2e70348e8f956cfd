// zbv and 1f1b-v: schedules of the V placement with a fixed rule.
#include <algorithm>

#include "partition/families/families.h"
#include "partition/families/v_pattern.h"

namespace pipeshard {
namespace {

// A rank's list while it is written: each pass of a stage takes the next microbatch.
class VOrder {
 public:
  VOrder(int ranks, int rank) : stages_{StageId(rank), StageId(2 * ranks - 1 - rank)} {}

  void add(ActionKind kind, int chunk) { order_.push_back({stages_[chunk], kind, next(kind, chunk)++}); }
  void addHalves(int chunk) {
    add(ActionKind::kBackwardInput, chunk);
    add(ActionKind::kBackwardWeight, chunk);
  }
  int& next(ActionKind kind, int chunk) { return next_[static_cast<size_t>(kind)][chunk]; }

  // Without the passes of microbatches from `microbatches` on.
  std::vector<Action> take(int microbatches) {
    std::erase_if(order_, [&](const Action& action) { return action.microbatch >= microbatches; });
    return std::move(order_);
  }

 private:
  StageId stages_[2];
  int next_[4][2] = {};  // by kind and chunk
  std::vector<Action> order_;
};

void addZbvWarmUp(VOrder& order, int ranks, int rank) {
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) order.add(ActionKind::kForward, 0);
  for (int i = 0; i < rank; ++i) {
    order.add(ActionKind::kForward, 1);
    order.add(ActionKind::kForward, 0);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    order.add(ActionKind::kForward, 1);
    order.addHalves(1);
  }
}

void addZbvCoolDown(VOrder& order, int ranks, int rank, int microbatches) {
  for (int i = 0; i < rank; ++i) {
    order.add(ActionKind::kBackwardInput, 0);
    order.add(ActionKind::kBackwardInput, 1);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    order.add(ActionKind::kBackwardInput, 0);
    order.add(ActionKind::kBackwardWeight, 0);
  }
  for (const int chunk : {1, 0}) {
    while (order.next(ActionKind::kBackwardWeight, chunk) < microbatches)
      order.add(ActionKind::kBackwardWeight, chunk);
  }
}

}  // namespace

Schedule zbvSchedule(const FamilyRequest& request) {
  // The rule needs so many microbatches; those that the step does not have are left out.
  const int microbatches = std::max(2 * request.ranks - 1, request.microbatches);
  Schedule schedule;
  schedule.rank_of_stage = vPlacement(request.ranks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    VOrder order(request.ranks, rank);
    addZbvWarmUp(order, request.ranks, rank);
    const auto forwards = [&](int chunk) { return order.next(ActionKind::kForward, chunk); };
    while (forwards(0) < microbatches || forwards(1) < forwards(0)) {
      if (forwards(0) < microbatches) order.add(ActionKind::kForward, 0);
      order.addHalves(0);
      order.add(ActionKind::kForward, 1);
      order.addHalves(1);
    }
    addZbvCoolDown(order, request.ranks, rank, microbatches);
    schedule.orders.push_back(order.take(request.microbatches));
  }
  return schedule;
}

Schedule oneForwardOneBackwardVSchedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = vPlacement(request.ranks);
  schedule.orders = unrollPattern(shortestWholePattern(request.ranks), request.microbatches);
  return schedule;
}

}  // namespace pipeshard
