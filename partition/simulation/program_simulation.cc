#include "partition/simulation/program_simulation.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/program/background.h"
#include "ir/program/program_print.h"
#include "ir/trace/trace_names.h"
#include "partition/simulation/simulator.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {
namespace {

using Kind = EngineOperation::Kind;

constexpr size_t kNone = -1;

int64_t bytesOf(const Buffer& buffer) { return byteCount(buffer.data_type, buffer.shape); }

// What an operation of the engine stands for.
struct Origin {
  uint32_t instruction = 0;
  uint32_t part = 0;
  // of a message: the peer, and the how-many-th to or from it
  RankId peer = {};
  int64_t message = -1;
  GroupId group = {};  // of a collective
};

// One rank's instructions as operations: one each; of what computes, one per part of its work, and behind it
// one for the collective that ends the part.
// The engine knows no buffers, so what has to wait for a buffer is said by `after`: an instruction waits for
// the sends and background operations since the buffer began that write what it reads, and, if it writes or
// frees the buffer, also for those that read it (`touching_`).
//
// Most instructions take no time and wait for nothing: frees, and sums that are made where they are summed.
// What such a one frees is freed when the foreground comes to it, and that is when the operation before it
// ends: it is left out, and that operation frees (fold). Not where there is a lane, whose operations take
// memory at the same moments.
class RankOperations {
 public:
  RankOperations(const ProgramSimulationRequest& request, RankId rank)
      : request_(request),
        rank_(rank),
        program_(request.programs[rank.index()]),
        costs_(request.costs[rank]) {
    const Program& program = program_;
    const ProgramCosts& costs = costs_;
    PIPESHARD_CHECK(costs.instructions.size() == program.instructions.size(),
                    "rank {}: costs of {} instructions, {} in the program", program.rank,
                    costs.instructions.size(), program.instructions.size());
    touching_.resize(program.buffers.size());
    written_.resize(program.buffers.size());
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      if (!isPersistent(program.buffer(BufferId(b)).kind)) continue;
      written_[b] = true;
      base_ += bufferBytes(b);
    }
    folds_ = std::none_of(program.instructions.begin(), program.instructions.end(), isOfLane);
    at_ = 0;
    for (const Instruction& instruction : program.instructions) {
      add(instruction);
      ++at_;
    }
    // Of a thousand ranks all are in memory together.
    operations.shrink_to_fit();
    origins.shrink_to_fit();
    touching_ = {};
    written_ = {};
  }

  std::vector<EngineOperation> operations;
  std::vector<Origin> origins;  // by operation
  int64_t base_memory() const { return base_; }

 private:
  // An operation that runs beside the foreground, or a send, and has to do with a buffer.
  struct Touch {
    size_t operation = kNone;
    bool writes = false;
  };

  LinkCost linkOf(RankId from, RankId to) const {
    return request_.link_between ? request_.link_between(from, to) : request_.link;
  }

  int64_t bufferBytes(size_t buffer) const {
    return costs_.buffer_bytes.empty() ? bytesOf(program_.buffer(BufferId(buffer)))
                                       : costs_.buffer_bytes[buffer];
  }

  std::vector<size_t> waitsOf(const Instruction& instruction) const {
    std::vector<size_t> waits;
    const auto add = [&](BufferId id, bool any) {
      for (const Touch& touch : touching_[id.index()]) {
        if (any || touch.writes) waits.push_back(touch.operation);
      }
    };
    for (const BufferId id : instruction.inputs) add(id, instruction.kind == InstructionKind::kFree);
    for (const BufferId id : instruction.outputs) add(id, true);
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    return waits;
  }

  // What the instruction begins to hold; a buffer that ends may begin again.
  int64_t bytesBegun(const Instruction& instruction) {
    int64_t bytes = 0;
    for (const BufferId id : instruction.outputs) {
      if (!written_[id.index()]) bytes += bufferBytes(id.index());
      written_[id.index()] = true;
    }
    return bytes;
  }

  void push(EngineOperation operation, Origin origin) {
    operation.background = isOfLane(program_.instructions.form(at_));
    if (folds_ && fold(operation)) return;
    if (!operation.posted) {
      last_awaited_ = operations.size();
    } else if (!operation.after.empty() || operation.memory_at_start != 0) {
      last_awaited_ = kNone;
    }
    origin.instruction = static_cast<uint32_t>(at_);
    operations.push_back(std::move(operation));
    origins.push_back(origin);
  }

