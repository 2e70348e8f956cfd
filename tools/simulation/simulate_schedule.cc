// `simulate` of a bare schedule: options to exact numbers, the simulation, and what is shown of it.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "tools/simulation/exact_decimal.h"
#include "tools/simulation/simulation_report.h"

namespace pipeshard {
namespace {

// Times and memory of a pipeline rank's whole share, as given.
struct Given {
  Decimal forward{1, 0}, input{1, 0}, weight{1, 0}, recomputation, update, latency, occupancy;
  Decimal forward_memory{1, 0}, input_memory, weight_memory{-1, 0};
  bool halve_backward = false;  // B was given: I and W take half of it each
};

Given parseGiven(const BareRequest& request) {
  Given given;
  const auto times = parseDecimals("--times", request.times, {"F", "I", "W", "B", "R", "U"});
  const auto take = [](const std::map<std::string, Decimal>& from, const char* key, Decimal& to) {
    if (from.count(key) > 0) to = from.at(key);
  };
  take(times, "F", given.forward);
  take(times, "I", given.input);
  take(times, "W", given.weight);
  take(times, "R", given.recomputation);
  take(times, "U", given.update);
  for (const auto& [key, time] : times) {
    if (time.digits < 0) fail(ErrorCode::kUsage, "--times: {} is negative", key);
  }
  given.halve_backward = times.count("B") > 0;
  if (given.halve_backward) {
    if (times.count("I") + times.count("W") > 0)
      fail(ErrorCode::kUsage, "--times: give B, or I and W (B is both), not all");
    given.input = given.weight = times.at("B");
  }
  given.latency = parseDecimal("--comm", request.communication);
  given.occupancy = parseDecimal("--occupancy", request.occupancy);
  if (given.latency.digits < 0 || given.occupancy.digits < 0)
    fail(ErrorCode::kUsage, "--comm and --occupancy must not be negative");
  const auto memory = parseDecimals("--memory-model", request.memory_model, {"F", "I", "W"});
  take(memory, "F", given.forward_memory);
  take(memory, "I", given.input_memory);
  take(memory, "W", given.weight_memory);
  return given;
}

// The same in whole units.
struct Exact {
  PassTimes share;
  Ticks latency = 0;
  Ticks occupancy = 0;
  int64_t time_unit = 1;
  int64_t memory_unit = 1;
  int64_t weight_memory = -1;
};

// Every time becomes a whole number that divides by `chunks`, since a chunk takes that part of its rank's
// share; the unit is twice as fine where B is given, of which I and W take half each.
Exact exactly(const Given& given, int64_t chunks) {
  Exact exact;
  const int64_t halves = given.halve_backward ? 2 : 1;
  exact.time_unit = commonScale({given.forward, given.input, given.weight, given.recomputation, given.update,
                                 given.latency, given.occupancy}) *
                    chunks * halves;
  exact.memory_unit = commonScale({given.forward_memory, given.input_memory, given.weight_memory}) * chunks;
  const auto time = [&](const Decimal& decimal) { return inUnits(decimal, exact.time_unit); };
  exact.share.forward = time(given.forward);
  exact.share.backward_input = time(given.input) / halves;
  exact.share.backward_weight = time(given.weight) / halves;
  exact.share.recomputation = time(given.recomputation);
  exact.share.update = time(given.update);
  exact.latency = time(given.latency);
  exact.occupancy = time(given.occupancy);
  exact.share.activation = inUnits(given.forward_memory, exact.memory_unit);
  exact.share.input_memory = inUnits(given.input_memory, exact.memory_unit);
  exact.weight_memory = inUnits(given.weight_memory, exact.memory_unit);
  if (exact.share.activation < 0 ||
      exact.share.activation + exact.share.input_memory + exact.weight_memory != 0) {
    fail(ErrorCode::kUsage, "--memory-model: F, I and W add up to {}; expected 0: what F adds, I and W free",
         decimalText(exact.share.activation + exact.share.input_memory + exact.weight_memory,
                     exact.memory_unit));
  }
  return exact;
}

// Sums of all durations must stay far from overflow.
void checkRange(const Exact& exact, int64_t stages, int64_t microbatches) {
  double longest = 0;
  for (Ticks time : {exact.share.forward, exact.share.backward_input, exact.share.backward_weight,
                     exact.share.recomputation, exact.share.update, exact.latency, exact.occupancy,
                     exact.share.activation}) {
    longest += 2 * static_cast<double>(time);
  }
  if (longest * static_cast<double>(stages) * static_cast<double>(microbatches) > 4e18) {
    fail(ErrorCode::kUsage, "--times, --comm, --memory-model: so many digits are too many; expected fewer");
  }
}

bool isFile(const std::string& text) {
  return text.size() > 4 && text.compare(text.size() - 4, 4, ".csv") == 0;
}

ScheduleSpec scheduleAsked(const BareRequest& request) {
  std::string text = request.schedule;
  const auto add = [&](const std::string& option) {
    text += (text.find(':') == std::string::npos ? ":" : ",") + option;
  };
  if (request.chunks > 0 && request.chunks != chunksOf(parseSchedule(request.schedule)))
    add(fmt::format("v={}", request.chunks));
  if (!request.limit.empty()) add("limit=" + request.limit);
  return parseSchedule(text);
}

struct Bare {
  Schedule schedule;
  Exact exact;
  Simulation simulation;
};

Bare run(const BareRequest& request) {
  const Given given = parseGiven(request);
  Bare bare;
  int64_t chunks = 1;
  if (isFile(request.schedule)) {
    if (request.ranks > 0 || request.microbatches > 0 || request.chunks > 0 || !request.limit.empty()) {
      fail(ErrorCode::kUsage,
           "--schedule {}: the file says how many ranks, stages and microbatches there are; leave out --p, "
           "--m, --v and --limit",
           request.schedule);
    }
    constexpr uint64_t kMostBytes = 64 << 20;
    bare.schedule =
        scheduleFromCsv(requireTextFile(request.schedule, kMostBytes, "a file of orders"), request.schedule);
    for (const PipelineRankId rank : bare.schedule.rank_of_stage) {
      chunks = std::lcm(
          chunks, std::count(bare.schedule.rank_of_stage.begin(), bare.schedule.rank_of_stage.end(), rank));
    }
    bare.exact = exactly(given, chunks);
  } else {
    if (request.ranks < 1 || request.microbatches < 1) {
      fail(ErrorCode::kUsage, "--schedule {} needs --p (pipeline ranks) and --m (microbatches): --p 4 --m 8",
           request.schedule);
    }
    const ScheduleSpec asked = scheduleAsked(request);
    bare.exact = exactly(given, chunksOf(asked));
    checkRange(bare.exact, int64_t{request.ranks} * chunksOf(asked), request.microbatches);
    ScheduleCosts costs{
        bare.exact.share.forward,         bare.exact.share.recomputation + bare.exact.share.backward_input,
        bare.exact.share.backward_weight, bare.exact.latency + bare.exact.occupancy,
        bare.exact.share.activation,      bare.exact.share.input_memory,
        bare.exact.weight_memory};
    bare.schedule = makeSchedule({asked, request.ranks, request.microbatches, costs});
  }
  checkRange(bare.exact, bare.schedule.stages, bare.schedule.microbatches);
  bare.simulation = simulate(
      {.schedule = bare.schedule,
       .stages = equalStages(bare.schedule, bare.exact.share),
       .latency = bare.exact.latency,
       .occupancy = bare.exact.occupancy,
       .communication = request.exposed ? CommunicationModel::kExposed : CommunicationModel::kOverlapped,
       .contention = !request.no_contention,
       .pairs_together = !request.split_pairs});
  return bare;
}

std::vector<StageId> stagesOf(const Schedule& schedule, PipelineRankId rank) {
  std::vector<StageId> stages;
  for (const StageId stage : schedule.rank_of_stage.ids()) {
    if (schedule.rank_of_stage[stage] == rank) stages.push_back(stage);
  }
  return stages;
}

char kindOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return 'f';
    case ActionKind::kBackward: return 'b';
    case ActionKind::kBackwardInput: return 'i';
    case ActionKind::kBackwardWeight: return 'w';
    default: return 'u';
  }
}

