#include <deque>

#include "ir/base/error.h"
#include "partition/families/families.h"

namespace pipeshard {
namespace {

// One rank's order while it grows: `down` is its stage on the way to the turn, `up` the one on the way back.
class DualPipeOrder {
 public:
  DualPipeOrder(int rank, int ranks) : down_(rank), up_(2 * ranks - 1 - rank) {}

  void forward(bool up) { append(up, ActionKind::kForward, next_forward_[up ? 1 : 0]++); }
  void backward(bool up) { append(up, ActionKind::kBackward, next_backward_[up ? 1 : 0]++); }
  void input(bool up) {
    const int k = next_backward_[up ? 1 : 0]++;
    append(up, ActionKind::kBackwardInput, k);
    weights_.push_back({up ? up_ : down_, ActionKind::kBackwardWeight, k});
  }
  void weight() {
    order_.push_back(weights_.front());
    weights_.pop_front();
  }
  // The forward pass of one stage and the backward pass of the other.
  void pair(bool forward_up) {
    forward(forward_up);
    order_.back().overlaps_next = true;
    backward(!forward_up);
  }

  std::vector<Action> take() { return std::move(order_); }

 private:
  void append(bool up, ActionKind kind, int microbatch) {
    order_.push_back({up ? up_ : down_, kind, microbatch});
  }

  StageId down_;
  StageId up_;
  int next_forward_[2] = {0, 0};
  int next_backward_[2] = {0, 0};
  std::deque<Action> weights_;  // owed, oldest first
  std::vector<Action> order_;
};

constexpr bool kDownwards = false;
constexpr bool kUpwards = true;

// The eight phases of DeepSeek's description. The middle ones of the last rank start with a pair that is not
// overlapped.
std::vector<Action> dualPipeOrder(int rank, int p, int m) {
  DualPipeOrder order(rank, p);
  const int later = p - 1 - rank;
  for (int i = 0; i < 2 * later; ++i) order.forward(kDownwards);
  for (int i = 0; i <= rank; ++i) {
    order.forward(kDownwards);
    order.forward(kUpwards);
  }
  for (int i = 0; i < later; ++i) {
    order.input(kUpwards);
    order.weight();
    order.forward(kUpwards);
  }
  for (int i = 0; i < m - 2 * p + rank + 1; ++i) {
    if (i == 0 && later == 0) {
      order.forward(kDownwards);
      order.backward(kUpwards);
    } else {
      order.pair(kDownwards);
    }
    order.pair(kUpwards);
  }
  for (int i = 0; i < later; ++i) {
    order.backward(kUpwards);
    order.pair(kUpwards);
  }
  // From the middle of this phase on, passes are split; odd ranks turn before the pass of their upper stage,
  // even ones after it.
  const int middle = (rank + 1) / 2;
  const auto whole = [&](bool up, bool split) { split ? order.input(up) : order.backward(up); };
  for (int i = 0; i <= rank; ++i) {
    whole(kUpwards, i > middle || (i == middle && rank % 2 == 1));
    whole(kDownwards, i >= middle);
  }
  for (int i = 0; i < later; ++i) {
    order.weight();
    order.input(kDownwards);
  }
  for (int i = 0; i <= rank; ++i) order.weight();
  return order.take();
}

}  // namespace

Schedule dualPipeVSchedule(const FamilyRequest& request) {
  if (request.microbatches < 2 * request.ranks) {
    fail(ErrorCode::kConfiguration,
         "schedule dual-pipe-v: found {} microbatches on {} ranks; expected at least {}, two per rank",
         request.microbatches, request.ranks, 2 * request.ranks);
  }
  Schedule schedule;
  schedule.rank_of_stage = vPlacement(request.ranks);
  for (int rank = 0; rank < request.ranks; ++rank)
    schedule.orders.push_back(dualPipeOrder(rank, request.ranks, request.microbatches));
  return schedule;
}

}  // namespace pipeshard