  // Whether it can be left out: the foreground comes to it when last_awaited_ ends.
  bool fold(const EngineOperation& operation) {
    const bool is_instant = operation.kind == Kind::kCompute && operation.duration == 0 &&
                            operation.after.empty() && operation.memory_at_start == 0;
    if (!is_instant) return false;
    if (operation.memory_at_end == 0) return true;
    if (operation.memory_at_end > 0 || last_awaited_ == kNone) return false;
    operations[last_awaited_].memory_at_end += operation.memory_at_end;
    return true;
  }

  void add(const Instruction& instruction) {
    EngineOperation first;
    first.after = waitsOf(instruction);
    first.memory_at_start = bytesBegun(instruction);
    const size_t begin = operations.size();
    switch (instruction.kind) {
      case InstructionKind::kSend:
      case InstructionKind::kReceive: addTransfer(instruction, std::move(first)); break;
      case InstructionKind::kFree:
        first.memory_at_end = -bufferBytes(instruction.inputs[0].index());
        written_[instruction.inputs[0].index()] = false;
        push(std::move(first), {});
        break;
      default: addParts(std::move(first)); break;
    }
    if (instruction.kind == InstructionKind::kFree) touching_[instruction.inputs[0].index()].clear();
    if (!instruction.background && instruction.kind != InstructionKind::kSend) return;
    for (size_t operation = begin; operation < operations.size(); ++operation) {
      for (const BufferId id : instruction.inputs) touching_[id.index()].push_back({operation, false});
      for (const BufferId id : instruction.outputs) touching_[id.index()].push_back({operation, true});
    }
  }

  void addTransfer(const Instruction& instruction, EngineOperation operation) {
    const bool send = instruction.kind == InstructionKind::kSend;
    const BufferId buffer = send ? instruction.inputs[0] : instruction.outputs[0];
    operation.kind = send ? Kind::kSend : Kind::kReceive;
    const LinkCost link = send ? linkOf(rank_, instruction.peer) : linkOf(instruction.peer, rank_);
    operation.latency = link.latency_ns;
    operation.occupancy = std::max<int64_t>(
        0, linkTime(link, static_cast<double>(bytesOf(program_.buffer(buffer)))) - link.latency_ns);
    operation.posted = send || instruction.background;
    const Origin origin{.peer = instruction.peer, .message = count_[{send, instruction.peer}]++};
    if (!send) {
      // A message waits for those before it from its peer; posted ones share a link with them.
      std::vector<size_t>& before = receives_[instruction.peer];
      if (!instruction.background) {
        operation.after.insert(operation.after.end(), before.begin(), before.end());
        before.clear();
      }
      before.push_back(operations.size());
    }
    push(std::move(operation), origin);
  }

  void addParts(EngineOperation first) {
    const std::vector<WorkPart>& parts = costs_.instructions[at_];
    for (size_t part = 0; part < std::max<size_t>(parts.size(), 1); ++part) {
      const WorkPart work = parts.empty() ? WorkPart{} : parts[part];
      EngineOperation compute = part == 0 ? std::move(first) : EngineOperation{};
      if (part == 0 || work.compute > 0) {
        compute.duration = work.compute;
        push(std::move(compute), {.part = static_cast<uint32_t>(part)});
      }
      if (!work.group.valid()) continue;
      EngineOperation meeting;
      meeting.kind = Kind::kCollective;
      meeting.duration = work.exchange;
      meeting.meeting_size = std::ssize(program_.groups.at(work.group));
      push(std::move(meeting), {.part = static_cast<uint32_t>(part), .group = work.group});
    }
  }

  const ProgramSimulationRequest& request_;
  RankId rank_;
  const Program& program_;
  const ProgramCosts& costs_;
  size_t at_ = 0;
  std::vector<std::vector<Touch>> touching_;          // by buffer, since it began
  std::vector<char> written_;                         // by buffer: it holds something
  std::map<std::pair<bool, RankId>, int64_t> count_;  // messages to or from each peer
  std::map<RankId, std::vector<size_t>> receives_;  // by peer: since the last in the foreground, it included
  bool folds_ = false;
  size_t last_awaited_ = kNone;  // operation, since which nothing has waited
  int64_t base_ = 0;
};

class ProgramsSimulation {
 public:
  explicit ProgramsSimulation(const ProgramSimulationRequest& request) : request_(request) {
    PIPESHARD_CHECK(request.costs.size() == request.programs.size(), "{} programs, costs of {}",
                    request.programs.size(), request.costs.size());
    ranks_.resize(request.costs.size());
    ofEveryRank([&](RankId rank) { ranks_[rank] = std::make_unique<RankOperations>(request, rank); });
    for (const RankId rank : ranks_.ids()) number(rank);
    engine_.contention = request.contention;
    engine_.rendezvous = request.rendezvous;
    for (const auto& rank : ranks_) engine_.ranks.push_back(std::move(rank->operations));
  }