std::vector<std::vector<GanttBar>> ganttOf(const Bare& bare) {
  std::vector<std::vector<GanttBar>> rows;
  for (const PipelineRankId rank : bare.simulation.ranks.ids()) {
    const StageId first = stagesOf(bare.schedule, rank).front();
    std::vector<GanttBar>& row = rows.emplace_back();
    for (const SimulatedAction& timed : bare.simulation.ranks[rank]) {
      const bool update = timed.action.kind == ActionKind::kUpdate;
      row.push_back({kindOf(timed.action.kind), update ? -1 : timed.action.microbatch,
                     timed.action.stage != first, timed.start, timed.end});
    }
  }
  return rows;
}

// One unit of time is a millisecond, one of memory a megabyte.
class TraceOfSchedule {
 public:
  explicit TraceOfSchedule(const Bare& bare) : bare_(bare) {}

  Trace make() {
    Trace trace{.source = "simulated",
                .ranks = static_cast<int>(bare_.simulation.ranks.size()),
                .rank_names = {},
                .events = {},
                .memory = {}};
    for (const PipelineRankId rank : bare_.simulation.ranks.ids()) {
      const std::vector<StageId> stages = stagesOf(bare_.schedule, rank);
      trace.rank_names.push_back(
          fmt::format("rank {} (stage{} {})", rank, stages.size() > 1 ? "s" : "", fmt::join(stages, ", ")));
      for (const MemoryPoint& point : bare_.simulation.memory[rank]) {
        trace.memory.push_back(
            {rowOf(rank), nanoseconds(point.time), scaled(point.held, bare_.exact.memory_unit)});
      }
    }
    std::map<std::pair<PipelineRankId, PipelineRankId>, int64_t> count;
    for (const SimulatedMessage& message : bare_.simulation.messages) {
      TraceEvent send = eventOf(message.from, message.sent);
      send.kind = TraceEventKind::kSend;
      send.name = "send " + actionToString(message.sent);
      send.start_ns = nanoseconds(message.posted);
      send.end_ns = nanoseconds(message.arrived);
      send.arrived_ns = send.start_ns;
      send.peer = rowOf(message.to);
      send.message = count[{message.from, message.to}]++;
      const bool forward = message.sent.kind == ActionKind::kSendForward;
      const StageId needs = forward ? message.sent.stage.next() : message.sent.stage.previous();
      sent_[{needs, forward, message.sent.microbatch}] = {&message, send.message};
      trace.events.push_back(send);
    }
    for (const PipelineRankId rank : bare_.simulation.ranks.ids()) addPasses(rank, trace);
    std::stable_sort(trace.events.begin(), trace.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return std::pair(a.rank, a.start_ns) < std::pair(b.rank, b.start_ns);
    });
    return trace;
  }

 private:
  static int64_t scaled(int64_t units, int64_t unit) {
    constexpr int64_t kShown = 1'000'000;
    return units / unit * kShown + units % unit * kShown / unit;
  }
  int64_t nanoseconds(Ticks ticks) const { return scaled(ticks, bare_.exact.time_unit); }

  static RankId rowOf(PipelineRankId rank) { return RankId(rank.index()); }

  static TraceEvent eventOf(PipelineRankId rank, const Action& action) {
    TraceEvent event;
    event.rank = rowOf(rank);
    event.stage = action.stage;
    event.microbatch = action.microbatch;
    return event;
  }

  // What a pass receives is wanted from the end of the pass before it.
  void addPasses(PipelineRankId rank, Trace& trace) {
    Ticks free = 0;
    for (const SimulatedAction& timed : bare_.simulation.ranks[rank]) {
      const bool forward = timed.action.kind == ActionKind::kForward;
      const auto found = isPass(timed.action.kind) && timed.action.kind != ActionKind::kBackwardWeight
                             ? sent_.find({timed.action.stage, forward, timed.action.microbatch})
                             : sent_.end();
      if (found != sent_.end()) {
        const SimulatedMessage& message = *found->second.first;
        TraceEvent receive = eventOf(rank, timed.action);
        receive.kind = TraceEventKind::kReceive;
        receive.name = "receive " + actionToString(message.sent);
        receive.start_ns = nanoseconds(free);
        receive.end_ns = nanoseconds(std::clamp(message.arrived, free, timed.start));
        receive.arrived_ns = std::clamp(nanoseconds(message.started), receive.start_ns, receive.end_ns);
        receive.peer = rowOf(message.from);
        receive.message = found->second.second;
        trace.events.push_back(receive);
      }
      TraceEvent pass = eventOf(rank, timed.action);
      pass.work = traceWorkOf(timed.action.kind);
      pass.name = actionToString(timed.action);
      pass.start_ns = pass.arrived_ns = nanoseconds(timed.start);
      pass.end_ns = nanoseconds(timed.end);
      trace.events.push_back(pass);
      free = timed.end;
    }
  }

  const Bare& bare_;
  // by the pass that needs it
  std::map<std::tuple<StageId, bool, int>, std::pair<const SimulatedMessage*, int64_t>> sent_;
};

