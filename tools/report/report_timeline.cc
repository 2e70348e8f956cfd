#include "tools/report/report_timeline.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/time_spans.h"
#include "partition/families/plan_schedule.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, kTraceWorks> kWorkNames = {
    "forward", "backward", "backward: inputs", "backward: weights", "recomputation", "update", "other"};

int64_t memoryLimit(const Plan& plan, const std::vector<StageId>& stages) {
  int64_t limit = plan.memory;
  for (const StageId s : stages) {
    const std::optional<ShardingPlan>& sharding = plan.stages.at(s).sharding;
    if (sharding) limit = std::max(limit, sharding->memory_limit);
  }
  return limit;
}

// A pass that recomputes does so first.
void addPass(const SimulatedAction& done, const PassTimes& times, std::vector<TimelineBar>& bars) {
  const Action& action = done.action;
  int64_t start = done.start;
  const bool recomputes = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  if (recomputes && times.recomputation > 0) {
    const int64_t end = std::min(done.end, start + times.recomputation);
    bars.push_back({TraceWork::kRecomputation, action.stage, action.microbatch, start, end});
    start = end;
  }
  bars.push_back({traceWorkOf(action.kind), action.stage, action.microbatch, start, done.end});
}

int64_t lastStep(const Trace& trace) {
  int64_t step = 0;
  for (const TraceEvent& event : trace.events) step = event.batch == 0 ? std::max(step, event.step) : step;
  return step;
}

void addMemory(const Trace& trace, int64_t begin, int64_t end, std::vector<TimelineRank>& ranks) {
  for (const TraceMemory& point : trace.memory) {
    if (point.rank >= RankId(ranks.size()) || point.time_ns > end) continue;
    std::vector<MemoryPoint>& memory = ranks[point.rank.index()].memory;
    const int64_t time = std::max<int64_t>(0, point.time_ns - begin);
    if (!memory.empty() && memory.back().time == time) {
      memory.back().held = point.bytes;
    } else {
      memory.push_back({time, point.bytes});
    }
  }
}

// Of the events that `takes` takes; its length is negative where that are none.
Timeline timelineOfEvents(const Trace& trace, const Plan& plan, const RankSample* sample,
                          const std::function<bool(const TraceEvent&)>& takes) {
  int64_t begin = INT64_MAX, end = 0;
  for (const TraceEvent& event : trace.events) {
    if (!takes(event)) continue;
    begin = std::min(begin, event.start_ns);
    end = std::max(end, event.end_ns);
  }
  Timeline timeline;
  timeline.source = trace.source == "simulated" ? "predicted" : trace.source;
  timeline.length = begin > end ? -1 : end - begin;
  timeline.nanoseconds = timeline.memory_in_bytes = true;
  timeline.ranks.resize(trace.ranks);
  for (RankId r : idsBelow<RankId>(trace.ranks)) {
    TimelineRank& rank = timeline.ranks[r.index()];
    const RankId known_as = sample != nullptr ? sample->ranks.at(r.index()) : r;
    rank.name = fmt::format("rank {}", known_as);
    if (sample != nullptr) rank.count = sample->counts.at(r.index());
    if (rank.count > 1) rank.name += fmt::format(" ×{}", rank.count);
    for (const StageId s : plan.stages.ids()) {
      const std::vector<RankId>& devices = plan.stages[s].devices;
      if (std::find(devices.begin(), devices.end(), known_as) != devices.end()) rank.stages.push_back(s);
    }
    rank.memory_limit = memoryLimit(plan, rank.stages);
  }
  for (const TraceEvent& event : trace.events) {
    if (!takes(event) || event.rank >= RankId(trace.ranks) || event.kind == TraceEventKind::kSend) continue;
    TimelineRank& rank = timeline.ranks[event.rank.index()];
    if (event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective) {
      rank.transfers.push_back(
          {event.start_ns - begin, event.arrived_ns - begin, event.end_ns - begin, event.background});
    } else {
      rank.bars.push_back(
          {event.work, event.stage, event.microbatch, event.start_ns - begin, event.end_ns - begin});
    }
  }
  addMemory(trace, begin, end, timeline.ranks);
  return timeline;
}

}  // namespace

