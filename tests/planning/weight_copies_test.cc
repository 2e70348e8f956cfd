// Mixed precision copies a weight into its narrower type once per step, however many microbatches there are;
// devices that share weights out gather the copies, not the weights.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "partition/stages/balance.h"
#include "planning/pipeline.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

PlannedTraining plan(const std::string& cluster, const std::string& stages, const std::string& method = "",
                     int64_t microbatches = 4, const std::string& schedule = "1f1b",
                     const std::vector<std::string>& freeze = {}, const std::string& model = "gpt2") {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + model + ".onnx";
  request.partition.cluster = parseCluster(cluster);
  request.dimensions = {{"batch", 16}};
  request.microbatches = microbatches;
  request.given.precision = DataType::kBfloat16;
  request.given.freeze = freeze;
  request.given.optimizer = parseOptimizer("adam:lr=1e-3");
  request.partition.schedule = parseSchedule(schedule);
  request.partition.stages = parseStages(stages);
  if (!method.empty()) request.partition.sharding.method = parseShardingMethod(method);
  return planTraining(request, [](const std::string&) {});
}

struct Copies {
  int runs = 0;          // of what makes copies
  int casts = 0;         // in what it runs
  int cast_in_pass = 0;  // nodes of passes that narrow a parameter
};

Copies copiesIn(const RankProgram& rank) {
  Copies found;
  std::set<std::string> weights;
  for (const Buffer& buffer : rank.program.buffers) {
    if (buffer.kind == BufferKind::kParameter) weights.insert(buffer.value);
  }
  for (const Instruction& instruction : rank.program.instructions) {
    if (instruction.kind != InstructionKind::kRun) continue;
    const bool copies = rank.program.subgraphs[instruction.subgraph.index()].name.ends_with("weight_copies");
    if (copies) ++found.runs;
    const Graph& graph = rank.subgraphs[instruction.subgraph.index()];
    for (const Node& node : graph.nodes) {
      if (!node.is("Cast") || !weights.contains(graph.value(node.inputs[0]).name)) continue;
      if (graph.dataType(node.outputs[0]) != DataType::kBfloat16) continue;
      ++(copies ? found.casts : found.cast_in_pass);
    }
  }
  return found;
}

TEST(WeightCopies, AreMadeOnceInEveryStageOfAPipeline) {
  for (const int64_t microbatches : {1, 4, 8}) {
    const PlannedTraining planned = plan("1x4", "uniform:4", "", microbatches);
    int casts = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Copies found = copiesIn(planned.whole.ranks.of(RankId(rank)));
      EXPECT_EQ(found.runs, 1) << rank;
      EXPECT_EQ(found.cast_in_pass, 0) << rank;
      casts += found.casts;
    }
    EXPECT_EQ(casts, 51);  // one of the tied weight, which the last stage gets from the first
  }
}

// What goes between ranks once per step and is no gradient, by type.
std::map<DataType, int64_t> sharedBytes(const PlannedTraining& planned, int ranks) {
  std::map<DataType, int64_t> bytes;
  for (int r = 0; r < ranks; ++r) {
    const RankProgram rank = planned.whole.ranks.of(RankId(r));
    for (const Instruction& instruction : rank.program.instructions) {
      if (instruction.kind != InstructionKind::kSend || instruction.microbatch >= 0) continue;
      const Buffer& buffer = rank.program.buffer(instruction.inputs[0]);
      if (buffer.kind != BufferKind::kGradient)
        bytes[buffer.data_type] += byteCount(buffer.data_type, buffer.shape);
    }
  }
  return bytes;
}

// 256 tokens of 64 numbers: the last stage multiplies with it alone.
TEST(WeightCopies, OfATiedWeightTravelInItsPlace) {
  const std::map<DataType, int64_t> narrow = {{DataType::kBfloat16, 256 * 64 * 2}};
  EXPECT_EQ(sharedBytes(plan("1x2", "uniform:2"), 2), narrow);
  EXPECT_EQ(sharedBytes(plan("1x4", "uniform:4"), 4), narrow);
  const std::map<DataType, int64_t> of_both = {{DataType::kBfloat16, 2 * 256 * 64 * 2}};
  EXPECT_EQ(sharedBytes(plan("2x2", "uniform:2"), 4), of_both) << "two devices of a stage each";
}

// Bytes that a device has gathered of parameters and their copies in one step, by type.
std::map<DataType, int64_t> gathered(const PlannedTraining& planned) {
  const RankProgram rank = planned.whole.ranks.of(RankId(0));
  std::map<DataType, int64_t> bytes;
  for (const Instruction& instruction : rank.program.instructions) {
    if (!instruction.subgraph.valid()) continue;
    const Graph& graph = rank.subgraphs[instruction.subgraph.index()];
    for (const Node& node : graph.nodes) {
      if (node.domain != kPipeshardDomain || node.op_type != "AllGather") continue;
      bytes[graph.dataType(node.outputs[0])] += graph.bytes(node.outputs[0]);
    }
  }
  return bytes;
}

// ZeRO-2 gathers every copy once per step, ZeRO-3 in the forward and in the backward pass of every
// microbatch. The looked-up embeddings alone are gathered in float32.
TEST(WeightCopies, AreWhatZeroGathers) {
  for (const int64_t microbatches : {1, 4}) {
    std::map<DataType, int64_t> two = gathered(plan("1x4", "uniform:1", "zero2", microbatches));
    std::map<DataType, int64_t> three = gathered(plan("1x4", "uniform:1", "zero3", microbatches));
    fmt::print("{} microbatches: zero2 {} bytes in bfloat16, {} in float32; zero3 {}, {}\n", microbatches,
               two[DataType::kBfloat16], two[DataType::kFloat32], three[DataType::kBfloat16],
               three[DataType::kFloat32]);
    EXPECT_GT(two[DataType::kBfloat16], 4 * two[DataType::kFloat32]);
    EXPECT_GT(three[DataType::kBfloat16], 4 * three[DataType::kFloat32]);
  }
}

