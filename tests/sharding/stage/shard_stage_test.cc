#include "sharding/stage/shard_stage.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "sharding/stage/blocks.h"
#include "sharding/stage/stage_context.h"
#include "tests/expect_error.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

using testing::allNodes;
using ::testing::HasSubstr;
using testing::StageModel;

ShardingResult shard(const TrainingGraph& training, const std::string& mesh,
                     const ShardStageOptions& options) {
  const LogicalMesh logical = parseMesh(mesh);
  ShardingResult result =
      shardStage(training, allNodes(training), logical, CostModel::uniform(logical), options);
  verifyStageSharding(training, allNodes(training), result.sharding);
  return result;
}

// Collectives of reshardings, by phase group ("forward", "backward", "update": gradient synchronisation and
// updates), kind and mesh axis.
struct Collective {
  std::string phase;
  CollectiveKind kind;
  int mesh_axis;
  friend auto operator<=>(const Collective&, const Collective&) = default;
};

std::map<Collective, int> collectivesOf(const TrainingGraph& training, const ShardingResult& result,
                                        const CostModel& model) {
  const std::vector<NodeId> nodes = allNodes(training);
  const std::vector<StageValue> values = stageValues(training, nodes, {});
  std::map<Collective, int> counts;
  for (const StageResharding& entry :
       priceStage(training, nodes, values, result.sharding, model, 1).reshardings) {
    const NodeId node = entry.reader.valid() ? entry.reader : values[entry.value.index()].producer;
    const Phase phase = node.valid() ? training.node_phase[node.index()] : Phase::kUpdate;
    const std::string name = phase == Phase::kUpdate    ? "update"
                             : phase == Phase::kForward ? "forward"
                                                        : "backward";
    for (const ReshardingStep& step : entry.resharding.steps) {
      const auto kind = collectiveOf(step.kind);
      if (kind) ++counts[{name, *kind, step.mesh_axis}];
    }
  }
  return counts;
}

TEST(ShardStage, APartOfAModelKeepsWhatItSharesReplicated) {
  const TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  const LogicalMesh mesh = parseMesh("4");
  // The second layer: everything that does not touch the first one's parameters or the input.
  std::vector<NodeId> nodes;
  ShardStageOptions options;
  const ValueId shared = training.graph.nodes[1].outputs[0];
  for (NodeId node : allNodes(training)) {
    const std::string name = describeNode(training.graph.node(node));
    const std::vector<ValueId>& inputs = training.graph.node(node).inputs;
    const bool of_first = node.index() < 2 || inputs[0] == training.inputs[0].value ||
                          name.find("fc1") != std::string::npos ||
                          std::find(inputs.begin(), inputs.end(), training.inputs[0].value) != inputs.end();
    if (!of_first) nodes.push_back(node);
  }
  options.replicated = {shared};
  const ShardingResult result = shardStage(training, nodes, mesh, CostModel::uniform(mesh), options);
  verifyStageSharding(training, nodes, result.sharding);
  EXPECT_TRUE(result.sharding.kept[shared.index()].isReplicated());
  EXPECT_TRUE(result.sharding.strategies[0].outputs.empty());
  EXPECT_FALSE(result.sharding.strategies[nodes[0].index()].outputs.empty());
}

TEST(ShardStage, TheSameStageGivesTheSameSharding) {
  const TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  const ShardingResult first = shard(training, "2x2", {});
  const ShardingResult second = shard(training, "2x2", {});
  EXPECT_EQ(first.sharding.kept, second.sharding.kept);
  for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
    EXPECT_EQ(first.sharding.strategies[node].uses, second.sharding.strategies[node].uses);
  }
}

// ---- what is chosen
// ----------------------------------------------------------------------------------------------------

TEST(ShardStage, ASmallModelWithALargeBatchIsDataParallel) {
  const TrainingGraph training = testing::perceptron(65536, 256, 256, 256);
  const ShardingResult result = shard(training, "4", {});
  ShardStageOptions options;
  options.method = {ShardingKind::kDataParallel};
  EXPECT_EQ(result.total_ns() <= shard(training, "4", options).total_ns(), true);
  for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
    const Node& of = training.graph.nodes[node];
    if (of.is("Gemm") && training.node_phase[node] == Phase::kForward) {
      EXPECT_EQ(printUses(training.graph, of, result.sharding.strategies[node].uses), "0:i");
    }
  }
}

TEST(ShardStage, DataParallelismNeedsOneAllReducePerParameter) {
  const TrainingGraph training = testing::perceptron(64, 48, 96, 32, "adam:lr=1e-3");
  ShardStageOptions options;
  options.method = {ShardingKind::kDataParallel};
  options.microbatches = 4;
  const LogicalMesh mesh = parseMesh("4");
  const CostModel model = CostModel::uniform(mesh);
  const ShardingResult result = shardStage(training, allNodes(training), mesh, model, options);
  const std::map<Collective, int> expected = {{{"update", CollectiveKind::kAllReduce, 0}, 4}};
  EXPECT_EQ(collectivesOf(training, result, model), expected);
}

