#include "partition/schedules/schedule_verify.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/schedules/schedule_grid.h"
#include "partition/schedules/schedule_transfers.h"

namespace pipeshard {
namespace {

std::string nameOf(StageId stage, ActionKind kind, int microbatch) {
  return actionToString({stage, kind, microbatch});
}

// Checks in an order in which each may rely on those before it: the shape (every stage has a rank), each
// action by itself (it exists, is on its stage's rank and comes once; from then on `places_` finds it),
// completeness (all passes are there, so what an action needs can be found), pairs, messages, the order on
// every rank, versions of weights, and last that the ranks do not wait for each other.
//
// verifyProgress lets every rank go on as far as it can, until none moves. What can run now can run later, so
// whoever is left does not depend on the order in which ranks are looked at. A send and its receive wait for
// each other (rendezvous): of two ranks that both send before they receive, neither goes on.
class Verifier {
 public:
  explicit Verifier(const Schedule& schedule) : schedule_(schedule), orders_(schedule.orders) {}

  void verify() {
    verifyShape();
    for (const PipelineRankId rank : orders_.ids()) {
      for (size_t step = 0; step < orders_[rank].size(); ++step) verifyAction({rank, step});
    }
    verifyCompleteness();
    for (const PipelineRankId rank : orders_.ids()) {
      for (size_t step = 0; step < orders_[rank].size(); ++step) {
        if (orders_[rank][step].overlaps_next) verifyPair({rank, step});
      }
    }
    if (has_transfers_) verifyMessages();
    verifyOwnOrder();
    if (schedule_.asynchronous()) verifyVersions();
    verifyProgress();
  }

 private:
  using Place = ScheduleMark;

  const Action& at(const Place& place) const { return orders_[place.rank][place.step]; }

  static uint64_t keyOf(StageId stage, ActionKind kind, int microbatch) {
    const uint64_t number = microbatch + 1;
    return (uint64_t{stage.index()} << 40) | (number << 8) | static_cast<uint64_t>(kind);
  }
  static uint64_t keyOf(const Action& action) { return keyOf(action.stage, action.kind, action.microbatch); }

  const Place* find(StageId stage, ActionKind kind, int microbatch) const {
    const auto found = places_.find(keyOf(stage, kind, microbatch));
    return found == places_.end() ? nullptr : &found->second;
  }
  const Place* find(const Action& action) const { return find(action.stage, action.kind, action.microbatch); }

  template <typename... Args>
  [[noreturn]] void failAt(const std::vector<Place>& marks, fmt::format_string<Args...> format,
                           Args&&... args) const {
    fail(ErrorCode::kConfiguration, "schedule {}: {}{}", schedule_.name(),
         fmt::format(format, std::forward<Args>(args)...), markedGrid(orders_, marks));
  }

  void verifyShape() const {
    const RankOfStage& rank_of_stage = schedule_.rank_of_stage;
    if (schedule_.stages < 1 || schedule_.microbatches < 1 || std::ssize(rank_of_stage) != schedule_.stages) {
      failAt({},
             "found {} stages, {} microbatches and a placement of {} stages; expected one of each at least, "
             "and every stage placed",
             schedule_.stages, schedule_.microbatches, rank_of_stage.size());
    }
    for (const StageId stage : rank_of_stage.ids()) {
      if (!orders_.has(rank_of_stage[stage]))
        failAt({}, "found no pass of stage {}; expected every stage on one rank", stage);
    }
    if (!schedule_.asynchronous() && !schedule_.versions.empty())
      failAt({}, "found versions of weights in a synchronous schedule");
    const auto perStage = [&](const IdVector<StageId, int>& numbers) {
      return numbers.empty() ||
             (schedule_.asynchronous() && std::ssize(numbers) == schedule_.stages &&
              std::all_of(numbers.begin(), numbers.end(), [](int number) { return number >= 1; }));
    };
    if (!perStage(schedule_.replicas) || !perStage(schedule_.update_every)) {
      failAt({},
             "found replicas [{}] and updates every [{}] microbatches; expected a number of at least 1 for "
             "each of {} stages, and an asynchronous schedule",
             fmt::join(schedule_.replicas, ","), fmt::join(schedule_.update_every, ","), schedule_.stages);
    }
    if (schedule_.asynchronous() && schedule_.forward_only)
      failAt({}, "found updates of weights in a schedule without backward passes");
  }