TEST(WeightCopies, OfTensorParallelWeightsNeedNoMessage) {
  for (const char* method : {"tensor-parallel", "megatron:2,2", "megatron-zero2:2,2"}) {
    const PlannedTraining planned = plan("1x4", "uniform:1", method);
    const Copies found = copiesIn(planned.whole.ranks.of(RankId(0)));
    EXPECT_EQ(found.runs, 1) << method;
    EXPECT_EQ(found.cast_in_pass, 0) << method;
  }
}

TEST(WeightCopies, OfWeightsThatAreNotTrainedAreMadeOfTheirFiles) {
  const PlannedTraining planned = plan("1x2", "uniform:2", "", 4, "1f1b", {"h\\.[01]\\."});
  const RankProgram rank = planned.whole.ranks.of(RankId(0));
  const Copies found = copiesIn(rank);
  EXPECT_EQ(found.runs, 1);
  const auto frozen =
      std::count_if(rank.program.buffers.begin(), rank.program.buffers.end(), [](const Buffer& buffer) {
        return buffer.kind == BufferKind::kWeight && buffer.source && buffer.data_type == DataType::kFloat32;
      });
  EXPECT_GT(frozen, 10);
}

TEST(WeightCopies, OfVersionsAreMadeWhenTheyAreFirstRead) {
  const PlannedTraining planned = plan("1x2", "uniform:2", "", 1, "pipedream", {}, "llama");
  const RankProgram rank = planned.whole.ranks.of(RankId(0));
  int updates = 0;
  for (const Instruction& instruction : rank.program.instructions)
    updates += instruction.kind == InstructionKind::kUpdate ? 1 : 0;
  const Copies found = copiesIn(rank);
  EXPECT_GT(updates, 1);
  EXPECT_LE(found.runs, updates);
  EXPECT_GT(found.runs, 1);
  EXPECT_EQ(found.cast_in_pass, 0);
}

PlanRequest mlpRequest(int devices) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/mlp.onnx";
  request.partition.cluster = uniformCluster(1, devices);
  request.dimensions = {{"batch", 16}};
  request.microbatches = 2;
  request.given.precision = DataType::kBfloat16;
  return request;
}

// Boundaries behind copies of weights, which are made where they are read all the same: no weight travels.
TEST(WeightCopies, AreMadeInTheStageOfTheirReader) {
  PlanRequest behind_copies = mlpRequest(3), balanced = mlpRequest(3), many = mlpRequest(6);
  behind_copies.partition.boundaries = {"dense2.weight/bfloat16", "dense3.weight/bfloat16"};
  balanced.partition.balance = parseBalance("parameters");
  many.partition.balance = parseBalance("time");
  for (const PlanRequest& request : {behind_copies, balanced, many}) {
    const PlannedTraining planned = planTraining(request, [](const std::string&) {});
    const int ranks = static_cast<int>(planned.plan.stages.size());
    EXPECT_TRUE(sharedBytes(planned, ranks).empty()) << ranks;
    int casts = 0;
    for (int rank = 0; rank < ranks; ++rank) casts += copiesIn(planned.whole.ranks.of(RankId(rank))).casts;
    EXPECT_EQ(casts, 8) << "four layers of a weight and a bias";
    int64_t bytes = 0, all = 0;
    for (const StagePlan& stage : planned.plan.stages) bytes += stage.parameter_bytes;
    for (const Parameter& parameter : planned.training.parameters)
      all += planned.training.graph.bytes(parameter.value);
    EXPECT_EQ(bytes, all) << "each is one stage's";
  }
}

TEST(WeightCopies, AreNoStageOfTheirOwn) {
  PlanRequest request = mlpRequest(3);
  request.partition.boundaries = {"dense2.weight/bfloat16", "dense2.bias/bfloat16"};
  EXPECT_ERROR(
      planTraining(request, [](const std::string&) {}), ErrorCode::kConfiguration,
      "stage 1 would have nothing but copies of weights (dense2.bias/bfloat16 to dense2.bias/bfloat16)");
}

// The stage in the middle gets the copy of one weight and sends that of another.
TEST(WeightCopies, OfTwoTiedWeightsGoFromStageToStage) {
  const testing::ModelFolder folder;
  PlanRequest request = mlpRequest(3);
  request.model_path = folder.write("tied.onnx", testing::parseText(R"(<ir_version: 8, opset_import: ["": 18]>
    g (float[batch, 2] x) => (float loss)
    <float[2, 2] first = {0.5, -0.25, 0.125, -0.5}, float[2, 2] second = {1, 0.5, -0.75, 0.25}> {
      a = MatMul(x, first)
      b = Relu(a)
      c = MatMul(b, second)
      d = MatMul(c, first)
      e = Relu(d)
      f = MatMul(e, second)
      loss = ReduceMean <keepdims = 0> (f)
    })"));
  request.partition.boundaries = {"b", "d"};
  const PlannedTraining planned = planTraining(request, [](const std::string&) {});
  const std::map<DataType, int64_t> both = {{DataType::kBfloat16, 2 * 2 * 2 * 2}};
  EXPECT_EQ(sharedBytes(planned, 3), both);
}

}  // namespace
}  // namespace pipeshard
