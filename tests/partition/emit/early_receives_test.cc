// Where receives are posted. (That programs compute the same with posted receives: emit_schedules_test.cc,
// emit_family_random_test.cc.)
#include "partition/emit/early_receives.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/background.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/simulation/program_simulation.h"
#include "partition/stages/partition_training.h"
#include "tests/ir/program/program_writer.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

// Of the middle of a pipeline: rank 1 of 3.
ProgramWriter middleRank() {
  ProgramWriter writer(1, 3, 8);
  writer.subgraph("forward", Phase::kForward, {"h"}, {"y"});
  writer.subgraph("backward_input", Phase::kBackwardInput, {"dy"}, {"dh"});
  writer.subgraph("again", Phase::kForward, {"h"}, {"y"});
  writer.program().subgraphs.back().recomputation = true;
  return writer;
}
std::string at(int microbatch) { return "@" + std::to_string(microbatch); }
void forward(ProgramWriter& writer, int k, const std::vector<std::string>& messages = {"h"}) {
  for (const std::string& message : messages) writer.receive(0, message + at(k), k);
  writer.run(0, k, {messages.back() + at(k)}, {"y" + at(k)});
  writer.send(2, "y" + at(k), k);
}
void backward(ProgramWriter& writer, int k) {
  writer.receive(2, "dy" + at(k), k);
  writer.run(1, k, {"dy" + at(k)}, {"dh" + at(k)});
  writer.send(0, "dh" + at(k), k);
}

// "F2" and "B2" for passes, "h@2" for a receive, "(h@2)" for a posted one; nothing else.
std::vector<std::string> passesAndReceives(const Program& program) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::kRun) {
      const std::string& name = program.subgraphs[instruction.subgraph.index()].name;
      texts.push_back((name == "forward" ? "F"
                       : name == "again" ? "A"
                                         : "B") +
                      std::to_string(instruction.microbatch));
    }
    if (instruction.kind != InstructionKind::kReceive) continue;
    const std::string name = program.nameOf(instruction.outputs[0]);
    texts.push_back(instruction.background ? "(" + name + ")" : name);
  }
  return texts;
}
std::vector<std::string> posted(
    ProgramWriter& writer, const std::function<bool(RankId)>& from = [](RankId) { return true; }) {
  postReceivesEarly(writer.program(), from);
  return passesAndReceives(writer.program());
}

using Texts = std::vector<std::string>;

TEST(EarlyReceives, StayWhereTheyAreFromOtherPeers) {
  ProgramWriter writer = middleRank();
  forward(writer, 0);
  forward(writer, 1);
  backward(writer, 0);
  EXPECT_EQ(posted(writer, [](RankId peer) { return peer == RankId(2); }),
            (Texts{"h@0", "(dy@0)", "F0", "h@1", "F1", "B0"}));
}

TEST(EarlyReceives, ArePostedTwoActionsAheadWhenThePeersLastMessageIsThere) {
  ProgramWriter writer = middleRank();
  forward(writer, 0);
  forward(writer, 1);
  forward(writer, 2);
  backward(writer, 0);
  forward(writer, 3);
  backward(writer, 1);
  EXPECT_EQ(posted(writer), (Texts{"h@0", "(h@1)", "F0", "(h@2)", "(dy@0)", "F1", "(h@3)", "F2", "(dy@1)",
                                   "B0", "F3", "B1"}));
}

TEST(EarlyReceives, OfOneActionArePostedTogether) {
  ProgramWriter writer = middleRank();
  for (int k = 0; k < 3; ++k) forward(writer, k, {"g", "h"});
  EXPECT_EQ(posted(writer), (Texts{"g@0", "h@0", "(g@1)", "(h@1)", "F0", "(g@2)", "(h@2)", "F1", "F2"}));
}

TEST(EarlyReceives, GoOverTheActionsOwnRecomputationAndTwoOthers) {
  ProgramWriter writer = middleRank();
  for (int k : {5, 6, 7}) forward(writer, k);
  writer.run(2, 0, {"old@0"}, {"y@0"});
  backward(writer, 0);
  EXPECT_EQ(posted(writer), (Texts{"h@5", "(h@6)", "F5", "(h@7)", "(dy@0)", "F6", "F7", "A0", "B0"}));
}

