#include "benchmarks/measured_times.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "tools/simulation/measured_costs.h"

namespace pipeshard {
MeasuredTimes measuredTimes(const Trace& trace, int stages) {
  // A pass with collectives inside is several events: its time is their sum.
  // by stage, work, microbatch, step, rank
  std::map<std::tuple<StageId, TraceWork, int, int64_t, RankId>, Ticks> passes;
  std::vector<Ticks> transfers;
  for (const TraceEvent& event : trace.events) {
    if (event.batch > 0) continue;
    if (isPass(event.work)) {
      passes[{event.stage, event.work, event.microbatch, event.step, event.rank}] +=
          event.end_ns - event.start_ns;
    }
    const bool message = event.kind == TraceEventKind::kReceive && event.microbatch >= 0;
    if (message) transfers.push_back(event.end_ns - event.arrived_ns);
  }
  std::map<std::pair<StageId, TraceWork>, std::vector<Ticks>> times;
  for (const auto& [key, time] : passes) times[{std::get<0>(key), std::get<1>(key)}].push_back(time);
  MeasuredTimes result;
  for (const StageId stage : idsBelow<StageId>(stages)) {
    const auto of = [&](TraceWork work) { return medianOf(times[{stage, work}]); };
    if (times[{stage, TraceWork::kForward}].empty())
      fail(ErrorCode::kConfiguration, "the trace has no forward pass of stage {}", stage);
    result.stages.push_back({.forward = of(TraceWork::kForward),
                             .backward_input = of(TraceWork::kBackward) + of(TraceWork::kBackwardInput),
                             .backward_weight = of(TraceWork::kBackwardWeight),
                             .recomputation = of(TraceWork::kRecomputation)});
  }
  result.latency = medianOf(std::move(transfers));
  return result;
}

double MeasuredStep::bubble() const {
  const double all = static_cast<double>(makespan()) * static_cast<double>(busy_ns.size());
  return all > 0 ? 1 - static_cast<double>(std::accumulate(busy_ns.begin(), busy_ns.end(), int64_t{0})) / all
                 : 0;
}

std::vector<MeasuredStep> measuredSteps(const Trace& trace) {
  std::map<int64_t, MeasuredStep> steps;
  for (const TraceEvent& event : trace.events) {
    if (!isPass(event.work) || event.batch > 0) continue;
    const auto [found, is_new] = steps.try_emplace(event.step);
    MeasuredStep& step = found->second;
    if (is_new) {
      step.step = event.step;
      step.start_ns = event.start_ns;
      step.busy_ns.resize(trace.ranks);
    }
    step.start_ns = std::min(step.start_ns, event.start_ns);
    step.end_ns = std::max(step.end_ns, event.end_ns);
    step.busy_ns[event.rank] += event.end_ns - event.start_ns;
  }
  std::vector<MeasuredStep> result;
  for (auto& [number, step] : steps) result.push_back(std::move(step));
  return result;
}

}  // namespace pipeshard
