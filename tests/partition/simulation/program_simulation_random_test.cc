// Random programs: times and memory are those of a second simulator, which leaves no instruction out.
#include <algorithm>
#include <random>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "partition/simulation/program_simulation.h"
#include "tests/ir/program/program_writer.h"
#include "tests/partition/simulation/second_program_simulator.h"

namespace pipeshard {
namespace {

// Written in one order of all ranks together, so that they never wait for each other in a circle.
class RandomPrograms {
 public:
  explicit RandomPrograms(unsigned seed) : random_(seed), receives_early_(any(2) == 0) {
    const int ranks = 1 + static_cast<int>(any(4));
    costs.resize(ranks);
    live_.resize(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      writers_.emplace_back(rank, ranks, 1);
      writers_.back().subgraph("forward", Phase::kForward, {}, {});
      writers_.back().parameter("w");
      writers_.back().program().groups.push_back(idsAt<RankId>({rank}));
    }
    if (ranks > 1) {
      for (ProgramWriter& writer : writers_) writer.program().groups.push_back(allRanks());
    }
    for (size_t count = 10 + any(60); count > 0; --count) add(any(ranks));
    for (ProgramWriter& writer : writers_) programs.push_back(writer.program());
  }

  std::vector<Program> programs;
  IdVector<RankId, ProgramCosts> costs;

 private:
  size_t any(size_t count) { return random_() % count; }
  Ticks duration() { return any(3) == 0 ? 0 : static_cast<Ticks>(any(6)); }

  std::vector<RankId> allRanks() const { return idsBelow<RankId>(writers_.size()); }

  std::string fresh(size_t rank) {
    const std::string name = fmt::format("b{}", next_++);
    writers_[rank].buffer(name, BufferKind::kActivation, {1 + static_cast<int64_t>(any(40)), 2});
    return name;
  }

  std::string live(size_t rank) { return live_[rank][any(live_[rank].size())]; }

  void charge(size_t rank, std::vector<WorkPart> parts) {
    std::erase_if(parts, [](const WorkPart& part) { return part.compute == 0 && !part.group.valid(); });
    costs[RankId(rank)].instructions.push_back(std::move(parts));
  }

  void compute(size_t rank) {
    std::vector<std::string> inputs = {"w"}, outputs = {fresh(rank)};
    for (size_t count = any(3); count > 0 && !live_[rank].empty(); --count) inputs.push_back(live(rank));
    writers_[rank].run(0, 0, inputs, outputs);
    charge(rank, {{.compute = duration()}});
    live_[rank].push_back(outputs[0]);
  }

  void send(size_t rank) {
    const size_t peer = (rank + 1 + any(writers_.size() - 1)) % writers_.size();
    const std::string name = live(rank);
    const Shape shape = writers_[rank].program().buffer(writers_[rank].buffer(name)).shape;
    writers_[rank].send(static_cast<int>(peer), name, 0);
    charge(rank, {});
    const std::string received = fmt::format("b{}", next_++);
    writers_[peer].buffer(received, BufferKind::kActivation, shape);
    writers_[peer].receive(static_cast<int>(rank), received, 0);
    if (receives_early_ && any(2) == 0) writers_[peer].inBackground();
    charge(peer, {});
    live_[peer].push_back(received);
  }

  void meet() {
    for (size_t rank = 0; rank < writers_.size(); ++rank) {
      if (live_[rank].empty()) compute(rank);
      writers_[rank].allReduce(1, live(rank));
      charge(rank, {{.group = GroupId(1), .exchange = duration(), .bytes = 8}});
    }
  }

  void release(size_t rank) {
    const size_t which = any(live_[rank].size());
    writers_[rank].release(live_[rank][which]);
    charge(rank, {});
    live_[rank].erase(live_[rank].begin() + static_cast<std::ptrdiff_t>(which));
  }

  void add(size_t rank) {
    if (live_[rank].empty()) return compute(rank);
    switch (any(8)) {
      case 0: return writers_.size() > 1 ? send(rank) : compute(rank);
      case 1: return writers_.size() > 1 && any(3) == 0 ? meet() : compute(rank);
      case 2:
        writers_[rank].accumulate(live(rank), any(2) == 0 ? "sum" : live(rank), false, 0);
        return charge(rank, {{.compute = duration()}});
      case 3:
      case 4:
      case 5: return release(rank);
      default: return compute(rank);
    }
  }

