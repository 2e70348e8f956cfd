#include "partition/simulation/simulator.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/schedules/schedule_transfers.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

using Kind = EngineOperation::Kind;

// Orders become lists of operations; results of the engine become actions again. Operation i of a rank is its
// action i in `actions_`: the schedule's, with a receive right in front of the pass that needs it, a send
// right behind the pass that makes it, and the update of a synchronous step at the end where it takes time.
// Both ends of a message get one number, by the stage that sends it, its direction and its microbatch,
// whichever end comes first. A pass takes memory when it starts and gives it back when it ends (setMemory).
//
//   the example of simulator.h: rank 0 has F0, send F0, receive B0, B0; rank 1 receive F0, F0, B0, send B0
class ScheduleSimulation {
 public:
  explicit ScheduleSimulation(const SimulationRequest& request)
      : request_(request), schedule_(request.schedule) {
    PIPESHARD_CHECK(std::ssize(request.stages) == schedule_.stages,
                    "{} stages have times, the schedule has {}", request.stages.size(), schedule_.stages);
    engine_.contention = request.contention;
    const bool takes_time = request.latency + request.occupancy > 0 ||
                            std::any_of(request.occupancies.begin(), request.occupancies.end(),
                                        [](Ticks ticks) { return ticks > 0; });
    engine_.exposed = request.communication == CommunicationModel::kExposed && takes_time;
    actions_ = withDirectTransfers();
    for (const PipelineRankId rank : actions_.ids()) {
      if (!schedule_.asynchronous()) addUpdates(rank);
      std::vector<EngineOperation>& operations = engine_.ranks.emplace_back();
      for (const Action& action : actions_[rank]) operations.push_back(operation(action));
    }
  }

  Simulation run() {
    const EngineResult result = runEngine(engine_);
    if (!result.complete()) failStuck(result);
    Simulation simulation;
    simulation.ranks.resize(actions_.size());
    simulation.busy.resize(actions_.size());
    for (const PipelineRankId rank : actions_.ids()) {
      for (size_t i = 0; i < actions_[rank].size(); ++i) {
        if (isTransfer(actions_[rank][i].kind)) continue;
        const OperationTimes& times = result.ranks[rank.index()][i];
        simulation.ranks[rank].push_back({actions_[rank][i], times.start, times.end});
        simulation.busy[rank] += times.end - times.start;
        simulation.makespan = std::max(simulation.makespan, times.end);
      }
    }
    for (const MessageTimes& times : result.messages) {
      simulation.messages.push_back({sent_.at(times.message), PipelineRankId(times.from),
                                     PipelineRankId(times.to), times.posted, times.started, times.arrived});
    }
    simulation.memory.assign(result.memory.begin(), result.memory.end());
    simulation.peak_memory.assign(result.peak_memory.begin(), result.peak_memory.end());
    return simulation;
  }

 private:
  PipelineRankId rankOf(StageId stage) const { return schedule_.rank_of_stage[stage]; }
  bool leaves(StageId stage, StageId to) const {
    return schedule_.rank_of_stage.has(to) && rankOf(stage) != rankOf(to);
  }

  // A receive stands right before the pass that needs it, a send right behind the pass that makes it; a pair
  // of passes is as one.
  ScheduleOrders withDirectTransfers() const {
    ScheduleOrders result(schedule_.orders.size());
    for (const PipelineRankId rank : result.ids()) {
      const std::vector<Action>& order = schedule_.orders[rank];
      for (size_t i = 0; i < order.size();) {
        size_t end = i + 1;
        while (request_.pairs_together && end < order.size() && order[end - 1].overlaps_next) ++end;
        for (size_t j = i; j < end; ++j) addTransfers(order[j], true, result[rank]);
        result[rank].insert(result[rank].end(), order.begin() + i, order.begin() + end);
        for (size_t j = i; j < end; ++j) addTransfers(order[j], false, result[rank]);
        i = end;
      }
    }
    return result;
  }