  void verifyAction(const Place& place) {
    const Action& action = at(place);
    const std::string text = actionToString(action);
    if (!schedule_.rank_of_stage.has(action.stage)) {
      failAt({place}, "rank {} runs {}, of {} stages", place.rank, text, schedule_.stages);
    }
    const bool numbered = action.kind != ActionKind::kReduceGradients;
    if (numbered ? action.microbatch < 0 || action.microbatch >= schedule_.microbatches
                 : action.microbatch != -1) {
      failAt({place}, "rank {} runs {}, of {} microbatches", place.rank, text, schedule_.microbatches);
    }
    const PipelineRankId rank = schedule_.rank_of_stage[action.stage];
    if (rank != place.rank) {
      failAt({place}, "rank {} runs {}, but stage {} is on rank {}; expected each stage on one rank",
             place.rank, text, action.stage, rank);
    }
    if (schedule_.forward_only && (isPass(action.kind) ? action.kind != ActionKind::kForward
                                                       : action.kind == ActionKind::kReduceGradients)) {
      failAt({place}, "rank {} runs {} in a schedule of forward passes only", place.rank, text);
    }
    if (action.kind == ActionKind::kUpdate && !schedule_.asynchronous()) {
      failAt({place}, "rank {} runs {}, but a synchronous schedule updates its weights once, at its end",
             place.rank, text);
    }
    has_transfers_ = has_transfers_ || isTransfer(action.kind);
    const auto [earlier, inserted] = places_.emplace(keyOf(action), place);
    if (!inserted)
      failAt({place}, "{} runs twice, at steps {} and {} of rank {}", text, earlier->second.step, place.step,
             place.rank);
  }

  void verifyPair(const Place& place) const {
    const Action& first = at(place);
    const bool last = place.step + 1 == orders_[place.rank].size();
    const Action second = last ? first : at({place.rank, place.step + 1});
    const auto isBackward = [](ActionKind kind) {
      return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
    };
    const bool paired = (first.kind == ActionKind::kForward && isBackward(second.kind)) ||
                        (isBackward(first.kind) && second.kind == ActionKind::kForward);
    if (paired && !second.overlaps_next &&
        (first.stage != second.stage || first.microbatch != second.microbatch))
      return;
    failAt({place},
           "{} overlaps {}; expected a pair of a forward and a backward pass that do not need each other",
           actionToString(first), last ? "nothing" : actionToString(second));
  }

  // Where the pass should have stood: before the first later one of its kind, else at the end.
  Place gapOf(StageId stage, ActionKind kind, int microbatch) const {
    const PipelineRankId rank = schedule_.rank_of_stage[stage];
    const auto found = std::find_if(orders_[rank].begin(), orders_[rank].end(), [&](const Action& action) {
      return action.stage == stage && action.kind == kind && action.microbatch > microbatch;
    });
    const size_t step = found - orders_[rank].begin();
    return {rank, step};
  }

  void verifyCompleteness() const {
    for (const StageId stage : schedule_.rank_of_stage.ids()) {
      for (int k = 0; k < schedule_.microbatches; ++k) {
        if (!find(stage, ActionKind::kForward, k)) {
          failAt({gapOf(stage, ActionKind::kForward, k)}, "{} is missing",
                 nameOf(stage, ActionKind::kForward, k));
        }
        if (schedule_.forward_only) continue;
        const bool whole = find(stage, ActionKind::kBackward, k);
        const Place* input = find(stage, ActionKind::kBackwardInput, k);
        const Place* weight = find(stage, ActionKind::kBackwardWeight, k);
        if (whole ? !input && !weight : input && weight) continue;
        Place mark =
            input ? gapOf(stage, ActionKind::kBackwardWeight, k) : gapOf(stage, ActionKind::kBackward, k);
        if (whole || weight)
          mark = whole && input    ? *input
                 : whole && weight ? *weight
                                   : gapOf(stage, ActionKind::kBackwardInput, k);
        failAt({mark}, "stage {} needs either B{} or both I{} and W{}; found{}{}{}", stage, k, k, k,
               whole ? fmt::format(" B{}", k) : "", input ? fmt::format(" I{}", k) : "",
               weight           ? fmt::format(" W{}", k)
               : whole || input ? ""
                                : " none of them");
      }
    }
  }

