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

// Of times, bytes and steps: two of them can be added. 73 years in nanoseconds.
constexpr int64_t kMost = int64_t{1} << 61;

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
      if (!ranks_.contains(numberOf(event, "pid"))) continue;
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
  // What the library makes of a number that is no integer, or that the type does not hold, is undefined or
  // another number: all of them are looked at first.
  template <typename Get>
  auto checked(const Json& object, const char* key, const Get& get) const {
    try {
      return get(JsonReader(object.at(key), key));
    } catch (Error& error) {
      error.addContext(fmt::format("event {} of \"traceEvents\"", position_));
      throw;
    }
  }
  int64_t wholeOf(const Json& object, const char* key, int64_t low, int64_t high) const {
    return checked(object, key, [&](const JsonReader& number) { return number.integer(low, high); });
  }
  int64_t wholeOf(const Json& object, const char* key, int64_t low, int64_t high, int64_t missing) const {
    return object.contains(key) ? wholeOf(object, key, low, high) : missing;
  }
  int numberOf(const Json& event, const char* key) const {  // of a process or thread
    return static_cast<int>(wholeOf(event, key, INT32_MIN, INT32_MAX));
  }
  int64_t nanosecondsOf(const Json& event, const char* key) const {
    constexpr double kMostMicroseconds = static_cast<double>(kMost) / 1000;
    return std::llround(1000 * checked(event, key, [&](const JsonReader& number) {
                          return number.number(-kMostMicroseconds, kMostMicroseconds);
                        }));
  }

  void addName(const Json& event) {
    const int process = numberOf(event, "pid");
    if (event.at("name") == "process_name") processes_[process] = event.at("args").at("name");
    if (event.at("name") == "thread_name" && event.at("args").at("name") == "background")
      background_.insert({process, numberOf(event, "tid")});
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
    event.rank = ranks_.at(numberOf(json_event, "pid"));
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
    event.step = wholeOf(arguments, "step", -kMost, kMost, 1);
    event.batch = wholeOf(arguments, "batch", -kMost, kMost, 0);
    const int64_t stage = wholeOf(arguments, "stage", -1, INT32_MAX, -1);
    if (stage >= 0) event.stage = StageId(stage);
    event.microbatch = static_cast<int>(wholeOf(arguments, "microbatch", -1, INT32_MAX, -1));
    const int64_t peer = wholeOf(arguments, "peer", -1, INT32_MAX, -1);
    if (peer >= 0) event.peer = RankId(peer);
    event.bytes = wholeOf(arguments, "bytes", 0, kMost, 0);
    event.background = background_.contains({numberOf(json_event, "pid"), numberOf(json_event, "tid")});
    event.start_ns = nanosecondsOf(json_event, "ts");
    event.end_ns = event.start_ns + nanosecondsOf(json_event, "dur");
    event.arrived_ns =
        std::min(event.end_ns, event.start_ns + wholeOf(arguments, "waiting_ns", -kMost, kMost, 0));
    trace_.events.push_back(std::move(event));
  }

  void addMemory(const Json& event) {
    trace_.memory.push_back({ranks_.at(numberOf(event, "pid")), nanosecondsOf(event, "ts"),
                             wholeOf(event.at("args"), "bytes", -kMost, kMost)});
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