  ProgramSimulation run() {
    const EngineResult result = runEngine(engine_);
    if (!result.complete()) failStuck(result);
    simulation_.makespan = result.end;
    simulation_.trace.source = "simulated";
    simulation_.trace.ranks = ranks_.size();
    IdVector<RankId, RankTimes> times(ranks_.size());
    ofEveryRank([&](RankId rank) {
      times[rank] = timesOf(rank, result.ranks[rank.index()]);
      engine_.ranks[rank.index()] = {};  // events are in their place
      ranks_[rank]->origins = {};
    });
    size_t events = 0;
    for (const RankTimes& of_rank : times) events += of_rank.events.size();
    simulation_.trace.events.reserve(events);
    for (RankId rank : ranks_.ids()) {
      const RankId known_as = request_.known_as.empty() ? rank : request_.known_as.at(rank.index());
      simulation_.trace.rank_names.push_back(
          fmt::format("rank {}{}", known_as, stagesSuffix(programOf(rank))));
      std::move(times[rank].events.begin(), times[rank].events.end(),
                std::back_inserter(simulation_.trace.events));
      times[rank].events = {};
      simulation_.busy.push_back(times[rank].busy);
      simulation_.span.push_back(times[rank].span);
      addMemory(rank, result.memory[rank.index()], result.peak_memory[rank.index()]);
    }
    return std::move(simulation_);
  }

 private:
  struct RankTimes {
    std::vector<TraceEvent> events;
    Ticks busy = 0, span = 0;
  };

  template <typename Body>
  void ofEveryRank(const Body& body) const {
    parallelFor(processorCount(), static_cast<int32_t>(ranks_.size()),
                [&](int32_t rank) { body(RankId(rank)); });
  }

  const Program& programOf(RankId rank) const { return request_.programs[rank.index()]; }

  // Gives messages and meetings the numbers that both sides, or all, have.
  void number(RankId rank) {
    RankOperations& operations = *ranks_[rank];
    std::vector<int64_t> met;  // by number of the group
    IdVector<GroupId, size_t> groups;
    for (const std::vector<RankId>& group : programOf(rank).groups)
      groups.push_back(number_of_.emplace(group, number_of_.size()).first->second);
    for (size_t index = 0; index < operations.operations.size(); ++index) {
      EngineOperation& operation = operations.operations[index];
      const Origin& origin = operations.origins[index];
      if (origin.peer.valid()) {
        const bool send = operation.kind == Kind::kSend;
        const auto key = std::tuple(send ? rank : origin.peer, send ? origin.peer : rank, origin.message);
        operation.message = message_of_.emplace(key, std::ssize(message_of_)).first->second;
      } else if (origin.group.valid()) {
        const size_t group = groups[origin.group];
        if (met.size() <= group) met.resize(group + 1);
        operation.meeting =
            meeting_of_.emplace(std::pair(group, met[group]++), std::ssize(meeting_of_)).first->second;
      }
    }
  }

  [[noreturn]] void failStuck(const EngineResult& result) const {
    std::vector<std::string> stuck;
    for (RankId rank : ranks_.ids()) {
      const std::optional<size_t>& operation = result.stuck[rank.index()];
      if (!operation) continue;
      const size_t at = ranks_[rank]->origins[*operation].instruction;
      const Program& program = programOf(rank);
      stuck.push_back(fmt::format("rank {} at instruction {}: {}", rank, at,
                                  describeInstruction(program, program.instructions.copyAt(at))));
    }
    fail(ErrorCode::kConfiguration, "the programs wait for each other: {}", fmt::join(stuck, "; "));
  }

  TraceEvent eventOf(RankId rank, size_t index, const OperationTimes& times) const {
    const EngineOperation& operation = engine_.ranks[rank.index()][index];
    const Origin& origin = ranks_[rank]->origins[index];
    const Program& program = programOf(rank);
    const Instruction instruction = program.instructions.copyAt(origin.instruction);
    TraceEvent event = traceEventOf(program, instruction);
    event.rank = rank;
    event.start_ns = times.start;
    event.end_ns = times.end;
    event.arrived_ns = times.begun;
    event.background = instruction.background;
    const bool runs =
        instruction.kind == InstructionKind::kRun || instruction.kind == InstructionKind::kUpdate;
    event.kind = runs ? TraceEventKind::kCompute : TraceEventKind::kCopy;
    if (operation.kind == Kind::kCollective) {
      event.kind = TraceEventKind::kCollective;
      event.work = TraceWork::kOther;
      event.bytes = request_.costs[rank].instructions[origin.instruction][origin.part].bytes;
    }
    if (origin.peer.valid()) {
      event.kind = operation.kind == Kind::kSend ? TraceEventKind::kSend : TraceEventKind::kReceive;
      event.peer = origin.peer;
      event.message = origin.message;
      event.bytes = bytesOf(
          program.buffer(operation.kind == Kind::kSend ? instruction.inputs[0] : instruction.outputs[0]));
    }
    return event;
  }

