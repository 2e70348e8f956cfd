#include "ir/trace/trace_breakdown.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"
#include "ir/base/time_spans.h"

namespace pipeshard {
namespace {

using Span = TimeSpan;

bool meets(const TraceEvent& event) {
  return event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective;
}

// Of two united lists.
int64_t common(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::vector<Span> both = a;
  both.insert(both.end(), b.begin(), b.end());
  return totalLength(a) + totalLength(b) - totalLength(unitedSpans(std::move(both)));
}

struct RankSpans {
  std::vector<Span> compute;
  std::vector<Span> foreground;  // of all kinds
  std::vector<Span> sends;
  std::vector<Span> background;
  // of these: but the time before a message that was awaited early began to come
  std::vector<Span> travelling;
};

}  // namespace

TraceBreakdown breakDown(const Trace& trace) {
  TraceBreakdown result;
  result.ranks.resize(std::max(0, trace.ranks));
  IdVector<RankId, RankSpans> spans(result.ranks.size());
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = 0;
  for (const TraceEvent& event : trace.events) {
    const Span span{event.start_ns, event.end_ns};
    first = std::min(first, span.first);
    last = std::max(last, span.second);
    RankSpans& of_rank = spans[event.rank];
    RankBreakdown& rank = result.ranks[event.rank];
    if (event.kind == TraceEventKind::kSend) {
      of_rank.sends.push_back(span);
    } else if (event.background) {
      of_rank.background.push_back(span);
      of_rank.travelling.emplace_back(event.kind == TraceEventKind::kReceive ? event.arrived_ns : span.first,
                                      span.second);
    } else {
      of_rank.foreground.push_back(span);
      if (meets(event)) {
        rank.waiting += event.arrived_ns - event.start_ns;
        rank.transfer += event.end_ns - event.arrived_ns;
      } else {
        of_rank.compute.push_back(span);
      }
    }
  }
  result.length = trace.events.empty() ? 0 : last - first;
  for (RankId r : spans.ids()) {
    RankBreakdown& rank = result.ranks[r];
    const std::vector<Span> compute = unitedSpans(std::move(spans[r].compute));
    const std::vector<Span> busy = unitedSpans(std::move(spans[r].foreground));
    std::vector<Span> travelling = std::move(spans[r].travelling);
    travelling.insert(travelling.end(), spans[r].sends.begin(), spans[r].sends.end());
    std::vector<Span> beside = std::move(spans[r].sends);
    beside.insert(beside.end(), spans[r].background.begin(), spans[r].background.end());
    beside = unitedSpans(std::move(beside));
    rank.compute = totalLength(compute);
    // A gap while a message is under way: its memory is wanted back, or a background operation's result is
    // wanted.
    rank.waiting += totalLength(beside) - common(beside, busy);
    rank.idle = result.length - rank.compute - rank.waiting - rank.transfer;
    rank.hidden = common(unitedSpans(std::move(travelling)), compute);
  }
  return result;
}

std::string printBreakdown(const Trace& trace) {
  const TraceBreakdown parts = breakDown(trace);
  size_t width = 20;
  for (const std::string& name : trace.rank_names) width = std::max(width, name.size());
  std::string text = fmt::format("{:<{}}  compute  waiting  transfer    idle\n",
                                 fmt::format("of {:.1f} ms", static_cast<double>(parts.length) / 1e6), width);
  for (RankId rank : parts.ranks.ids()) {
    const auto share = [&](int64_t time) { return formatShare(time, parts.length); };
    const RankBreakdown& part = parts.ranks[rank];
    text +=
        fmt::format("{:<{}}  {:>7}  {:>7}  {:>8}  {:>6}\n",
                    rank < trace.rank_names.nextId() ? trace.rank_names[rank] : fmt::format("rank {}", rank),
                    width, share(part.compute), share(part.waiting), share(part.transfer), share(part.idle));
  }
  return text;
}

}  // namespace pipeshard