  void addTransfers(const Action& action, bool before, std::vector<Action>& order) const {
    const bool forward = action.kind == ActionKind::kForward;
    if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardInput) return;
    const StageId other = forward == before ? action.stage.previous() : action.stage.next();
    if (!leaves(action.stage, other)) return;
    if (before)
      order.push_back({action.stage, forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
                       action.microbatch});
    if (!before)
      order.push_back(
          {action.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, action.microbatch});
  }

  [[noreturn]] void failStuck(const EngineResult& result) const {
    std::vector<std::string> stuck;
    for (const PipelineRankId rank : actions_.ids()) {
      if (const std::optional<size_t> at = result.stuck[rank.index()])
        stuck.push_back(fmt::format("rank {} at {}", rank, actionToString(actions_[rank][*at])));
    }
    fail(ErrorCode::kConfiguration,
         "schedule: with pairs of passes that start together the ranks wait for each other: {}",
         fmt::join(stuck, ", "));
  }

  void addUpdates(PipelineRankId rank) {
    for (const StageId stage : schedule_.rank_of_stage.ids()) {
      if (rankOf(stage) != rank || request_.stages[stage].update == 0) continue;
      actions_[rank].push_back({stage, ActionKind::kUpdate, schedule_.microbatches - 1});
    }
  }

  EngineOperation operation(const Action& action) {
    EngineOperation result;
    if (!isTransfer(action.kind)) {
      result.duration = duration(action);
      setMemory(action, result);
      return result;
    }
    const bool send = isSend(action.kind);
    result.kind = send ? Kind::kSend : Kind::kReceive;
    result.posted = send;
    result.latency = request_.latency;
    const bool forward =
        action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
    const StageId sender = send ? action.stage : forward ? action.stage.previous() : action.stage.next();
    const StageId cut = forward ? sender : sender.previous();
    result.occupancy = request_.occupancies.empty() ? request_.occupancy : request_.occupancies.at(cut);
    const auto [found, added] =
        message_of_.emplace(std::tuple(sender, forward, action.microbatch), std::ssize(sent_));
    if (added)
      sent_.push_back(
          {sender, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, action.microbatch});
    result.message = found->second;
    return result;
  }

  Ticks duration(const Action& action) const {
    const PassTimes& times = request_.stages[action.stage];
    switch (action.kind) {
      case ActionKind::kForward: return times.forward;
      case ActionKind::kBackward: return times.recomputation + times.backward_input + times.backward_weight;
      case ActionKind::kBackwardInput: return times.recomputation + times.backward_input;
      case ActionKind::kBackwardWeight: return times.backward_weight;
      case ActionKind::kUpdate: return times.update;
      default: return 0;
    }
  }

  void setMemory(const Action& action, EngineOperation& operation) const {
    const PassTimes& times = request_.stages[action.stage];
    if (action.kind == ActionKind::kForward) {
      operation.memory_at_start = times.activation;
      if (schedule_.forward_only) operation.memory_at_end = -times.activation;
    }
    const bool input = action.kind == ActionKind::kBackwardInput;
    if (action.kind == ActionKind::kBackward || input) operation.memory_at_start = times.recomputed;
    if (input) {
      operation.memory_at_start += std::max<int64_t>(times.input_memory, 0);
      operation.memory_at_end = std::min<int64_t>(times.input_memory, 0);
    }
    if (action.kind == ActionKind::kBackward) operation.memory_at_end = -times.activation - times.recomputed;
    if (action.kind == ActionKind::kBackwardWeight)
      operation.memory_at_end = -times.activation - times.recomputed - times.input_memory;
  }

  const SimulationRequest& request_;
  const Schedule& schedule_;
  ScheduleOrders actions_;  // with transfers and updates
  EngineRequest engine_;
  std::map<std::tuple<StageId, bool, int>, int64_t> message_of_;  // stage that sends, forward, microbatch
  std::vector<Action> sent_;                                      // by message
};

}  // namespace

TraceWork traceWorkOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return TraceWork::kForward;
    case ActionKind::kBackward: return TraceWork::kBackward;
    case ActionKind::kBackwardInput: return TraceWork::kBackwardInput;
    case ActionKind::kBackwardWeight: return TraceWork::kBackwardWeight;
    case ActionKind::kUpdate: return TraceWork::kUpdate;
    default: return TraceWork::kOther;
  }
}

Simulation simulate(const SimulationRequest& request) {
  verifySchedule(request.schedule);
  return ScheduleSimulation(request).run();
}

IdVector<PipelineRankId, Ticks> Simulation::idlePerRank() const {
  IdVector<PipelineRankId, Ticks> idle;
  for (Ticks time : busy) idle.push_back(makespan - time);
  return idle;
}

namespace {

Ticks spanOf(const std::vector<SimulatedAction>& rank) {
  return rank.empty() ? 0 : rank.back().end - rank.front().start;
}

double ratio(Ticks part, Ticks whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

Ticks sum(const IdVector<PipelineRankId, Ticks>& times) {
  Ticks all = 0;
  for (Ticks time : times) all += time;
  return all;
}

}  // namespace

Ticks Simulation::longestSpan() const {
  Ticks longest = 0;
  for (const auto& rank : ranks) longest = std::max(longest, spanOf(rank));
  return longest;
}

double Simulation::bubbleOfMakespan() const {
  return ratio(sum(idlePerRank()), makespan * std::ssize(ranks));
}

double Simulation::bubbleOfUseful() const { return ratio(sum(idlePerRank()), sum(busy)); }

double Simulation::bubbleOfSpan() const {
  const auto longest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const auto& a, const auto& b) { return spanOf(a) < spanOf(b); });
  if (longest == ranks.end()) return 0;
  const PipelineRankId rank(longest - ranks.begin());
  return ratio(spanOf(*longest) - busy[rank], spanOf(*longest));
}

IdVector<StageId, PassTimes> equalStages(const Schedule& schedule, const PassTimes& share) {
  IdVector<StageId, PassTimes> stages;
  for (const PipelineRankId rank : schedule.rank_of_stage) {
    const int64_t chunks = std::count(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), rank);
    PIPESHARD_CHECK(chunks > 0, "rank {} has no stage", rank);
    const auto part = [&](int64_t whole) {
      PIPESHARD_CHECK(whole % chunks == 0, "{} does not divide by the {} stages of rank {}", whole, chunks,
                      rank);
      return whole / chunks;
    };
    stages.push_back({part(share.forward), part(share.backward_input), part(share.backward_weight),
                      part(share.recomputation), part(share.update), part(share.activation),
                      part(share.input_memory), part(share.recomputed)});
  }
  return stages;
}

}  // namespace pipeshard