TEST(ShardStage, Zero2ScattersGradientsAndGathersParameters) {
  const TrainingGraph training = testing::perceptron(64, 48, 96, 32, "adam:lr=1e-3");
  ShardStageOptions options;
  options.method = {ShardingKind::kZero2};
  const LogicalMesh mesh = parseMesh("4");
  const CostModel model = CostModel::uniform(mesh);
  const ShardingResult result = shardStage(training, allNodes(training), mesh, model, options);
  const std::map<Collective, int> counts = collectivesOf(training, result, model);
  int scatters = 0;
  int gathers = 0;
  for (const auto& [collective, count] : counts) {
    if (collective.kind == CollectiveKind::kReduceScatter) scatters += count;
    if (collective.kind == CollectiveKind::kAllGather && collective.phase == "update") gathers += count;
    EXPECT_NE(collective.kind, CollectiveKind::kAllReduce);
  }
  EXPECT_EQ(scatters, 4);
  EXPECT_EQ(gathers, 4);
  for (const Parameter& parameter : training.parameters) {
    EXPECT_TRUE(result.sharding.kept[parameter.value.index()].isReplicated());
    for (const OptimizerState& state : parameter.states)
      EXPECT_FALSE(result.sharding.kept[state.value.index()].isReplicated());
  }
}

TEST(ShardStage, Zero3KeepsParametersCut) {
  const TrainingGraph training = testing::perceptron(64, 48, 96, 32, "adam:lr=1e-3");
  ShardStageOptions options;
  options.method = {ShardingKind::kZero3};
  const ShardingResult result = shard(training, "4", options);
  for (const Parameter& parameter : training.parameters) {
    EXPECT_FALSE(result.sharding.kept[parameter.value.index()].isReplicated());
    EXPECT_EQ(result.sharding.kept[parameter.value.index()], result.sharding.kept[parameter.updated.index()]);
  }
  options.method = {ShardingKind::kDataParallel};
  EXPECT_LT(result.memory_bytes, shard(training, "4", options).memory_bytes);
}

TEST(ShardStage, MegatronNeedsTwoAllReducesPerLayerAndDirection) {
  const TrainingGraph training =
      testing::gpt({.layers = 3, .batch = 4, .sequence = 64, .hidden = 256, .heads = 8});
  const LogicalMesh mesh = parseMesh("1x4");
  const CostModel model = CostModel::uniform(mesh);
  ShardStageOptions options;
  options.method = {ShardingKind::kMegatron, 1, 4};
  const ShardingResult result = shardStage(training, allNodes(training), mesh, model, options);
  std::map<Collective, int> counts = collectivesOf(training, result, model);
  EXPECT_EQ((counts[{"forward", CollectiveKind::kAllReduce, 1}]), 6);
  EXPECT_EQ((counts[{"backward", CollectiveKind::kAllReduce, 1}]), 6);
  EXPECT_EQ(counts.size(), 2u);
  options.method = {ShardingKind::kAuto};
  EXPECT_LE(shardStage(training, allNodes(training), mesh, model, options).total_ns(), result.total_ns());
  const BlockSummary blocks = summarizeBlocks(training, allNodes(training), model, options, result);
  EXPECT_EQ(blocks.repeats, 3);
  EXPECT_THAT(blocks.patterns[1],
              HasSubstr("column-parallel then row-parallel, 2 all-reduces forward, 2 all-reduces backward"));
}

TEST(ShardStage, MegatronsDistributedOptimizerCutsStatesOverTheDataAxisToo) {
  const TrainingGraph training =
      testing::gpt({.layers = 2, .batch = 4, .sequence = 64, .hidden = 256, .heads = 8}, "adam:lr=1e-3");
  ShardStageOptions options;
  options.method = {ShardingKind::kMegatron, 2, 2};
  const ShardingResult plain = shard(training, "2x2", options);
  options.method = {ShardingKind::kMegatronZero2, 2, 2};
  const ShardingResult cut = shard(training, "2x2", options);
  const LogicalMesh mesh = parseMesh("2x2");
  const auto stateBytes = [&](const ShardingResult& result) {
    int64_t bytes = 0;
    for (const Parameter& parameter : training.parameters) {
      EXPECT_FALSE(result.sharding.kept[parameter.value.index()].uses(0))
          << training.graph.value(parameter.value).name;
      for (const OptimizerState& state : parameter.states) {
        bytes += 4 * largestShard(result.sharding.kept[state.value.index()],
                                  training.graph.shape(state.value), mesh);
      }
    }
    return bytes;
  };
  EXPECT_NEAR(static_cast<double>(stateBytes(cut)), static_cast<double>(stateBytes(plain)) / 2,
              0.01 * static_cast<double>(stateBytes(plain)));
  EXPECT_LE(cut.memory_bytes, plain.memory_bytes - (stateBytes(plain) - stateBytes(cut)));
}

TEST(ShardStage, AMixtureOfExpertsIsExpertParallelWithAllToAlls) {
  const TrainingGraph training = testing::mixtureOfExperts({});
  const LogicalMesh mesh = parseMesh("8");
  const CostModel model = CostModel::uniform(mesh);
  const ShardingResult result = shardStage(training, allNodes(training), mesh, model, {});
  EXPECT_TRUE(result.optimal);
  std::map<Collective, int> counts = collectivesOf(training, result, model);
  EXPECT_EQ((counts[{"forward", CollectiveKind::kAllToAll, 0}]), 2);
  EXPECT_EQ((counts[{"backward", CollectiveKind::kAllToAll, 0}]), 2);
  for (const char* name : {"up", "down"}) {
    EXPECT_EQ(printSpec(result.sharding.kept[findValue(training.graph, name).index()]), "S0,R,R") << name;
  }
  EXPECT_TRUE(result.sharding.kept[findValue(training.graph, "dense").index()].isReplicated());
}

TEST(ShardStage, NoMethodIsCheaperThanAuto) {
  const TrainingGraph training =
      testing::gpt({.layers = 2, .batch = 8, .sequence = 32, .hidden = 128, .heads = 4, .vocabulary = 1003},
                   "adamw:lr=1e-3");
  for (const std::string mesh : {"4", "2x2"}) {
    const int64_t best = shard(training, mesh, {}).total_ns();
    for (const char* method :
         {"data-parallel", "zero2", "zero3", "tensor-parallel", "megatron:2,2", "megatron-zero2:2,2"}) {
      if (mesh == "4" && std::string(method).starts_with("megatron")) continue;
      ShardStageOptions options;
      options.method = parseShardingMethod(method);
      const ShardingResult result = shard(training, mesh, options);
      EXPECT_TRUE(result.optimal) << method << " on " << mesh;
      EXPECT_GE(result.total_ns(), best) << method << " on " << mesh;
    }
  }
}

TEST(ShardStage, TensorParallelismCutsNothingAlongTheBatch) {
  const TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  ShardStageOptions options;
  options.method = {ShardingKind::kTensorParallel};
  const ShardingResult result = shard(training, "4", options);
  EXPECT_TRUE(result.sharding.kept[training.inputs[0].value.index()].axes[0].empty());
  for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
    if (!training.graph.nodes[node].is("Gemm") || training.node_phase[node] != Phase::kForward) continue;
    EXPECT_EQ(printUses(training.graph, training.graph.nodes[node], result.sharding.strategies[node].uses)
                  .find(":i"),
              std::string::npos);
  }
}

// Inputs of the model say where the batch is, and a stage in the middle has none of them.
TEST(ShardStage, AStageInTheMiddleIsCutAlongTheBatch) {
  const TrainingGraph training =
      testing::gpt({.layers = 3, .batch = 8, .sequence = 32, .hidden = 128, .heads = 4});
  std::vector<NodeId> middle;  // what touches the second block's parameters
  for (NodeId id : allNodes(training)) {
    const Node& node = training.graph.node(id);
    const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input.valid() && training.graph.value(input).name.starts_with("h.1.") &&
             training.graph.initializers.contains(input);
    });
    if (reads && training.node_phase[id.index()] != Phase::kUpdate) middle.push_back(id);
  }
  ASSERT_GT(middle.size(), 10u);
  const LogicalMesh mesh = parseMesh("4");
  for (const char* method : {"data-parallel", "zero2", "zero3"}) {
    ShardStageOptions options;
    options.method = parseShardingMethod(method);
    const ShardingResult result = shardStage(training, middle, mesh, CostModel::uniform(mesh), options);
    for (NodeId id : middle) {
      const Node& node = training.graph.node(id);
      if (!node.is("MatMul") || training.node_phase[id.index()] != Phase::kForward) continue;
      EXPECT_EQ(printSpec(result.sharding.strategies[id.index()].inputs[0]), "S0,R,R")
          << method << " " << describeNode(node);
    }
  }
}

// A gradient that comes from another stage is there when the backward pass begins, and does not wait in every
// microbatch in flight.
TEST(ShardStage, AGradientFromAnotherStageDoesNotWait) {
  const TrainingGraph training =
      testing::gpt({.layers = 2, .batch = 8, .sequence = 32, .hidden = 128, .heads = 4});
  std::vector<NodeId> first;
  for (NodeId id : allNodes(training)) {
    const Node& node = training.graph.node(id);
    const bool later = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input.valid() && training.graph.value(input).name.starts_with("h.1.");
    });
    if (training.node_phase[id.index()] == Phase::kBackwardInput && !later) first.push_back(id);
  }
  const std::vector<StageValue> values = stageValues(training, first, {});
  const StageMemory memory(training, first, values, {4, 4});
  int outside = 0;
  for (NodeId id : allNodes(training)) {
    if (training.node_phase[id.index()] != Phase::kBackwardInput) continue;
    for (ValueId output : training.graph.node(id).outputs) {
      if (!output.valid() || !values[output.index()].held || values[output.index()].producer.valid())
        continue;
      ++outside;
      EXPECT_FALSE(memory.interval(output).waits);
      EXPECT_EQ(first[memory.interval(output).from], values[output.index()].readers.front().node);
    }
  }
  EXPECT_GT(outside, 0);
}

TEST(ShardStage, KeepsWhatIsGiven) {
  const TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  ShardStageOptions options;
  options.method = {ShardingKind::kManual};
  options.constraints = {{"fc?.weight", parseSpec("S0,R")}, {"fc1.bias", parseSpec("R")}};
  const ShardingResult result = shard(training, "4", options);
  for (const Parameter& parameter : training.parameters) {
    const std::string& name = training.graph.value(parameter.value).name;
    const std::string kept = printSpec(result.sharding.kept[parameter.updated.index()]);
    if (name.find("weight") != std::string::npos || name == "fc1.bias") {
      EXPECT_EQ(kept, name == "fc1.bias" ? "R" : "S0,R") << name;
    }
  }
}

TEST(ShardStage, RefusesWhatCannotBeMetByName) {
  const TrainingGraph training = testing::perceptron(6, 256, 512, 128);
  const auto expect = [&](const std::string& method, const std::vector<ShardConstraint>& constraints,
                          const char* text) {
    ShardStageOptions options;
    options.method = parseShardingMethod(method);
    options.constraints = constraints;
    EXPECT_ERROR((void)shard(training, "8", options), ErrorCode::kConfiguration, text);
  };
  expect("megatron:2,2", {}, "method megatron:2,2 needs mesh 2x2, not 8");
  expect("megatron-zero2:2,2", {}, "method megatron-zero2:2,2 needs mesh 2x2, not 8");
  expect("manual", {}, "no shardings are given");
  expect("data-parallel", {}, "a microbatch has 6 rows ('x', axis 0) for 8 devices");
  expect("auto", {{"fc3.weight", parseSpec("S0,R")}}, "near matches: fc1.weight, fc2.weight");
  expect("auto", {{"x", parseSpec("S0,R")}}, "axis 0 has 6 elements for 8 devices");
  expect("auto", {{"fc1.weight", parseSpec("R,R;P0")}}, "no partial sum");
  expect("auto", {{"fc1.weight", parseSpec("S0")}}, "it has 2 axes, the spec 1");
  expect("auto", {{"fc1.*", parseSpec("S0,R")}}, "'fc1.bias'");
  for (const char* name : {"megatron", "megatron-zero2"}) {
    ShardStageOptions options;
    options.method = parseShardingMethod(fmt::format("{}:8,1", name));
    EXPECT_ERROR((void)shard(training, "8x1", options), ErrorCode::kConfiguration,
                 fmt::format("method {}: a microbatch has 6 rows ('x', axis 0) for 8 devices", name));
  }
}

TEST(ShardStage, StaysWithinTheMemoryGivenOrSaysWhatIsTooMuch) {
  const TrainingGraph training = testing::perceptron(4096, 512, 512, 512, "adam:lr=1e-3");
  const ShardingResult free = shard(training, "4", {});
  ShardStageOptions options;
  options.memory_bytes = free.memory_bytes - 1;
  const ShardingResult tight = shard(training, "4", options);
  EXPECT_LT(tight.memory_bytes, free.memory_bytes);
  EXPECT_GE(tight.total_ns(), free.total_ns());
  options.memory_bytes = 100'000;
  EXPECT_ERROR((void)shard(training, "4", options), ErrorCode::kOutOfMemory, "more than the 100000 that fit");
}

TEST(ShardStage, MicrobatchesInFlightTakeMemory) {
  const TrainingGraph training = testing::perceptron(4096, 512, 512, 512);
  ShardStageOptions options;
  options.microbatches = 4;
  const int64_t one = shard(training, "4", options).memory_bytes;
  options.in_flight = 3;
  EXPECT_GT(shard(training, "4", options).memory_bytes, one + 2 * 4096 * 512 * 4 / 4);
}

}  // namespace
}  // namespace pipeshard