std::string_view workName(TraceWork work) { return kWorkNames[static_cast<size_t>(work)]; }

int64_t TimelineRank::peakMemory() const {
  int64_t peak = 0;
  for (const MemoryPoint& point : memory) peak = std::max(peak, point.held);
  return peak;
}

int64_t Timeline::busy() const {
  int64_t sum = 0;
  for (const TimelineRank& rank : ranks) {
    for (const TimelineBar& bar : rank.bars) sum += rank.count * (bar.end - bar.start);
  }
  return sum;
}

int64_t Timeline::count() const {
  int64_t count = 0;
  for (const TimelineRank& rank : ranks) count += rank.count;
  return count;
}

double Timeline::idleOfStep() const {
  const auto all = static_cast<double>(length) * static_cast<double>(count());
  return all > 0 ? (all - static_cast<double>(busy())) / all : 0;
}

double Timeline::idleOfUseful() const {
  const auto useful = static_cast<double>(busy());
  return useful > 0 ? (static_cast<double>(length) * static_cast<double>(count()) - useful) / useful : 0;
}

double Timeline::idleOfSpan() const {
  int64_t longest = 0;
  int64_t useful = 0;
  for (const TimelineRank& rank : ranks) {
    if (rank.bars.empty()) continue;
    int64_t first = rank.bars.front().start, last = 0, sum = 0;
    for (const TimelineBar& bar : rank.bars) {
      first = std::min(first, bar.start);
      last = std::max(last, bar.end);
      sum += bar.end - bar.start;
    }
    if (last - first <= longest) continue;
    longest = last - first;
    useful = sum;
  }
  return longest > 0 ? static_cast<double>(longest - useful) / static_cast<double>(longest) : 0;
}

// Spans of one rank may overlap (a message comes while the rank computes), so lengths are of unions: what
// travels beside compute is compute, and `transfer` is what is left of the union of both.
StepParts stepParts(const TimelineRank& rank, int64_t length) {
  StepParts parts;
  std::vector<TimeSpan> computed, either;
  for (const TimelineBar& bar : rank.bars) {
    parts.work[static_cast<size_t>(bar.work)] += bar.end - bar.start;
    computed.emplace_back(bar.start, bar.end);
  }
  either = computed;
  for (const TimelineTransfer& transfer : rank.transfers) either.emplace_back(transfer.arrived, transfer.end);
  const int64_t busy = totalLength(unitedSpans(std::move(computed)));
  const int64_t filled = totalLength(unitedSpans(std::move(either)));
  parts.transfer = filled - busy;
  parts.idle = std::max<int64_t>(0, length - filled);
  return parts;
}

IdVector<PipelineRankId, std::vector<StageId>> pipelineRanks(const Plan& plan) {
  IdVector<PipelineRankId, std::vector<StageId>> ranks;
  const RankOfStage groups = deviceGroups(plan);
  for (const StageId stage : groups.ids()) {
    if (!ranks.has(groups[stage])) ranks.emplace_back();
    ranks[groups[stage]].push_back(stage);
  }
  return ranks;
}