  std::mt19937 random_;
  const bool receives_early_;
  std::vector<ProgramWriter> writers_;
  std::vector<std::vector<std::string>> live_;  // by rank: buffers that hold something
  int next_ = 0;
};

using Row = std::tuple<std::string, Ticks, Ticks, Ticks>;

std::vector<Row> eventsOf(const Program& program, const std::vector<WorkPart>* costs,
                          const SecondProgramSimulator::Rank& rank) {
  std::vector<Row> rows;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions.plain()[i];
    const SecondProgramSimulator::Times& times = rank.instructions[i];
    const bool is_transfer = instruction.kind == InstructionKind::kSend ||
                             instruction.kind == InstructionKind::kReceive ||
                             instruction.kind == InstructionKind::kAllReduce;
    if (!is_transfer && costs[i].empty()) continue;
    rows.emplace_back(instructionKindName(instruction.kind), times.start, times.begun, times.end);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return std::get<1>(a) < std::get<1>(b); });
  return rows;
}

std::vector<Row> eventsOf(const Trace& trace, RankId rank) {
  std::vector<Row> rows;
  for (const TraceEvent& event : trace.events) {
    if (event.rank != rank) continue;
    std::string kind = event.name.substr(0, event.name.find(' '));
    if (event.kind == TraceEventKind::kCompute) kind = "run";
    rows.emplace_back(kind, event.start_ns, event.arrived_ns, event.end_ns);
  }
  return rows;
}

// What is held from when on, and the most at any moment.
std::pair<std::vector<std::pair<Ticks, int64_t>>, int64_t> memoryOf(const SecondProgramSimulator::Rank& rank,
                                                                    int64_t base) {
  std::vector<std::pair<Ticks, int64_t>> points;
  int64_t held = base, most = base;
  if (rank.memory.empty() || rank.memory.front().first > 0) points.emplace_back(0, base);
  for (const auto& [time, change] : rank.memory) {
    held += change;
    most = std::max(most, held);
    if (!points.empty() && points.back().first == time) points.pop_back();
    points.emplace_back(time, held);
  }
  return {points, most};
}

TEST(ProgramSimulation, OfRandomProgramsIsThatOfEveryInstructionByItself) {
  int64_t messages = 0, meetings = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    const RandomPrograms random(seed);
    const ProgramSimulationRequest request{
        .programs = random.programs,
        .costs = random.costs,
        .link = {static_cast<int64_t>(seed % 3), seed % 5 == 0 ? 1e30 : 30},
        .rendezvous = seed % 2 == 0};
    const ProgramSimulation simulation = simulatePrograms(request);
    const std::vector<SecondProgramSimulator::Rank> second = SecondProgramSimulator(request).run();
    Ticks makespan = 0;
    for (const RankId rank : simulation.busy.ids()) {
      const Program& program = random.programs[rank.index()];
      const SecondProgramSimulator::Rank& expected = second[rank.index()];
      ASSERT_EQ(expected.instructions.size(), program.instructions.size());
      const std::vector<Row> events = eventsOf(simulation.trace, rank);
      ASSERT_EQ(events, eventsOf(program, random.costs[rank].instructions.data(), expected));
      std::vector<std::pair<Ticks, int64_t>> points;
      for (const TraceMemory& memory : simulation.trace.memory) {
        if (memory.rank == rank) points.emplace_back(memory.time_ns, memory.bytes);
      }
      ASSERT_EQ(std::pair(points, simulation.peak_memory[rank]), memoryOf(expected, 24));
      for (const SecondProgramSimulator::Times& times : expected.instructions)
        makespan = std::max(makespan, times.end);
      messages += std::count_if(events.begin(), events.end(),
                                [](const Row& row) { return std::get<0>(row) == "send"; });
      meetings += std::count_if(events.begin(), events.end(),
                                [](const Row& row) { return std::get<0>(row) == "all_reduce"; });
    }
    ASSERT_EQ(simulation.makespan, makespan);
  }
  EXPECT_GT(messages, 1000);
  EXPECT_GT(meetings, 1000);
}

}  // namespace
}  // namespace pipeshard