  RankTimes timesOf(RankId rank, const std::vector<OperationTimes>& times) const {
    RankTimes result;
    std::vector<TraceEvent>& events = result.events;
    const auto is_shown = [&](size_t index) {  // not frees, and what costs nothing
      const bool computes = engine_.ranks[rank.index()][index].kind == Kind::kCompute;
      return !computes || times[index].end > times[index].start;
    };
    size_t shown = 0;
    for (size_t index = 0; index < times.size(); ++index) shown += is_shown(index) ? 1 : 0;
    events.reserve(shown);
    Ticks first = -1, last = 0;
    for (size_t index = 0; index < times.size(); ++index) {
      const EngineOperation& operation = engine_.ranks[rank.index()][index];
      if (!is_shown(index)) continue;
      events.push_back(eventOf(rank, index, times[index]));
      const TraceEvent& event = events.back();
      if (operation.kind != Kind::kCompute || operation.background) continue;
      result.busy += event.end_ns - event.start_ns;
      if (first < 0) first = event.start_ns;
      last = event.end_ns;
    }
    const auto earlier = [](const TraceEvent& a, const TraceEvent& b) { return a.start_ns < b.start_ns; };
    if (!std::is_sorted(events.begin(), events.end(), earlier))
      std::stable_sort(events.begin(), events.end(), earlier);
    result.span = first < 0 ? 0 : last - first;
    return result;
  }

  void addMemory(RankId rank, const std::vector<MemoryPoint>& points, int64_t peak) {
    const int64_t base = ranks_[rank]->base_memory();
    if (points.empty() || points.front().time > 0) simulation_.trace.memory.push_back({rank, 0, base});
    for (const MemoryPoint& point : points)
      simulation_.trace.memory.push_back({rank, point.time, base + point.held});
    simulation_.peak_memory.push_back(base + peak);
  }

  const ProgramSimulationRequest& request_;
  IdVector<RankId, std::unique_ptr<RankOperations>> ranks_;  // their operations are the engine's
  EngineRequest engine_;
  std::map<std::tuple<RankId, RankId, int64_t>, int64_t> message_of_;
  std::map<std::vector<RankId>, size_t> number_of_;  // of a group
  std::map<std::pair<size_t, int64_t>, int64_t> meeting_of_;
  ProgramSimulation simulation_;
};

}  // namespace

std::string stagesSuffix(const Program& program) {
  std::set<StageId> stages;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.stage.valid()) stages.insert(instruction.stage);
  }
  if (stages.empty()) return "";
  return fmt::format(" (stage{} {})", stages.size() > 1 ? "s" : "", fmt::join(stages, ", "));
}

ProgramSimulation simulatePrograms(const ProgramSimulationRequest& request) {
  return ProgramsSimulation(request).run();
}

IdVector<RankId, Ticks> ProgramSimulation::idlePerRank() const {
  IdVector<RankId, Ticks> idle;
  for (Ticks time : busy) idle.push_back(makespan - time);
  return idle;
}

double ProgramSimulation::bubbleOfMakespan() const {
  double all = 0, idle = 0;
  for (Ticks time : busy) all += static_cast<double>(makespan), idle += static_cast<double>(makespan - time);
  return all > 0 ? idle / all : 0;
}

double ProgramSimulation::bubbleOfUseful() const {
  double useful = 0, idle = 0;
  for (Ticks time : busy) useful += static_cast<double>(time), idle += static_cast<double>(makespan - time);
  return useful > 0 ? idle / useful : 0;
}

double ProgramSimulation::bubbleOfSpan() const {
  const auto longest = std::max_element(span.begin(), span.end());
  if (longest == span.end() || *longest == 0) return 0;
  const Ticks useful = busy[RankId(longest - span.begin())];
  return static_cast<double>(*longest - useful) / static_cast<double>(*longest);
}

}  // namespace pipeshard
