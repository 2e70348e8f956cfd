// emitPrograms on small training graphs: what is computed (by symbols), what travels, what is kept.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/expect_error.h"
#include "tests/partition/emit/symbolic_execution.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Plan planFor(const TrainingGraph& training, const std::vector<std::string>& boundaries,
             const std::string& schedule) {
  PartitionOptions options;
  options.boundaries = boundaries;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, static_cast<int>(boundaries.size()) + 1);
  Plan plan;
  plan.microbatches = training.microbatches;
  plan.cluster = options.cluster;
  partitionTraining(training, options, plan);
  return plan;
}

std::vector<RankProgram> emit(const TrainingGraph& training, const std::vector<std::string>& boundaries,
                              const std::string& schedule = "1f1b") {
  return emitOneSize(training, planFor(training, boundaries, schedule));
}

// Emits for every schedule and expects exactly the results that the definition gives, in two steps.
void expectExact(const TrainingGraph& training, const std::vector<std::string>& boundaries) {
  const std::vector<Symbols> expected = executeDefinition(training, 2);
  for (const std::string schedule : {"sequential", "gpipe", "1f1b"}) {
    EXPECT_EQ(executePrograms(emit(training, boundaries, schedule), 2), expected) << schedule;
  }
}

std::vector<std::string> instructionTexts(const Program& program, InstructionKind kind) {
  std::vector<std::string> texts;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == kind) texts.push_back(describeInstruction(program, instruction));
  }
  return texts;
}

const Buffer& bufferOf(const Program& program, const std::string& name) {
  const auto found = std::find_if(program.buffers.begin(), program.buffers.end(),
                                  [&](const Buffer& b) { return b.name == name; });
  if (found == program.buffers.end()) throw std::runtime_error("no buffer " + name);
  return *found;
}

TEST(EmitPrograms, ChainsComputeTheDefinitionForAllStageAndMicrobatchCounts) {
  for (int64_t microbatches : {1, 2, 3, 4, 5, 8}) {
    const TrainingGraph training = chainTraining(5, microbatches);
    expectExact(training, {});
    expectExact(training, {"h0"});
    expectExact(training, {"h0", "h1", "h3"});
    expectExact(training, {"h0", "h1", "h2", "h3", "h4"});
  }
}

TEST(EmitPrograms, OneStageNeedsNoMessages) {
  const auto ranks = emit(chainTraining(3, 2), {});
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].program.world_size, 1);
  EXPECT_THAT(instructionTexts(ranks[0].program, InstructionKind::kSend), ElementsAre());
  EXPECT_THAT(instructionTexts(ranks[0].program, InstructionKind::kReceive), ElementsAre());
}

TEST(EmitPrograms, ForwardStatesAreHandedFromMicrobatchToMicrobatchOnTheStageThatUpdatesThem) {
  TrainingBuilder builder(3);
  const ValueId a = builder.stateful("a", {builder.input("x"), builder.parameter("wa")});
  const ValueId b = builder.stateful("b", {a, builder.parameter("wb")});
  const TrainingGraph training = builder.finish({builder.op("c", {b})});
  expectExact(training, {});
  expectExact(training, {"a"});
  const auto ranks = emit(training, {"a"});
  for (const auto& [rank, name] : {std::pair(0u, std::string("a")), std::pair(1u, std::string("b"))}) {
    const Program& program = ranks[rank].program;
    EXPECT_EQ(bufferOf(program, name + "_state").kind, BufferKind::kForwardState);
    EXPECT_TRUE(bufferOf(program, name + "_state").source.has_value());
    std::vector<std::string> handed_on;
    for (const std::string& text : instructionTexts(program, InstructionKind::kAccumulate)) {
      if (text.find("_state") != std::string::npos) handed_on.push_back(text);
    }
    EXPECT_THAT(handed_on,
                ElementsAre(HasSubstr("overwrite \"" + name + "_state_new@0\" -> \"" + name + "_state\""),
                            HasSubstr("_new@1\""), HasSubstr("_new@2\"")));
    size_t results = 0;
    for (const Result& result : program.results)
      results += result.kind == Result::Kind::kForwardState && result.name == name + "_state";
    EXPECT_EQ(results, 1u);
  }
}