  // What must be complete before `action` can run; with messages in the orders, on its own rank.
  std::vector<Action> needs(const Action& action) const {
    const StageId stage = action.stage;
    const int k = action.microbatch;
    const ActionKind kind = action.kind;
    const auto backward = [&](StageId s, ActionKind half) {
      return Action{s, find(s, half, k) ? half : ActionKind::kBackward, k};
    };
    if (isSend(kind)) {
      if (kind == ActionKind::kSendForward) return {{stage, ActionKind::kForward, k}};
      return {backward(stage, ActionKind::kBackwardInput)};
    }
    if (isReceive(kind)) return {};
    if (kind == ActionKind::kReduceGradients) {
      std::vector<Action> gradients;
      for (int j = 0; j < schedule_.microbatches; ++j) {
        gradients.push_back(
            {stage,
             find(stage, ActionKind::kBackward, j) ? ActionKind::kBackward : ActionKind::kBackwardWeight, j});
      }
      return gradients;
    }
    if (kind == ActionKind::kBackwardWeight) return {{stage, ActionKind::kBackwardInput, k}};
    if (kind == ActionKind::kUpdate) return {backward(stage, ActionKind::kBackwardWeight)};
    std::vector<Action> result;
    if (kind != ActionKind::kForward) result.push_back({stage, ActionKind::kForward, k});
    if (has_transfers_) {
      if (const std::optional<Action> receive = receiveBefore(action, schedule_.rank_of_stage)) {
        result.push_back(*receive);
        return result;
      }
    }
    const bool forward = kind == ActionKind::kForward;
    const StageId other = forward ? stage.previous() : stage.next();
    if (!schedule_.rank_of_stage.has(other)) return result;
    result.push_back(forward ? Action{other, ActionKind::kForward, k}
                             : backward(other, ActionKind::kBackwardInput));
    return result;
  }

  void verifyOwnOrder() const {
    for (const PipelineRankId rank : orders_.ids()) {
      for (size_t step = 0; step < orders_[rank].size(); ++step) {
        const Action& action = orders_[rank][step];
        for (const Action& needed : needs(action)) {
          const Place* place = find(needed);
          if (!place || place->rank != rank || place->step < step) continue;
          failAt({{rank, step}}, "rank {} runs {} before {}, which it needs", rank, actionToString(action),
                 actionToString(needed));
        }
      }
    }
  }

  void verifyMessages() const {
    // by sender and receiver, in the receiver's order
    std::map<std::pair<PipelineRankId, PipelineRankId>, std::vector<Place>> receives;
    for (const PipelineRankId rank : orders_.ids()) {
      for (size_t step = 0; step < orders_[rank].size(); ++step) {
        const Action& action = orders_[rank][step];
        for (const std::optional<Action>& message :
             {sendAfter(action, schedule_.rank_of_stage), receiveBefore(action, schedule_.rank_of_stage)}) {
          if (message && !find(*message))
            failAt({{rank, step}}, "{} of {} is missing", actionToString(*message), actionToString(action));
        }
        if (!isTransfer(action.kind)) continue;
        const Action other = isSend(action.kind) ? receiveOf(action) : sendOf(action);
        const Place* place = find(other);
        if (!place || place->rank == rank) {
          failAt({{rank, step}}, "rank {} runs {}, but no rank runs {} for it", rank, actionToString(action),
                 actionToString(other));
        }
        if (isReceive(action.kind)) receives[{place->rank, rank}].push_back({rank, step});
      }
    }
    for (const auto& [channel, arrivals] : receives) verifyChannel(channel.first, channel.second, arrivals);
  }

  void verifyChannel(PipelineRankId from, PipelineRankId to, const std::vector<Place>& arrivals) const {
    size_t next = 0;
    for (size_t step = 0; step < orders_[from].size(); ++step) {
      const Action& send = orders_[from][step];
      if (!isSend(send.kind) || find(receiveOf(send))->rank != to) continue;
      const Action& receive = at(arrivals[next]);
      if (!(receive == receiveOf(send))) {
        failAt({{from, step}, arrivals[next]},
               "message {} from rank {} to rank {} is sent as {} but received as {}; expected messages in "
               "the order in which they are sent",
               next, from, to, actionToString(send), actionToString(receive));
      }
      ++next;
    }
  }

  void verifyVersions() const;
  void verifyUpdates(StageId stage) const;
  void verifyProgress() const;
  bool canRun(const IdVector<PipelineRankId, size_t>& next, PipelineRankId rank) const;