std::string jsonOf(const Bare& bare) {
  const auto value = [](int64_t units, int64_t unit) {
    return static_cast<double>(units) / static_cast<double>(unit);
  };
  nlohmann::ordered_json json;
  json["schedule"] = bare.schedule.name();
  json["ranks"] = bare.schedule.ranks();
  json["stages"] = bare.schedule.stages;
  json["microbatches"] = bare.schedule.microbatches;
  json["makespan"] = value(bare.simulation.makespan, bare.exact.time_unit);
  for (const Ticks idle : bare.simulation.idlePerRank())
    json["idle_per_rank"].push_back(value(idle, bare.exact.time_unit));
  json["bubble_of_makespan"] = bare.simulation.bubbleOfMakespan();
  json["bubble_of_useful"] = bare.simulation.bubbleOfUseful();
  json["bubble_of_span"] = bare.simulation.bubbleOfSpan();
  for (const PipelineRankId rank : bare.schedule.orders.ids()) {
    const std::vector<Action>& order = bare.schedule.orders[rank];
    json["peak_activations"].push_back(
        value(peakActivations(order), std::ssize(stagesOf(bare.schedule, rank))));
    json["peak_memory"].push_back(value(bare.simulation.peak_memory[rank], bare.exact.memory_unit));
    nlohmann::ordered_json texts = nlohmann::ordered_json::array();
    for (const Action& action : order) texts.push_back(actionToString(action));
    json["orders"].push_back(texts);
  }
  return json.dump(1) + "\n";
}

