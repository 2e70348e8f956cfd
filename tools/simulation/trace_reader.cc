#include "tools/simulation/trace_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"

namespace pipeshard {
namespace {

constexpr std::array<TraceEventKind, 5> kEventKinds = {TraceEventKind::kCompute, TraceEventKind::kSend,
                                                       TraceEventKind::kReceive, TraceEventKind::kCollective,
                                                       TraceEventKind::kCopy};

int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

TraceWork workOf(const std::string& name) {
  const std::optional<TraceWork> work = traceWorkFromName(name);
  if (!work)
    fail(ErrorCode::kConfiguration, "found the work \"{}\"; expected a trace as `run --trace` writes it",
         name);
  return *work;
}

class Reader {
 public:
  Trace read(const Json& document, std::string_view source) {
    const bool has_events =
        document.is_object() && document.contains("traceEvents") && document.at("traceEvents").is_array();
    if (!has_events)
      fail(ErrorCode::kConfiguration,
           "found no list \"traceEvents\"; expected a trace as `run --trace` writes it");
    const Json& events = document.at("traceEvents");
    for (const Json& event : events) {
      ++position_;
      if (event.at("ph") == "M") addName(event);
    }
    chooseProcesses(source);
    position_ = 0;
    for (const Json& event : events) {
      ++position_;
      if (!ranks_.contains(event.at("pid").get<int>())) continue;
      if (event.at("ph") == "X") addEvent(event);
      if (event.at("ph") == "C") addMemory(event);
    }
    std::stable_sort(trace_.events.begin(), trace_.events.end(),
                     [](const TraceEvent& a, const TraceEvent& b) {
                       return std::pair(a.rank, a.start_ns) < std::pair(b.rank, b.start_ns);
                     });
    return std::move(trace_);
  }

  int64_t position() const { return position_; }

 private:
  void addName(const Json& event) {
    const int process = event.at("pid");
    if (event.at("name") == "process_name") processes_[process] = event.at("args").at("name");
    if (event.at("name") == "thread_name" && event.at("args").at("name") == "background")
      background_.insert({process, event.at("tid").get<int>()});
  }

  // "measured rank 0": the rank is the process's place among those of its source.
  void chooseProcesses(std::string_view source) {
    const std::string prefix = std::string(source) + " ";
    std::set<std::string> sources;
    for (const auto& [process, name] : processes_) sources.insert(name.substr(0, name.find(' ')));
    for (const auto& [process, name] : processes_) {
      if (sources.size() > 1 && !name.starts_with(prefix)) continue;
      ranks_[process] = RankId(trace_.ranks++);
      const size_t space = name.find(' ');
      trace_.source = name.substr(0, space);
      trace_.rank_names.push_back(space == std::string::npos ? name : name.substr(space + 1));
    }
    if (ranks_.empty()) fail(ErrorCode::kConfiguration, "found no ranks of a \"{}\" trace", source);
  }

  void addEvent(const Json& json_event) {
    const std::string kind = json_event.at("cat");
    const auto known = std::find_if(kEventKinds.begin(), kEventKinds.end(),
                                    [&](TraceEventKind k) { return traceEventKindName(k) == kind; });
    if (known == kEventKinds.end()) return;  // "waiting" and "transfer" lie inside others
    const Json& arguments = json_event.at("args");
    TraceEvent event;
    event.kind = *known;
    event.rank = ranks_.at(json_event.at("pid"));
    event.name = json_event.at("name");
    if (event.kind == TraceEventKind::kCompute) {
      if (!arguments.contains("work"))
        fail(ErrorCode::kConfiguration,
             "event {} of \"traceEvents\" has no \"args.work\", as older traces do; record it again with "
             "`pipeshard run DIR --trace FILE`",
             position_);
      event.work = workOf(arguments.at("work"));
    }
    event.unfinished = arguments.value("unfinished", false);
    event.step = arguments.value("step", int64_t{1});
    event.batch = arguments.value("batch", int64_t{0});
    const int stage = arguments.value("stage", -1);
    if (stage >= 0) event.stage = StageId(stage);
    event.microbatch = arguments.value("microbatch", -1);
    if (const int peer = arguments.value("peer", -1); peer >= 0) event.peer = RankId(peer);
    event.bytes = arguments.value("bytes", int64_t{0});
    event.background =
        background_.contains({json_event.at("pid").get<int>(), json_event.at("tid").get<int>()});
    event.start_ns = nanoseconds(json_event.at("ts"));
    event.end_ns = event.start_ns + nanoseconds(json_event.at("dur"));
    event.arrived_ns = std::min(event.end_ns, event.start_ns + arguments.value("waiting_ns", int64_t{0}));
    trace_.events.push_back(std::move(event));
  }

  void addMemory(const Json& event) {
    trace_.memory.push_back({ranks_.at(event.at("pid")), nanoseconds(event.at("ts")),
                             event.at("args").at("bytes").get<int64_t>()});
  }

  Trace trace_;
  int64_t position_ = 0;  // of the event that is read, from 1 on
  std::map<int, std::string> processes_;
  std::map<int, RankId> ranks_;  // by process
  std::set<std::pair<int, int>> background_;
};

}  // namespace

Trace traceFromJson(std::string_view text, std::string_view source) {
  Json document;
  try {
    document = parseJson(text, "trace");
  } catch (const Error&) {
    fail(ErrorCode::kConfiguration,
         "this is not JSON, or nested too deeply; expected a trace as `run --trace` writes it");
  }
  Reader reader;
  try {
    return reader.read(document, source);
  } catch (const Json::exception&) {
    fail(ErrorCode::kConfiguration,
         "event {} of \"traceEvents\" lacks a field, or has one of another type, than `run --trace` writes",
         reader.position());
  }
}

Trace readTrace(const std::string& path, std::string_view source) {
  const std::optional<std::string> text = readTextFile(path);
  if (!text)
    fail(ErrorCode::kMissingInput, "{} cannot be read; record a trace with `pipeshard run DIR --trace FILE`",
         path);
  try {
    return traceFromJson(*text, source);
  } catch (Error& error) {
    error.addContext(path);
    throw;
  }
}

}  // namespace pipeshard
