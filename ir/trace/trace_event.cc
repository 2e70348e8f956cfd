#include "ir/trace/trace_event.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 5> kKindNames = {"compute", "send", "receive", "collective", "copy"};

constexpr std::array<std::string_view, kTraceWorks> kWorkNames = {
    "forward", "backward", "backward_input", "backward_weight", "recomputation", "update", "other"};

std::string describe(const TraceEvent& event) {
  return fmt::format("rank {}, step {}: {} \"{}\" from {} ns to {} ns", event.rank, event.step,
                     traceEventKindName(event.kind), event.name, event.start_ns, event.end_ns);
}

[[noreturn]] void failEvent(const TraceEvent& event, const std::string& message) {
  fail(ErrorCode::kInternal, "trace: {}: {}", describe(event), message);
}

using MessageKey = std::tuple<RankId, RankId, int64_t>;  // sender, receiver, number

void verifyEvent(const Trace& trace, const TraceEvent& event) {
  if (event.rank >= RankId(trace.ranks)) failEvent(event, fmt::format("there are {} ranks", trace.ranks));
  if (event.start_ns < 0 || event.end_ns < event.start_ns)
    failEvent(event, "it ends before it starts, or starts before the trace");
  const bool met = event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective;
  if (met && (event.arrived_ns < event.start_ns || event.arrived_ns > event.end_ns)) {
    failEvent(event, fmt::format("the other side arrived at {} ns, outside of it", event.arrived_ns));
  }
  const bool message = event.kind == TraceEventKind::kSend || event.kind == TraceEventKind::kReceive;
  if (message && (event.peer >= RankId(trace.ranks) || event.peer == event.rank)) {
    failEvent(event, fmt::format("its peer is {}", event.peer));
  }
  const bool computes = event.kind == TraceEventKind::kCompute;
  if (!computes && event.work != TraceWork::kOther) failEvent(event, "it computes nothing, but says what");
  if (isPass(event.work) && (!event.stage.valid() || event.microbatch < 0))
    failEvent(event, "a pass is of a stage and a microbatch");
  if (event.kind == TraceEventKind::kSend && event.message < 0) failEvent(event, "its message has no number");
}

void verifyMessages(const Trace& trace) {
  std::map<MessageKey, const TraceEvent*> sends;
  std::map<MessageKey, const TraceEvent*> receives;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEventKind::kSend &&
        !sends.emplace(MessageKey{event.rank, event.peer, event.message}, &event).second) {
      failEvent(event, fmt::format("message {} is sent twice", event.message));
    }
    const bool matched = event.kind == TraceEventKind::kReceive && event.message >= 0;
    if (matched && !receives.emplace(MessageKey{event.peer, event.rank, event.message}, &event).second) {
      failEvent(event, fmt::format("message {} is received twice", event.message));
    }
  }
  for (const auto& [key, receive] : receives) {
    const auto send = sends.find(key);
    if (send == sends.end())
      failEvent(*receive, fmt::format("rank {} never sent message {}", receive->peer, receive->message));
    if (send->second->bytes != receive->bytes) {
      failEvent(*receive,
                fmt::format("{} bytes were sent, {} received", send->second->bytes, receive->bytes));
    }
  }
}

// What a rank does in the foreground, and what runs beside it, is one after the other each. Sends, and
// receives beside it, are only posted.
void verifyTracks(const Trace& trace) {
  std::map<std::pair<RankId, bool>, const TraceEvent*> last;
  std::vector<const TraceEvent*> events;
  for (const TraceEvent& event : trace.events) {
    const bool posted =
        event.kind == TraceEventKind::kSend || (event.kind == TraceEventKind::kReceive && event.background);
    if (!posted) events.push_back(&event);
  }
  std::stable_sort(events.begin(), events.end(), [](const auto* a, const auto* b) {
    return std::pair(a->start_ns, a->end_ns) < std::pair(b->start_ns, b->end_ns);
  });
  for (const TraceEvent* event : events) {
    const TraceEvent*& before = last[{event->rank, event->background}];
    if (before != nullptr && event->start_ns < before->end_ns)
      failEvent(*event, "it overlaps " + describe(*before));
    before = event;
  }
}

}  // namespace

std::string_view traceEventKindName(TraceEventKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string_view traceWorkName(TraceWork work) { return kWorkNames[static_cast<size_t>(work)]; }

std::optional<TraceWork> traceWorkFromName(std::string_view name) {
  const auto found = std::find(kWorkNames.begin(), kWorkNames.end(), name);
  if (found == kWorkNames.end()) return std::nullopt;
  return static_cast<TraceWork>(found - kWorkNames.begin());
}

bool isPass(TraceWork work) { return work != TraceWork::kUpdate && work != TraceWork::kOther; }

void verifyTrace(const Trace& trace) {
  for (const TraceEvent& event : trace.events) verifyEvent(trace, event);
  const auto order = [](const TraceEvent& a, const TraceEvent& b) {
    return std::pair(a.rank, a.start_ns) < std::pair(b.rank, b.start_ns);
  };
  const auto unsorted = std::is_sorted_until(trace.events.begin(), trace.events.end(), order);
  if (unsorted != trace.events.end()) failEvent(*unsorted, "events are in order of rank, then start");
  for (const TraceMemory& memory : trace.memory) {
    if (memory.rank >= RankId(trace.ranks) || memory.time_ns < 0 || memory.bytes < 0) {
      fail(ErrorCode::kInternal, "trace: memory of rank {} at {} ns: {} bytes; there are {} ranks",
           memory.rank, memory.time_ns, memory.bytes, trace.ranks);
    }
  }
  verifyMessages(trace);
  verifyTracks(trace);
}

}  // namespace pipeshard