std::vector<std::vector<std::string>> tableOf(const Bare& bare, bool memory) {
  std::vector<std::vector<std::string>> table = {
      {"rank", "stages", "busy", "idle", "span", "peak activations"}};
  if (memory) table[0].push_back("peak memory");
  const IdVector<PipelineRankId, Ticks> idle = bare.simulation.idlePerRank();
  for (const PipelineRankId rank : bare.simulation.ranks.ids()) {
    const auto time = [&](Ticks ticks) { return decimalText(ticks, bare.exact.time_unit); };
    const std::vector<StageId> stages = stagesOf(bare.schedule, rank);
    const auto& actions = bare.simulation.ranks[rank];
    table.push_back({fmt::format("{}", rank), fmt::format("{}", fmt::join(stages, ",")),
                     time(bare.simulation.busy[rank]), time(idle[rank]),
                     time(actions.empty() ? 0 : actions.back().end - actions.front().start),
                     decimalText(peakActivations(bare.schedule.orders[rank]), std::ssize(stages))});
    if (memory)
      table.back().push_back(decimalText(bare.simulation.peak_memory[rank], bare.exact.memory_unit));
  }
  return table;
}

}  // namespace

SimulationReport simulateBare(const BareRequest& request) {
  const Bare bare = run(request);
  SimulationReport report;
  report.title =
      fmt::format("{}: {} pipeline rank{}, {} stage{}, {} microbatch{}; {}{}", bare.schedule.name(),
                  bare.schedule.ranks(), bare.schedule.ranks() == 1 ? "" : "s", bare.schedule.stages,
                  bare.schedule.stages == 1 ? "" : "s", bare.schedule.microbatches,
                  bare.schedule.microbatches == 1 ? "" : "es", request.times,
                  request.communication == "0" ? "" : fmt::format(", comm {}", request.communication));
  report.table = tableOf(bare, request.memory_model != BareRequest().memory_model);
  report.makespan = bare.simulation.makespan;
  report.makespan_text = decimalText(bare.simulation.makespan, bare.exact.time_unit);
  report.bubble_of_makespan = bare.simulation.bubbleOfMakespan();
  report.bubble_of_useful = bare.simulation.bubbleOfUseful();
  report.bubble_of_span = bare.simulation.bubbleOfSpan();
  report.gantt = ganttOf(bare);
  report.ticks_per_unit = static_cast<double>(bare.exact.time_unit);
  report.json = jsonOf(bare);
  report.orders = bare.schedule.orders;
  report.trace = TraceOfSchedule(bare).make();
  return report;
}

}  // namespace pipeshard