  const Schedule& schedule_;
  const ScheduleOrders& orders_;
  std::unordered_map<uint64_t, Place> places_;
  bool has_transfers_ = false;
};

// An update takes the gradients of its minibatch, all of them and no others.
void Verifier::verifyUpdates(StageId stage) const {
  const int per_update = schedule_.updateEvery(stage);
  for (int k = 0; k < schedule_.microbatches; ++k) {
    const ActionKind kind =
        find(stage, ActionKind::kBackwardWeight, k) ? ActionKind::kBackwardWeight : ActionKind::kBackward;
    const Place gradient = *find(stage, kind, k);
    const int first = k / per_update * per_update;  // of the minibatch
    const Place* before = first > 0 ? find(stage, ActionKind::kUpdate, first - 1) : nullptr;
    const Place* after = find(stage, ActionKind::kUpdate, first + per_update - 1);
    if (before && gradient.step < before->step) {
      failAt({gradient}, "rank {} runs {} before {}, which must not take its gradient", gradient.rank,
             nameOf(stage, kind, k), actionToString(at(*before)));
    }
    if (after && gradient.step > after->step) {
      failAt({*after}, "rank {} runs {} before {}, whose gradient it takes", gradient.rank,
             actionToString(at(*after)), nameOf(stage, kind, k));
    }
    if ((k + 1) % per_update == 0 && !after) {
      failAt({gapOf(stage, ActionKind::kUpdate, k)}, "{} is missing", nameOf(stage, ActionKind::kUpdate, k));
    }
  }
}

void Verifier::verifyVersions() const {
  const auto& versions = schedule_.versions;
  if (std::ssize(versions) != schedule_.stages) {
    failAt({}, "found versions of the weights of {} stages; expected those of {}", versions.size(),
           schedule_.stages);
  }
  for (const StageId stage : versions.ids()) {
    const std::vector<int>& reads = versions[stage];
    if (std::ssize(reads) != schedule_.microbatches) {
      failAt({}, "found {} versions of the weights of stage {}; expected one per microbatch, {}",
             reads.size(), stage, schedule_.microbatches);
    }
    for (int k = 1; k < schedule_.microbatches; ++k) {
      const size_t i = k;
      if (reads[i] >= reads[i - 1]) continue;
      failAt({*find(stage, ActionKind::kForward, k)},
             "{} reads version {} of the weights, {} version {}; expected versions that do not go back",
             nameOf(stage, ActionKind::kForward, k), reads[i], nameOf(stage, ActionKind::kForward, k - 1),
             reads[i - 1]);
    }
    verifyUpdates(stage);
  }
  for (const PipelineRankId rank : orders_.ids()) {
    std::map<StageId, int> made;
    for (size_t step = 0; step < orders_[rank].size(); ++step) {
      const Action& action = orders_[rank][step];
      if (action.kind == ActionKind::kUpdate) {
        if ((action.microbatch + 1) % schedule_.updateEvery(action.stage) != 0) {
          failAt({{rank, step}}, "rank {} runs {}; expected an update after every {} microbatches", rank,
                 actionToString(action), schedule_.updateEvery(action.stage));
        }
        ++made[action.stage];
      }
      if (action.kind != ActionKind::kForward) continue;
      const int read = versions[action.stage][action.microbatch];
      if (read < 0 || read > made[action.stage]) {
        failAt({{rank, step}}, "{} reads version {} of the weights, but its rank has made {} by then",
               actionToString(action), read, made[action.stage]);
      }
    }
  }
}

// Whether the rank's next action, or overlapped pair, can run when the others are at `next`.
bool Verifier::canRun(const IdVector<PipelineRankId, size_t>& next, PipelineRankId rank) const {
  const auto done = [&](const Action& action) {
    const Place* place = find(action);
    return place->step < next[place->rank];
  };
  const Action& action = orders_[rank][next[rank]];
  if (isTransfer(action.kind)) {
    const Place* other = find(isSend(action.kind) ? receiveOf(action) : sendOf(action));
    return other->step <= next[other->rank];  // both are there, or the other has just gone on
  }
  for (size_t step = next[rank]; step < orders_[rank].size(); ++step) {
    const std::vector<Action> needed = needs(orders_[rank][step]);
    if (!std::all_of(needed.begin(), needed.end(), done)) return false;
    if (!orders_[rank][step].overlaps_next) break;
  }
  return true;
}

void Verifier::verifyProgress() const {
  IdVector<PipelineRankId, size_t> next(orders_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (const PipelineRankId rank : orders_.ids()) {
      while (next[rank] < orders_[rank].size() && canRun(next, rank)) {
        const bool pair = orders_[rank][next[rank]].overlaps_next;
        next[rank] += pair ? 2 : 1;
        moved = true;
      }
    }
  }
  std::vector<Place> marks;
  std::vector<std::string> stuck;
  for (const PipelineRankId rank : orders_.ids()) {
    if (next[rank] == orders_[rank].size()) continue;
    marks.push_back({rank, next[rank]});
    stuck.push_back(fmt::format("rank {} at {}", rank, actionToString(orders_[rank][next[rank]])));
  }
  if (!stuck.empty()) failAt(marks, "the ranks wait for each other: {}", fmt::join(stuck, ", "));
}

}  // namespace

void verifySchedule(const Schedule& schedule) { Verifier(schedule).verify(); }

}  // namespace pipeshard