TEST(EarlyReceives, StayBehindWhatTouchesTheirBuffer) {
  ProgramWriter writer = middleRank();
  forward(writer, 0);
  writer.zero("dy@0");
  forward(writer, 1);
  backward(writer, 0);
  EXPECT_EQ(posted(writer), (Texts{"h@0", "(h@1)", "F0", "(dy@0)", "F1", "B0"}));
}

TEST(EarlyReceives, OfTheWholeStepAndThoseWithNothingToHideBehindStay) {
  ProgramWriter writer = middleRank();
  writer.receive(0, "w");
  backward(writer, 0);
  forward(writer, 1);
  writer.receive(0, "dw");
  EXPECT_EQ(posted(writer), (Texts{"w", "dy@0", "(h@1)", "B0", "F1", "dw"}));
}

// Two stages, skip connections, several messages per action.
TrainingGraph chain(int stages, int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  std::vector<ValueId> made = {builder.input("x")};
  for (int s = 0; s < stages; ++s) {
    std::vector<ValueId> inputs = {made.back(), builder.parameter("w" + std::to_string(s))};
    if (s > 0) inputs.push_back(made[made.size() - 2]);
    made.push_back(builder.op("h" + std::to_string(s), inputs));
  }
  return builder.finish({made.back()});
}

std::vector<RankProgram> emitted(const std::string& schedule, int ranks, int64_t microbatches, bool overlap) {
  const int stages = ranks * chunksOf(schedule);
  const TrainingGraph training = chain(stages, microbatches);
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, ranks);
  for (int s = 0; s + 1 < stages; ++s) options.boundaries.push_back("h" + std::to_string(s));
  Plan plan;
  plan.cluster = options.cluster;
  plan.given.overlap_receives = overlap ? OverlapReceives::kOn : OverlapReceives::kOff;
  partitionTraining(training, options, plan);
  return emitOneSize(training, plan);
}

using ActionKey = std::tuple<StageId, int, bool>;  // stage, microbatch, forward

// By peer and number of the message from it: the action that runs behind its receive.
using Takers = std::map<std::pair<RankId, int>, ActionKey>;
Takers takersOf(const Program& program) {
  Takers takers;
  std::map<RankId, int> received;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions.plain()[i].kind != InstructionKind::kReceive) continue;
    const RankId peer = program.instructions.plain()[i].peer;
    ActionKey& taker = takers[{peer, received[peer]++}];
    for (size_t run = i + 1; run < program.instructions.size(); ++run) {
      const Instruction& instruction = program.instructions.plain()[run];
      if (instruction.kind != InstructionKind::kRun) continue;
      const bool forward = program.subgraphs[instruction.subgraph.index()].phase == Phase::kForward;
      taker = {instruction.stage, instruction.microbatch, forward};
      break;
    }
  }
  return takers;
}

// For how many actions messages from one peer are under way beside what the rank does, at most. `takers`: of
// the same program with no receive posted.
size_t actionsUnderWay(const Program& program, const Takers& takers) {
  size_t most = 0;
  const BackgroundWaits waits = backgroundWaits(program);
  std::map<RankId, int> received;
  std::map<size_t, std::pair<RankId, ActionKey>> under_way;  // by receive: peer and taker
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (size_t receive : waits.receives[i]) under_way.erase(receive);
    const Instruction& instruction = program.instructions.plain()[i];
    const bool posts = instruction.kind == InstructionKind::kReceive && instruction.background;
    if (instruction.kind == InstructionKind::kReceive) {
      const std::pair<RankId, int> message{instruction.peer, received[instruction.peer]++};
      if (posts) under_way[i] = {instruction.peer, takers.at(message)};
    }
    std::map<RankId, std::set<ActionKey>> actions;
    for (const auto& [receive, what] : under_way) actions[what.first].insert(what.second);
    for (const auto& [peer, keys] : actions) most = posts ? most : std::max(most, keys.size());
  }
  return most;
}

