// Random training graphs, cut at random places: Programs compute what the definition says, and a mutated
// Program is refused.
#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/partition/emit/symbolic_execution.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

TrainingGraph randomTraining(std::mt19937& random) {
  TrainingBuilder builder(1 + static_cast<int64_t>(random() % 5));
  std::vector<ValueId> values = {builder.input("x"), builder.input("mask", -1), builder.constant("c"),
                                 builder.weight("frozen")};
  if (random() % 2) values.push_back(builder.total("count", values[random() % 2]));
  std::vector<ValueId> parameters;
  const auto anyParameter = [&] {
    if (!parameters.empty() && random() % 3 == 0) return parameters[random() % parameters.size()];
    const std::string name = "w" + std::to_string(parameters.size());
    parameters.push_back(random() % 2 ? builder.parameter(name) : builder.smallParameter(name));
    return parameters.back();
  };
  const size_t first_produced = values.size();
  const size_t nodes = 2 + random() % 8;
  for (size_t i = 0; i < nodes; ++i) {
    const std::string name = "h" + std::to_string(i);
    const bool has_produced = values.size() > first_produced;
    if (has_produced && random() % 4 == 0) {
      values.push_back(builder.bias(
          name, values[first_produced + random() % (values.size() - first_produced)], anyParameter()));
      continue;
    }
    std::vector<ValueId> inputs = {values.back()};
    for (size_t j = random() % 3; j > 0; --j) inputs.push_back(values[random() % values.size()]);
    if (random() % 2) inputs.push_back(anyParameter());
    values.push_back(random() % 4 == 0 ? builder.stateful(name, inputs) : builder.op(name, inputs));
  }
  return builder.finish({values.back(), values[random() % values.size()], values[first_produced]},
                        random() % 3);
}

// At most so many stages, cut at random places.
Plan randomPlan(const TrainingGraph& training, const std::string& schedule, size_t most_stages,
                std::mt19937& random) {
  const size_t forward = std::count(training.node_phase.begin(), training.node_phase.end(), Phase::kForward);
  const size_t stages = 1 + random() % std::min(forward, most_stages);
  std::vector<size_t> cuts(forward - 1);
  for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = i;
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(stages - 1);
  std::sort(cuts.begin(), cuts.end());
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, stages);
  options.stages = uniformStages(stages);
  std::vector<std::string> names;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.node_phase[n] == Phase::kForward)
      names.push_back(training.graph.value(training.graph.nodes[n].outputs[0]).name);
  }
  for (size_t cut : cuts) options.boundaries.push_back(names[cut]);
  Plan plan;
  plan.microbatches = training.microbatches;
  partitionTraining(training, options, plan);
  return plan;
}

std::vector<RankProgram> emitRandom(const TrainingGraph& training, const std::string& schedule,
                                    std::mt19937& random) {
  return emitOneSize(training, randomPlan(training, schedule, 5, random));
}

// Several stages per rank, placed and ordered at random.
std::vector<RankProgram> emitChunks(const TrainingGraph& training, std::mt19937& random) {
  Plan plan = randomPlan(training, "gpipe", 8, random);
  const Schedule schedule =
      randomSchedule(plan.stages.size(), 1 + static_cast<int>(random() % 4), training.microbatches, random);
  for (const StageId s : schedule.rank_of_stage.ids()) {
    plan.stages[s].devices = {RankId(schedule.rank_of_stage[s].index())};
  }
  recomputeAtRandom(plan, random);
  return emitForSchedule(TrainingFamily(training), plan, schedule);
}

TEST(RandomTrainingGraphs, ProgramsComputeExactlyTheDefinitionUnderEverySchedule) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const TrainingGraph training = randomTraining(random);
    const std::vector<Symbols> expected = executeDefinition(training, 2);
    for (const std::string schedule : {"sequential", "gpipe", "1f1b"}) {
      ASSERT_EQ(executePrograms(emitRandom(training, schedule, random), 2), expected)
          << "seed " << seed << ", " << schedule;
    }
  }
}

TEST(RandomTrainingGraphs,
     ProgramsComputeExactlyTheDefinitionWithAnyStagesOnARankInAnyOrderAndAnyRecomputation) {
  int shared = 0, recomputed = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const TrainingGraph training = randomTraining(random);
    const std::vector<RankProgram> ranks = emitChunks(training, random);
    ASSERT_EQ(executePrograms(ranks, 2), executeDefinition(training, 2)) << "seed " << seed;
    for (const RankProgram& rank : ranks) {
      for (const Subgraph& subgraph : rank.program.subgraphs) {
        shared += subgraph.name.starts_with("stage") ? 1 : 0;
        recomputed += subgraph.recomputation ? 1 : 0;
      }
    }
  }
  EXPECT_GT(shared, 5000);
  EXPECT_GT(recomputed, 500);
}

