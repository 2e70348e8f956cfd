#include "tools/simulation/measured_costs.h"

#include <algorithm>
#include <map>
#include <vector>

#include "ir/base/error.h"
#include "ir/trace/trace_names.h"
#include "tools/simulation/trace_reader.h"

namespace pipeshard {
namespace {

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// "load x" of "load x@3": buffers of a microbatch have its number behind an @.
std::string withoutMicrobatches(const std::string& name) {
  std::string kept;
  for (size_t i = 0; i < name.size(); ++i) {
    kept += name[i];
    if (name[i] != '@') continue;
    while (i + 1 < name.size() && isDigit(name[i + 1])) ++i;
  }
  return kept;
}

}  // namespace

Ticks medianOf(std::vector<Ticks> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

MeasuredDurations::Key MeasuredDurations::keyOf(const TraceEvent& event) {
  if (isPass(event.work)) return {event.work, event.stage, ""};
  return {event.work, StageId(), withoutMicrobatches(event.name)};
}

MeasuredDurations MeasuredDurations::read(const std::string& path) {
  const Trace trace = readTrace(path);
  std::vector<const TraceEvent*> events;
  for (const TraceEvent& event : trace.events) {
    const bool computes = event.kind == TraceEventKind::kCompute || event.kind == TraceEventKind::kCopy;
    if (computes && event.batch == 0) events.push_back(&event);
  }
  if (events.empty())
    fail(ErrorCode::kConfiguration, "{}: found no computing; expected a trace that `run --trace` has written",
         path);
  const auto [first, last] = std::minmax_element(
      events.begin(), events.end(), [](const auto* a, const auto* b) { return a->step < b->step; });
  const int64_t left_out = (*first)->step < (*last)->step ? (*first)->step : (*first)->step - 1;
  std::map<std::pair<RankId, Key>, std::vector<Ticks>> by_rank;
  std::map<Key, std::vector<Ticks>> anywhere;
  for (const TraceEvent* event : events) {
    if (event->step == left_out || event->unfinished) continue;
    by_rank[{event->rank, keyOf(*event)}].push_back(event->end_ns - event->start_ns);
    anywhere[keyOf(*event)].push_back(event->end_ns - event->start_ns);
  }
  MeasuredDurations result;
  for (const auto& [key, values] : by_rank) result.by_rank_[key] = medianOf(values);
  for (const auto& [key, values] : anywhere) result.anywhere_[key] = medianOf(values);
  return result;
}

std::optional<Ticks> MeasuredDurations::measured(RankId rank, const Key& key) const {
  if (const auto own = by_rank_.find({rank, key}); own != by_rank_.end()) return own->second;
  if (const auto other = anywhere_.find(key); other != anywhere_.end()) return other->second;
  return std::nullopt;
}

std::optional<Ticks> MeasuredDurations::otherForm(RankId rank, const Key& key,
                                                  const FirstPasses& estimated) const {
  const auto of = [&](TraceWork work) { return Key{work, key.stage, ""}; };
  const Key input = of(TraceWork::kBackwardInput), weight = of(TraceWork::kBackwardWeight);
  if (key.work == TraceWork::kBackward) {
    const std::optional<Ticks> of_input = measured(rank, input), of_weight = measured(rank, weight);
    if (!of_input && !of_weight) return std::nullopt;
    return of_input.value_or(0) + of_weight.value_or(0);
  }
  if (key.work != TraceWork::kBackwardInput && key.work != TraceWork::kBackwardWeight) return std::nullopt;
  const std::optional<Ticks> whole = measured(rank, of(TraceWork::kBackward));
  if (!whole) return std::nullopt;
  const auto estimate = [&](const Key& half) {
    const auto found = estimated.find(half);
    return found == estimated.end() ? 0.0 : static_cast<double>(found->second);
  };
  const double both = estimate(input) + estimate(weight);
  return both == 0 ? *whole / 2 : static_cast<Ticks>(static_cast<double>(*whole) * estimate(key) / both);
}

std::string MeasuredDurations::apply(const Program& program, ProgramCosts& costs) const {
  std::string missing;
  FirstPasses estimated;
  const auto isAlone = [](const std::vector<WorkPart>& parts) {
    return parts.size() == 1 && !parts[0].group.valid();
  };
  size_t at = 0;
  for (const Instruction& instruction : program.instructions) {
    const std::vector<WorkPart>& parts = costs.instructions[at++];
    const Key key = keyOf(traceEventOf(program, instruction));
    if (isAlone(parts) && isPass(key.work)) estimated.emplace(key, parts[0].compute);
  }
  at = 0;
  for (const Instruction& instruction : program.instructions) {
    std::vector<WorkPart>& parts = costs.instructions[at++];
    if (!isAlone(parts)) continue;
    const TraceEvent event = traceEventOf(program, instruction);
    std::optional<Ticks> found = measured(program.rank, keyOf(event));
    if (!found) found = otherForm(program.rank, keyOf(event), estimated);
    if (found)
      parts[0].compute = *found;
    else if (isPass(event.work) && missing.empty())
      missing = event.name;
  }
  return missing;
}

}  // namespace pipeshard