TEST(EmitPrograms, RefusesAForwardStateThatTwoStagesUpdateInTurn) {
  TrainingBuilder builder(2);
  const ValueId a = builder.stateful("a", {builder.input("x"), builder.parameter("wa")});
  const ValueId b = builder.stateful("b", {a, builder.parameter("wb")});
  TrainingGraph training = builder.finish({b});
  const ForwardState first = training.forward_states[0];
  const ForwardState second = training.forward_states[1];
  for (Node& node : training.graph.nodes)
    std::replace(node.inputs.begin(), node.inputs.end(), second.value, first.updated);
  training.forward_states = {{first.value, second.updated}};
  expectExact(training, {});
  try {
    emit(training, {"a"});
    FAIL() << "no refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.what(), HasSubstr("'a_state' is read in stage 0 and updated in stage 1"));
  }
}

TrainingGraph skipTraining(int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  const ValueId x = builder.input("x");
  const ValueId a = builder.op("a", {x, builder.parameter("wa")});
  const ValueId b = builder.op("b", {a, builder.parameter("wb")});
  const ValueId c = builder.op("c", {b, a, x});
  const ValueId d = builder.op("d", {c, a, b});
  return builder.finish({d, a});
}

TEST(EmitPrograms, SkipConnectionsOverSeveralStagesComputeTheDefinition) {
  for (int64_t microbatches : {1, 2, 5}) expectExact(skipTraining(microbatches), {"a", "b", "c"});
}

TEST(EmitPrograms, SendAValueOnceToEachStageThatReadsItNearestFirst) {
  const auto ranks = emit(skipTraining(1), {"a", "b", "c"});
  EXPECT_THAT(instructionTexts(ranks[0].program, InstructionKind::kSend),
              ElementsAre("send microbatch=0 peer=1 \"a@0\"", "send microbatch=0 peer=2 \"a@0\"",
                          "send microbatch=0 peer=3 \"a@0\""));
}

TrainingGraph tiedTraining(int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  const ValueId x = builder.input("x");
  const ValueId tied = builder.parameter("tied");
  const ValueId a = builder.op("a", {x, tied});
  const ValueId b = builder.op("b", {a, builder.parameter("wb"), tied});
  const ValueId c = builder.op("c", {b, builder.smallParameter("wc")});
  return builder.finish({builder.op("d", {c, tied})}, 2);
}

TEST(EmitPrograms, TiedParametersComputeTheDefinitionBitByBit) {
  for (int64_t microbatches : {1, 2, 3, 6}) {
    expectExact(tiedTraining(microbatches), {});
    expectExact(tiedTraining(microbatches), {"a"});
    expectExact(tiedTraining(microbatches), {"a", "b", "c"});
  }
}

TEST(EmitPrograms, TiedParametersHaveOneOwnerAndFreshCopies) {
  const auto ranks = emit(tiedTraining(2), {"a", "b", "c"});
  EXPECT_EQ(bufferOf(ranks[0].program, "tied").kind, BufferKind::kParameter);
  EXPECT_EQ(bufferOf(ranks[1].program, "tied").kind, BufferKind::kActivation);
  EXPECT_EQ(describeInstruction(ranks[3].program, ranks[3].program.instructions.plain()[0]),
            "receive peer=0 -> \"tied\"");
  EXPECT_THAT(instructionTexts(ranks[3].program, InstructionKind::kSend).back(),
              "send peer=0 \"grad_tied@part0\"");
  for (size_t r = 1; r < ranks.size(); ++r) {
    for (const Result& result : ranks[r].program.results) EXPECT_NE(result.name, "tied");
  }
  EXPECT_THROW(bufferOf(ranks[2].program, "tied"), std::runtime_error);
}

TEST(EmitPrograms, TotalsAreSummedInAPrologueOnEachStageThatReadsThem) {
  for (int64_t microbatches : {1, 3}) {
    TrainingBuilder builder(microbatches);
    const ValueId x = builder.input("x");
    const ValueId labels = builder.input("labels");
    const ValueId scale = builder.input("scale", -1);
    const ValueId count = builder.total("count", labels);
    const ValueId other = builder.total("other", scale);
    const ValueId a = builder.op("a", {x, builder.parameter("wa"), other, scale});
    const ValueId b = builder.op("b", {a, count, builder.weight("frozen")});
    const TrainingGraph training = builder.finish({b, labels, count, scale});
    expectExact(training, {});
    expectExact(training, {"a"});
    expectExact(training, {"a", "b"});
    const auto ranks = emit(training, {"a", "b"});
    EXPECT_EQ(bufferOf(ranks[2].program, "count").kind, BufferKind::kAccumulator);
    EXPECT_THROW(bufferOf(ranks[2].program, "other"), std::runtime_error);
    EXPECT_EQ(instructionTexts(ranks[0].program, InstructionKind::kLoadInput)[0],
              "load_input microbatch=0 -> \"scale\"");
  }
}