// Runs one rank and, of the others, only what it needs to go on: the laziest peers that the messages allow.
class LazyExecution {
 public:
  explicit LazyExecution(const std::vector<Program>& programs)
      : programs_(programs), at_(programs.size()), sends_(programs.size()) {
    for (size_t r = 0; r < programs.size(); ++r) sends_[r].resize(programs[r].buffers.size());
  }

  // Instructions that free a sent buffer which its receiver does not have yet, up to the frees at the end of
  // the step.
  std::vector<std::string> waitingFrees(size_t rank) {
    const std::vector<Instruction>& instructions = programs_[rank].instructions.plain();
    size_t end = instructions.size();
    while (end > 0 && instructions[end - 1].kind == InstructionKind::kFree) --end;
    std::vector<std::string> waiting;
    while (at_[rank] < end) {
      const Instruction& instruction = instructions[at_[rank]];
      if (instruction.kind == InstructionKind::kFree) {
        for (const auto& [peer, number] : sends_[rank][instruction.inputs[0].index()]) {
          if (received_[{rank, peer}] <= number)
            waiting.push_back(describeInstruction(programs_[rank], instruction));
        }
      }
      step(rank);
    }
    return waiting;
  }

 private:
  void step(size_t rank) {
    const Instruction& instruction = programs_[rank].instructions.plain()[at_[rank]];
    const size_t peer = instruction.peer.index();
    if (instruction.kind == InstructionKind::kReceive) {
      while (sent_[{peer, rank}] <= received_[{peer, rank}]) step(peer);
      ++received_[{peer, rank}];
    }
    if (instruction.kind == InstructionKind::kSend)
      sends_[rank][instruction.inputs[0].index()].emplace_back(peer, sent_[{rank, peer}]++);
    ++at_[rank];
  }

  const std::vector<Program>& programs_;
  std::vector<size_t> at_;
  // by rank and buffer: peer, message number
  std::vector<std::vector<std::vector<std::pair<size_t, size_t>>>> sends_;
  std::map<std::pair<size_t, size_t>, size_t> sent_, received_;
};

std::vector<Program> randomPrograms(unsigned seed, std::mt19937& random) {
  std::vector<Program> programs;
  for (RankProgram& rank : emitRandom(randomTraining(random), scheduleNames()[seed % 3], random))
    programs.push_back(std::move(rank.program));
  return programs;
}

TEST(RandomTrainingGraphs, FreesInsideTheStepNeverWaitForAReceiver) {
  size_t ranks = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Program> programs = randomPrograms(seed, random);
    for (size_t r = 0; r < programs.size(); ++r) {
      EXPECT_EQ(LazyExecution(programs).waitingFrees(r), std::vector<std::string>())
          << "seed " << seed << " rank " << r;
      ranks += programs.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(ranks, 50u);
}

bool refused(const std::vector<Program>& programs) {
  try {
    verifyPrograms(programs);
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInternal;
  }
}

// Without any one of its instructions a program is wrong, except where nothing depends on it: updates, and
// sums beyond the first, whose absence changes numbers only.
TEST(RandomTrainingGraphs, AMissingInstructionIsFound) {
  size_t mutations = 0;
  size_t states = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Program> programs = randomPrograms(seed, random);
    for (size_t r = 0; r < programs.size(); ++r) {
      for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
        const Instruction& instruction = programs[r].instructions.plain()[i];
        if (instruction.kind == InstructionKind::kUpdate) continue;
        if (instruction.kind == InstructionKind::kAccumulate && !instruction.overwrite) continue;
        std::vector<Program> mutated = programs;
        mutated[r].instructions.unrolled().erase(mutated[r].instructions.begin() + i);
        EXPECT_TRUE(refused(mutated))
            << "seed " << seed << " rank " << r << ": " << describeInstruction(programs[r], instruction);
        ++mutations;
        const bool hands_on = instruction.kind == InstructionKind::kAccumulate &&
                              programs[r].buffer(instruction.outputs[0]).kind == BufferKind::kForwardState;
        states += hands_on ? 1 : 0;
      }
    }
  }
  EXPECT_GT(mutations, 1000u);
  EXPECT_GT(states, 50u);
}

TEST(RandomTrainingGraphs, ADuplicatedInstructionIsFound) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Program> programs = randomPrograms(seed, random);
    for (size_t r = 0; r < programs.size(); ++r) {
      for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
        const Instruction instruction = programs[r].instructions.plain()[i];
        if (instruction.kind == InstructionKind::kUpdate || instruction.kind == InstructionKind::kAccumulate)
          continue;
        std::vector<Program> mutated = programs;
        mutated[r].instructions.unrolled().insert(mutated[r].instructions.begin() + i, instruction);
        EXPECT_TRUE(refused(mutated))
            << "seed " << seed << " rank " << r << ": " << describeInstruction(programs[r], instruction);
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard
