#include "tests/partition/schedules/placed_transfers.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "partition/schedules/schedule_transfers.h"

namespace pipeshard {
namespace {

// Runs the ranks as far as they come, each send a rendezvous, and writes down what they did. A rank receives
// when a pass needs it; only when nobody can move, a rank that waits takes the message that another one is
// stuck with.
class TransferPlacer {
 public:
  explicit TransferPlacer(const Schedule& schedule)
      : rank_of_stage_(schedule.rank_of_stage), ranks_(schedule.orders.size()) {
    for (const PipelineRankId rank : ranks_.ids()) {
      std::vector<Action> sends;
      for (const Action& action : schedule.orders[rank]) {
        ranks_[rank].todo.push_back(action);
        if (const std::optional<Action> send = sendAfter(action, rank_of_stage_)) sends.push_back(*send);
        if (action.overlaps_next) continue;
        ranks_[rank].todo.insert(ranks_[rank].todo.end(), sends.begin(), sends.end());
        sends.clear();
      }
    }
  }

  ScheduleOrders place() {
    while (runAll() || relieve()) {
    }
    ScheduleOrders orders;
    for (Rank& rank : ranks_) {
      PIPESHARD_CHECK(rank.todo.empty(),
                      "the schedule has not passed verifySchedule: its ranks wait for each other");
      orders.push_back(std::move(rank.done));
    }
    return orders;
  }

 private:
  struct Rank {
    std::deque<Action> todo;  // passes and sends
    std::vector<Action> done;
    std::vector<Action> waiting;  // received, but not used yet
    int64_t now = 0;              // when it came so far, if messages take no time: F, I, W take 1, B 2
  };

  PipelineRankId receiver(const Action& send) const { return rank_of_stage_[receiveOf(send).stage]; }

  PipelineRankId sender(const Action& receive) const { return rank_of_stage_[sendOf(receive).stage]; }

  // What the rank's next pass, or overlapped pair, needs and has not got.
  std::optional<Action> missing(const Rank& rank) const {
    for (size_t i = 0; i < rank.todo.size(); ++i) {
      const std::optional<Action> receive = receiveBefore(rank.todo[i], rank_of_stage_);
      if (receive && std::find(rank.waiting.begin(), rank.waiting.end(), *receive) == rank.waiting.end())
        return receive;
      if (!rank.todo[i].overlaps_next) break;
    }
    return std::nullopt;
  }

  void transfer(Rank& from) {
    const Action send = from.todo.front();
    Rank& to = ranks_[receiver(send)];
    from.done.push_back(send);
    from.todo.pop_front();
    to.done.push_back(receiveOf(send));
    to.waiting.push_back(receiveOf(send));
    from.now = to.now = std::max(from.now, to.now);
  }

  bool runOne(Rank& rank) {
    if (rank.todo.empty()) return false;
    const Action action = rank.todo.front();
    if (isSend(action.kind)) {
      const Rank& to = ranks_[receiver(action)];
      const std::optional<Action> wanted = missing(to);
      if (!wanted || &ranks_[sender(*wanted)] != &rank) return false;
      transfer(rank);
      return true;
    }
    if (missing(rank)) return false;
    if (const std::optional<Action> receive = receiveBefore(action, rank_of_stage_)) {
      rank.waiting.erase(std::find(rank.waiting.begin(), rank.waiting.end(), *receive));
    }
    if (isPass(action.kind)) rank.now += action.kind == ActionKind::kBackward ? 2 : 1;
    rank.done.push_back(action);
    rank.todo.pop_front();
    return true;
  }

  bool runAll() {
    bool moved = false;
    for (bool again = true; again;) {
      again = false;
      for (Rank& rank : ranks_) {
        while (runOne(rank)) again = true;
      }
      moved = moved || again;
    }
    return moved;
  }

  // Of the messages that ranks are stuck with, the one that both sides can exchange first; then the one whose
  // receiver holds the fewest.
  bool relieve() {
    Rank* best = nullptr;
    std::pair<int64_t, size_t> best_cost;
    for (Rank& rank : ranks_) {
      if (rank.todo.empty() || !isSend(rank.todo.front().kind)) continue;
      const Rank& to = ranks_[receiver(rank.todo.front())];
      const std::pair<int64_t, size_t> cost(std::max(rank.now, to.now), to.waiting.size());
      if (best && best_cost <= cost) continue;
      best = &rank;
      best_cost = cost;
    }
    if (best) transfer(*best);
    return best != nullptr;
  }

  const RankOfStage& rank_of_stage_;
  IdVector<PipelineRankId, Rank> ranks_;
};

}  // namespace

ScheduleOrders withTransfers(const Schedule& schedule) { return TransferPlacer(schedule).place(); }

}  // namespace pipeshard
