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

std::string MeasuredDurations::apply(const Program& program, ProgramCosts& costs) const {
  std::string missing;
  size_t i = 0;
  for (const Instruction& instruction : program.instructions) {
    std::vector<WorkPart>& parts = costs.instructions[i++];
    if (parts.size() != 1 || parts[0].group.valid()) continue;
    const TraceEvent event = traceEventOf(program, instruction);
    const auto own = by_rank_.find({program.rank, keyOf(event)});
    const auto other = anywhere_.find(keyOf(event));
    if (other == anywhere_.end()) {
      if (isPass(event.work) && missing.empty()) missing = event.name;
      continue;
    }
    parts[0].compute = own != by_rank_.end() ? own->second : other->second;
  }
  return missing;
}

}  // namespace pipeshard
