#include "tools/simulation/measured_costs.h"

#include <algorithm>
#include <map>
#include <vector>

#include "ir/base/error.h"
#include "ir/trace/trace_names.h"
#include "partition/schedules/schedule.h"
#include "tools/simulation/measured_times.h"
#include "tools/simulation/trace_reader.h"

namespace pipeshard {
namespace {

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// Without numbers of microbatches: "0F3" and "recompute 0F3" lose the last one, "load x@3" what follows the
// @.
std::string stemOf(const std::string& name) {
  std::string stem;
  for (size_t i = 0; i < name.size(); ++i) {
    stem += name[i];
    if (name[i] != '@') continue;
    while (i + 1 < name.size() && isDigit(name[i + 1])) ++i;
  }
  size_t end = stem.size();
  while (end > 0 && isDigit(stem[end - 1])) --end;
  const bool pass = end > 1 && end < stem.size() && isDigit(stem[end - 2]) &&
                    std::string("FBIW").find(stem[end - 1]) != std::string::npos;
  return pass ? stem.substr(0, end) : stem;
}

}  // namespace

MeasuredDurations MeasuredDurations::read(const std::string& path) {
  const Trace trace = readTrace(path);
  std::vector<const TraceEvent*> events;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEventKind::kCompute || event.kind == TraceEventKind::kCopy)
      events.push_back(&event);
  }
  if (events.empty())
    fail(ErrorCode::kConfiguration, "{}: found no computing; expected a trace that `run --trace` has written",
         path);
  const auto [first, last] = std::minmax_element(
      events.begin(), events.end(), [](const auto* a, const auto* b) { return a->step < b->step; });
  const int64_t left_out = (*first)->step < (*last)->step ? (*first)->step : (*first)->step - 1;
  std::map<std::pair<int, std::string>, std::vector<Ticks>> by_rank;
  std::map<std::string, std::vector<Ticks>> anywhere;
  for (const TraceEvent* event : events) {
    if (event->step == left_out) continue;
    by_rank[{event->rank, stemOf(event->name)}].push_back(event->end_ns - event->start_ns);
    anywhere[stemOf(event->name)].push_back(event->end_ns - event->start_ns);
  }
  MeasuredDurations result;
  for (const auto& [key, values] : by_rank) result.by_rank_[key] = medianOf(values);
  for (const auto& [key, values] : anywhere) result.anywhere_[key] = medianOf(values);
  return result;
}

std::string MeasuredDurations::apply(const Program& program, ProgramCosts& costs) const {
  std::string missing;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    std::vector<WorkPart>& parts = costs.instructions[i];
    if (parts.size() != 1 || parts[0].group >= 0) continue;
    const std::string stem = stemOf(traceName(program, program.instructions[i]));
    const auto own = by_rank_.find({program.rank, stem});
    const auto other = anywhere_.find(stem);
    if (other == anywhere_.end()) {
      const SubgraphId subgraph = program.instructions[i].subgraph;
      const bool pass = subgraph.valid() && isPass(program.subgraphs[subgraph.index()].phase);
      if (pass && missing.empty()) missing = traceName(program, program.instructions[i]);
      continue;
    }
    parts[0].compute = own != by_rank_.end() ? own->second : other->second;
  }
  return missing;
}

}  // namespace pipeshard