TEST(EmitPrograms, GradientsThatAreActivationGradientsOfALaterStageReachTheOwner) {
  for (int64_t microbatches : {1, 4}) {
    TrainingBuilder builder(microbatches);
    const ValueId x = builder.input("x");
    const ValueId a = builder.op("a", {x, builder.parameter("wa")});
    const ValueId b = builder.bias("b", a, builder.parameter("bias"));
    const ValueId c = builder.op("c", {b, builder.parameter("wc")});
    const TrainingGraph training = builder.finish({builder.bias("d", c, builder.parameter("bias2"))});
    expectExact(training, {"a"});
    expectExact(training, {"b"});
    expectExact(training, {"a", "b", "c", "d"});
  }
}

TEST(EmitPrograms, WeightsAndConstantsStayWhereTheyAre) {
  TrainingBuilder builder(2);
  const ValueId x = builder.input("x");
  const ValueId frozen = builder.weight("frozen");
  const ValueId constant = builder.constant("constant");
  builder.parameter("unread");
  const ValueId a = builder.op("a", {x, frozen, constant, builder.parameter("wa")});
  const TrainingGraph training =
      builder.finish({builder.op("b", {a, frozen, constant, builder.smallParameter("wb")})});
  const auto ranks = emit(training, {"a"});
  for (const RankProgram& rank : ranks) {
    const Buffer& buffer = bufferOf(rank.program, "frozen");
    EXPECT_EQ(buffer.kind, BufferKind::kWeight);
    EXPECT_EQ(std::get<WeightReference>(*buffer.source).location, "/models/weights.bin");
    EXPECT_EQ(buffer.source_type, DataType::kFloat32);
    EXPECT_THROW(bufferOf(rank.program, "constant"), std::runtime_error);
    EXPECT_TRUE(findValue(rank.subgraphs[0], "constant").valid());
    EXPECT_THROW(bufferOf(rank.program, "unread"), std::runtime_error);
  }
  EXPECT_TRUE(std::holds_alternative<Constant>(*bufferOf(ranks[1].program, "wb").source));
  const std::vector<std::string>& inputs = ranks[1].program.subgraphs[0].inputs;
  EXPECT_EQ(std::count(inputs.begin(), inputs.end(), "wb"), 1);
}

TEST(EmitPrograms, ParametersWithoutGradientAreWeightsAndResults) {
  TrainingBuilder builder(2);
  const ValueId x = builder.input("x");
  const ValueId a = builder.op("a", {x, builder.parameter("wa")});
  builder.op("dead", {a, builder.parameter("stuck")});
  const TrainingGraph training = builder.finish({builder.op("b", {a})});
  expectExact(training, {});
  const auto ranks = emit(training, {"a"});
  EXPECT_EQ(bufferOf(ranks[1].program, "stuck").kind, BufferKind::kWeight);
  EXPECT_EQ(ranks[1].program.results.back().name, "stuck");
  EXPECT_THAT(printProgram(ranks[1].program), Not(HasSubstr("dead")));
}

TEST(EmitPrograms, BufferNamesStayUniqueWhenTheModelUsesTheSeparator) {
  TrainingBuilder builder(2);
  const ValueId x = builder.input("x");
  const ValueId a = builder.op("a", {x, builder.parameter("w")});
  const ValueId clash = builder.op("a@0", {a, builder.parameter("a@1")});
  const TrainingGraph training = builder.finish({builder.op("b", {clash, a})});
  expectExact(training, {"a", "a@0"});
}

// At most how many microbatches of a value are held at once, by kFree and first write.
int64_t mostHeld(const Program& program, const std::string& value) {
  std::set<size_t> held;
  size_t most = 0;
  for (const Instruction& instruction : program.instructions) {
    for (BufferId id : instruction.outputs) {
      if (program.buffer(id).value == value) held.insert(id.index());
    }
    most = std::max(most, held.size());
    if (instruction.kind == InstructionKind::kFree) held.erase(instruction.inputs[0].index());
  }
  return most;
}

