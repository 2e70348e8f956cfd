#include "tools/simulation/trace_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

enum class Track : uint8_t { kCompute, kTransfers, kBackground, kSends };
constexpr std::array<const char*, 4> kTrackNames = {"compute", "transfers", "background", "sends"};

Track trackOf(const TraceEvent& event) {
  if (event.kind == TraceEventKind::kSend) return Track::kSends;
  if (event.background) return Track::kBackground;
  const bool compute = event.kind == TraceEventKind::kCompute || event.kind == TraceEventKind::kCopy;
  return compute ? Track::kCompute : Track::kTransfers;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

int64_t drawnEnd(const TraceEvent& event) { return std::max(event.end_ns, event.start_ns + 1); }

class Writer {
 public:
  std::string write(std::span<const Trace> traces) {
    text_ = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    for (const Trace& trace : traces) {
      verifyTrace(trace);
      addTrace(trace);
      first_process_ += trace.ranks;
    }
    return text_ + "\n]}\n";
  }

 private:
  using MessageKey = std::tuple<RankId, RankId, int64_t>;

  int processOf(RankId rank) const { return first_process_ + rank.index(); }

  void add(const std::string& event) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    text_ += event;
  }

  void addTrace(const Trace& trace) {
    lanes_.clear();
    arrows_.clear();
    for (RankId rank : idsBelow<RankId>(trace.ranks)) {
      const std::string name =
          rank < trace.rank_names.nextId() ? trace.rank_names[rank] : fmt::format("rank {}", rank);
      nameOf("process", processOf(rank), 0, trace.source.empty() ? name : trace.source + " " + name,
             processOf(rank));
    }
    for (const TraceEvent& event : trace.events) {
      if (event.kind == TraceEventKind::kSend)
        arrows_.emplace(MessageKey{event.rank, event.peer, event.message}, next_arrow_++);
    }
    for (const TraceEvent& event : trace.events) addEvent(event);
    for (const TraceMemory& memory : trace.memory) {
      add(fmt::format(R"({{"name":"memory","ph":"C","pid":{},"tid":0,"ts":{},"args":{{"bytes":{}}}}})",
                      processOf(memory.rank), microseconds(memory.time_ns), memory.bytes));
    }
  }

  void nameOf(const char* what, int process, int thread, const std::string& name, int sort) {
    add(fmt::format(R"({{"name":"{}_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", what, process,
                    thread, quoted(name)));
    add(fmt::format(R"({{"name":"{}_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
                    what, process, thread, sort));
  }

  // The first lane of the event's track that is free when it starts.
  int lane(const TraceEvent& event) {
    const Track track = trackOf(event);
    std::vector<int64_t>& lanes = lanes_[{event.rank, track}];
    size_t lane = 0;
    while (lane < lanes.size() && lanes[lane] > event.start_ns) ++lane;
    const int thread = static_cast<int>(track) + static_cast<int>(kTrackNames.size() * lane);
    if (lane == lanes.size()) {
      lanes.push_back(0);
      const char* name = kTrackNames[static_cast<size_t>(track)];
      nameOf("thread", processOf(event.rank), thread, name,
             static_cast<int>(track) * 1000 + static_cast<int>(lane));
    }
    lanes[lane] = drawnEnd(event);
    return thread;
  }

  void addSlice(const std::string& name, std::string_view category, int process, int thread, int64_t start,
                int64_t end, const std::string& arguments) {
    add(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                    quoted(name), category, process, thread, microseconds(start), microseconds(end - start),
                    arguments));
  }

  void addArrow(const char* phase, const TraceEvent& event, const MessageKey& key, int thread, int64_t time) {
    const auto arrow = arrows_.find(key);
    if (arrow == arrows_.end()) return;
    add(fmt::format(R"({{"name":"message","cat":"message","ph":"{}",{}"id":{},"pid":{},"tid":{},"ts":{}}})",
                    phase, *phase == 'f' ? R"("bp":"e",)" : "", arrow->second, processOf(event.rank), thread,
                    microseconds(time)));
  }

  static std::string argumentsOf(const TraceEvent& event) {
    std::string text = fmt::format(R"("step":{})", event.step);
    if (event.batch > 0) text += fmt::format(R"(,"batch":{})", event.batch);
    if (event.kind == TraceEventKind::kCompute)
      text += fmt::format(R"(,"work":"{}")", traceWorkName(event.work));
    if (event.unfinished) text += R"(,"unfinished":true)";
    if (event.stage.valid()) text += fmt::format(R"(,"stage":{})", event.stage);
    if (event.microbatch >= 0) text += fmt::format(R"(,"microbatch":{})", event.microbatch);
    if (event.peer.valid()) text += fmt::format(R"(,"peer":{})", event.peer);
    if (event.bytes > 0) text += fmt::format(R"(,"bytes":{})", event.bytes);
    return text;
  }

  void addEvent(const TraceEvent& event) {
    const int thread = lane(event);
    const int process = processOf(event.rank);
    const bool met = event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective;
    std::string arguments = argumentsOf(event);
    if (met) {
      arguments += fmt::format(R"(,"waiting_ns":{},"transfer_ns":{})", event.arrived_ns - event.start_ns,
                               event.end_ns - event.arrived_ns);
    }
    addSlice(event.name, traceEventKindName(event.kind), process, thread, event.start_ns, drawnEnd(event),
             arguments);
    if (met && event.arrived_ns > event.start_ns)
      addSlice("waiting", "waiting", process, thread, event.start_ns, event.arrived_ns, "");
    if (met && event.end_ns > event.arrived_ns)
      addSlice("transfer", "transfer", process, thread, event.arrived_ns, event.end_ns, "");
    if (event.kind == TraceEventKind::kSend)
      addArrow("s", event, {event.rank, event.peer, event.message}, thread, event.start_ns);
    if (event.kind == TraceEventKind::kReceive) {
      addArrow("f", event, {event.peer, event.rank, event.message}, thread, drawnEnd(event) - 1);
    }
  }

  std::string text_;
  bool first_ = true;
  int first_process_ = 0;
  int64_t next_arrow_ = 0;
  std::map<std::pair<RankId, Track>, std::vector<int64_t>> lanes_;  // the end of what was drawn last on each
  std::map<MessageKey, int64_t> arrows_;
};

}  // namespace

std::string tracesToJson(std::span<const Trace> traces) { return Writer().write(traces); }

}  // namespace pipeshard