Timeline timelineOf(const Simulation& simulation, const Schedule& schedule, const Plan& plan) {
  const IdVector<StageId, PassTimes> times = passTimes(plan);
  Timeline timeline;
  timeline.source = "predicted";
  timeline.length = simulation.makespan;
  timeline.ranks.resize(simulation.ranks.size());
  for (const StageId stage : schedule.rank_of_stage.ids())
    timeline.ranks.at(schedule.rank_of_stage[stage].index()).stages.push_back(stage);
  for (const PipelineRankId r : simulation.ranks.ids()) {
    TimelineRank& rank = timeline.ranks[r.index()];
    const std::vector<RankId>& devices = plan.stages.at(rank.stages.at(0)).devices;
    rank.name = devices.size() == 1 ? fmt::format("rank {}", devices[0])
                                    : fmt::format("ranks {}–{}", devices.front(), devices.back());
    for (const SimulatedAction& done : simulation.ranks[r])
      addPass(done, times.at(done.action.stage), rank.bars);
    if (simulation.memory.has(r)) rank.memory = simulation.memory[r];
  }
  for (const SimulatedMessage& message : simulation.messages) {
    timeline.ranks.at(message.to.index())
        .transfers.push_back({message.started, message.started, message.arrived});
  }
  return timeline;
}

Timeline timelineOf(const Trace& trace, const Plan& plan, int64_t step, const RankSample* sample) {
  if (step == 0) step = lastStep(trace);
  Timeline timeline = timelineOfEvents(
      trace, plan, sample, [&](const TraceEvent& event) { return event.batch == 0 && event.step == step; });
  if (timeline.length >= 0) return timeline;
  fail(ErrorCode::kConfiguration, "the trace has no events of step {}; record it with `run --trace`", step);
}

std::optional<Timeline> evaluationTimeline(const Trace& trace, const Plan& plan) {
  int64_t step = -1;
  for (const TraceEvent& event : trace.events) step = event.batch > 0 ? std::max(step, event.step) : step;
  if (step < 0) return std::nullopt;
  std::set<int64_t> batches;
  Timeline timeline = timelineOfEvents(trace, plan, nullptr, [&](const TraceEvent& event) {
    if (event.step != step || event.batch == 0) return false;
    batches.insert(event.batch);
    return true;
  });
  timeline.source =
      fmt::format("{}, {} of held-out data after step {}", trace.source,
                  batches.size() == 1 ? "1 batch" : fmt::format("{} batches", batches.size()), step);
  return timeline;
}

void joinHalves(const Schedule& schedule, Timeline& timeline) {
  std::set<std::pair<StageId, int>> whole;
  for (const std::vector<Action>& order : schedule.orders) {
    for (const Action& action : order) {
      if (action.kind == ActionKind::kBackward) whole.emplace(action.stage, action.microbatch);
    }
  }
  for (TimelineRank& rank : timeline.ranks) {
    std::vector<TimelineBar> joined;
    for (TimelineBar bar : rank.bars) {
      const bool half = bar.work == TraceWork::kBackwardInput || bar.work == TraceWork::kBackwardWeight;
      if (half && whole.contains({bar.stage, bar.microbatch})) bar.work = TraceWork::kBackward;
      const bool continues = !joined.empty() && bar.work == TraceWork::kBackward &&
                             joined.back().work == TraceWork::kBackward && joined.back().stage == bar.stage &&
                             joined.back().microbatch == bar.microbatch && joined.back().end == bar.start;
      if (continues) {
        joined.back().end = bar.end;
      } else {
        joined.push_back(bar);
      }
    }
    rank.bars = std::move(joined);
  }
}

bool hasFlops(const Plan& plan) {
  return std::all_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) {
    return stage.forward_flops > 0 && stage.backward_flops > 0;
  });
}

IdVector<StageId, PassTimes> passTimes(const Plan& plan) {
  const bool known = hasFlops(plan);
  IdVector<StageId, PassTimes> times;
  for (const StagePlan& stage : plan.stages) {
    const int64_t devices = std::max<size_t>(1, stage.devices.size());
    PassTimes pass;
    if (known) {
      pass.forward = std::max<int64_t>(1, stage.forward_flops / devices);
      pass.backward_input = std::max<int64_t>(1, stage.backward_flops / devices / 2);
      pass.backward_weight = std::max<int64_t>(1, stage.backward_flops / devices - pass.backward_input);
    }
    pass.recomputation = stage.recomputation == Recomputation::kNever ? 0 : pass.forward;
    times.push_back(pass);
  }
  return times;
}

}  // namespace pipeshard