TEST(EmitPrograms, ActivationsAreHeldForAsManyMicrobatchesAsTheScheduleSays) {
  const TrainingGraph training = chainTraining(7, 8);
  const auto ranks = emit(training, {"h1", "h3", "h5"}, "1f1b");
  EXPECT_EQ(mostHeld(ranks[0].program, "h0"), 4);
  EXPECT_EQ(mostHeld(ranks[1].program, "h2"), 3);
  EXPECT_EQ(mostHeld(ranks[2].program, "h4"), 2);
  EXPECT_EQ(mostHeld(ranks[3].program, "h6"), 1);
  EXPECT_EQ(mostHeld(ranks[1].program, "h1"), 3);
  const auto gpipe = emit(training, {"h1", "h3", "h5"}, "gpipe");
  EXPECT_EQ(mostHeld(gpipe[3].program, "h6"), 8);
  const auto sequential = emit(training, {"h1", "h3", "h5"}, "sequential");
  EXPECT_EQ(mostHeld(sequential[0].program, "h0"), 1);
  // until the next microbatch proves that it has arrived
  EXPECT_LE(mostHeld(sequential[3].program, "d_h5_by_h6"), 2);
}

TEST(EmitPrograms, RefusesPlansThatItCannotRun) {
  const TrainingGraph training = chainTraining(3, 2);
  const auto expect = [&](const Plan& plan, const std::string& message) {
    try {
      emitOneSize(training, plan);
      ADD_FAILURE() << "accepted; expected " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
      EXPECT_THAT(error.message(), HasSubstr(message));
    }
  };
  Plan plan = planFor(training, {"h0"}, "gpipe");
  plan.microbatches = 3;
  expect(plan, "the plan has 3 microbatches, the training graph was built for 2");
  plan = planFor(training, {"h0"}, "gpipe");
  plan.stages[StageId(1)].devices = idsAt<RankId>({0, 1});
  expect(plan,
         "the stages are on devices [0,0,1]; expected 0 to 2, and stages that share a device to list the "
         "same devices");
  plan.stages[StageId(1)].devices = idsAt<RankId>({1, 2});
  expect(plan, "stage 1 has the logical mesh [1,1] and 2 device(s)");
  plan.stages[StageId(1)].mesh_shape = {2, 1};
  expect(plan,
         "stage 1 has 2 data-parallel devices, but a microbatch has only 1 example(s) (a batch of 2 in 2 "
         "microbatches)");
  plan.stages.clear();
  expect(plan, "the plan has no stages");
}

// Operators without a factor rule need whole tensors; their parts are gathered in the order of ranks.
TEST(EmitPrograms, RefusesToGatherRowsOfDevicesInAnotherOrder) {
  const TrainingFamily family(4, 2, [](int64_t) { return chainTraining(2, 2); });
  Plan plan = planFor(family.base(), {}, "gpipe");
  StagePlan& stage = plan.stages[StageId(0)];
  stage.mesh_shape = {2, 1};
  stage.devices = idsAt<RankId>({0, 1});
  EXPECT_NO_THROW(emitPrograms(family, plan));
  stage.devices = idsAt<RankId>({1, 0});
  EXPECT_ERROR(emitPrograms(family, plan), ErrorCode::kConfiguration,
               "stages[0].devices: the devices exchange parts of tensors; expected them in ascending order");
}

TEST(EmitPrograms, GivesTheSameProgramsEveryTime) {
  const TrainingGraph training = tiedTraining(3);
  const auto first = emit(training, {"a", "b"});
  const auto second = emit(training, {"a", "b"});
  for (size_t r = 0; r < first.size(); ++r) {
    EXPECT_EQ(programToJson(first[r].program), programToJson(second[r].program));
    EXPECT_EQ(programToJson(programFromJson(programToJson(first[r].program))),
              programToJson(first[r].program));
  }
}

// Set PIPESHARD_UPDATE_GOLDEN=1 to write the file anew; then look at the difference.
TEST(EmitPrograms, TwoStagesPrintAsInTheGoldenFile) {
  std::string text;
  for (const RankProgram& rank : emit(chainTraining(2, 2), {"h0"})) text += printProgram(rank.program) + "\n";
  const std::string path = std::string(PIPESHARD_SOURCE_DIR) + "/tests/golden/partition/two_stages.txt";
  if (const char* update = std::getenv("PIPESHARD_UPDATE_GOLDEN");
      update != nullptr && std::string(update) == "1") {
    std::ofstream(path) << text;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path;
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str());
}

}  // namespace
}  // namespace pipeshard