TEST(EarlyReceives, AreAtMostThoseOfOneActionForEachPeer) {
  for (const std::string schedule :
       {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "interleaved:v=2", "dual-pipe-v"}) {
    const std::vector<RankProgram> before = emitted(schedule, 3, 9, false);
    for (const RankProgram& rank : emitted(schedule, 3, 9, true)) {
      SCOPED_TRACE(schedule + ", rank " + std::to_string(rank.program.rank.index()));
      size_t posted = 0, of_passes = 0;
      for (const Instruction& instruction : rank.program.instructions) {
        if (instruction.kind != InstructionKind::kReceive || instruction.microbatch < 0) continue;
        ++of_passes;
        if (instruction.background) ++posted;
      }
      EXPECT_GE(posted * 10, of_passes * 7);
      EXPECT_EQ(actionsUnderWay(rank.program, takersOf(before[rank.program.rank.index()].program)), 1u);
    }
  }
}

TEST(EarlyReceives, ThatAreSwappedDroppedDoubledOrPostedTooLateAreRefused) {
  std::vector<Program> programs;
  for (const RankProgram& rank : emitted("1f1b", 3, 6, true)) programs.push_back(rank.program);
  ASSERT_NO_THROW(verifyPrograms(programs));
  const auto expectRefused = [&](const std::function<void(std::vector<Instruction>&)>& change,
                                 const std::string& what, size_t at) {
    std::vector<Program> mutated = programs;
    change(mutated[1].instructions.unrolled());
    EXPECT_THROW(verifyPrograms(mutated), Error) << what << " " << at;
  };
  int tried = 0;
  const std::vector<Instruction>& instructions = programs[1].instructions.plain();
  const auto isPosted = [&](size_t i) {
    return instructions[i].kind == InstructionKind::kReceive && instructions[i].background;
  };
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (!isPosted(i)) continue;
    const std::ptrdiff_t position = i;
    expectRefused([&](auto& list) { list.erase(list.begin() + position); }, "dropped", i);
    expectRefused([&](auto& list) { list.insert(list.begin() + position, list[i]); }, "doubled", i);
    for (size_t j = i + 1; j < instructions.size(); ++j) {
      if (!isPosted(j) || instructions[j].peer != instructions[i].peer) continue;
      expectRefused([&](auto& list) { std::swap(list[i], list[j]); }, "swapped", i);
      break;
    }
    size_t use = i + 1;
    const auto& buffer = instructions[i].outputs[0];
    while (std::count(instructions[use].inputs.begin(), instructions[use].inputs.end(), buffer) == 0) ++use;
    expectRefused(
        [&](auto& list) {
          std::rotate(list.begin() + position, list.begin() + position + 1, list.begin() + use + 1);
        },
        "too late", i);
    ++tried;
  }
  EXPECT_GT(tried, 10);
}

ProgramSimulation simulated(const std::vector<RankProgram>& ranks) {
  std::vector<Program> programs;
  IdVector<RankId, ProgramCosts> costs;
  for (const RankProgram& rank : ranks) {
    programs.push_back(rank.program);
    ProgramCosts& cost = costs.emplace_back();
    for (const Instruction& instruction : rank.program.instructions) {
      WorkPart work;
      if (instruction.kind == InstructionKind::kRun) work.compute = 1000;
      cost.instructions.push_back(instruction.kind == InstructionKind::kRun ? std::vector{work}
                                                                            : std::vector<WorkPart>{});
    }
  }
  ProgramSimulationRequest request{.programs = programs, .costs = costs};
  request.link.latency_ns = 200;
  request.link.bytes_per_ns = 1e9;
  return simulatePrograms(request);
}

TEST(EarlyReceives, HideMessagesBehindPassesInTheSimulation) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    const ProgramSimulation off = simulated(emitted(schedule, 2, 8, false)),
                            on = simulated(emitted(schedule, 2, 8, true));
    EXPECT_LT(on.makespan, off.makespan - 4 * 200) << schedule;
    EXPECT_EQ(on.busy, off.busy) << schedule;
  }
}

}  // namespace
}  // namespace pipeshard
