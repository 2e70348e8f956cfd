// What a plan predicts is what its programs hold: FLOPs and bytes counted from every subgraph and instruction
// of a rank, as often as it runs them in a step.

#include <map>

#include <gtest/gtest.h>

#include "ir/program/background.h"
#include "planning/pipeline.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {
namespace {

PlannedTraining plannedBy(const std::string& model, const std::string& method,
                          int64_t bucket_bytes = kDefaultBucketBytes) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + model + ".onnx";
  request.dimensions = {{"batch", 8}};
  request.given.optimizer = parseOptimizer("adamw:lr=0.001");
  request.partition.cluster = parseCluster("1x4");
  request.microbatches = 2;
  request.given.bucket_bytes = bucket_bytes;
  request.partition.stages = uniformStages(1);
  request.partition.sharding.method = parseShardingMethod(method);
  return planTraining(request, [](const std::string&) {});
}

// The last device has the largest shards. Groups of a rank's program are the mesh axes of more than one
// device, in order.
WorkCount countedOf(const PlannedTraining& planned) {
  const ShardingPlan& sharding = *planned.plan.stages.at(StageId(0)).sharding;
  const LogicalMesh mesh{sharding.mesh};
  const CostModel model = CostModel::uniform(mesh);
  MeshGroups groups;
  IdVector<GroupId, int> axis_of_group;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    groups.group_of_axis.push_back(mesh.axisSize(axis) > 1 ? axis_of_group.nextId() : GroupId());
    if (mesh.axisSize(axis) > 1) axis_of_group.push_back(axis);
  }
  const RankProgram rank = planned.whole.ranks.ofAllRanks().back();
  WorkCount total;
  for (const Instruction& instruction : rank.program.instructions) {
    if (instruction.kind == InstructionKind::kAllReduce) {
      const Buffer& buffer = rank.program.buffer(instruction.inputs[0]);
      // the loss, one number at the end of the step: not foreseen
      if (buffer.kind == BufferKind::kAccumulator) continue;
      total.communication_ns +=
          collectiveCost(model, mesh, CollectiveKind::kAllReduce, axis_of_group.at(instruction.group),
                         byteCount(buffer.data_type, buffer.shape));
    }
    if (!instruction.subgraph.valid()) continue;
    if (rank.program.subgraphs[instruction.subgraph.index()].phase == Phase::kPrologue) continue;
    const WorkCount once = countWork(rank.subgraphs[instruction.subgraph.index()], mesh, groups, model);
    total.compute_ns += once.compute_ns;
    total.communication_ns += once.communication_ns;
  }
  return total;
}

class PredictedCost : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(PredictedCost, IsCountedInThePrograms) {
  const auto& [model, method] = GetParam();
  const PlannedTraining planned = plannedBy(model, method);
  const ShardingPlan& sharding = *planned.plan.stages.at(StageId(0)).sharding;
  const WorkCount counted = countedOf(planned);
  EXPECT_EQ(counted.compute_ns, sharding.compute_ns);
  EXPECT_EQ(counted.communication_ns, sharding.communication_ns);
  EXPECT_GT(counted.communication_ns, 0);
}

// Views that several parts of a pass read are in each of them: they are computed again, nothing is
// communicated again.
TEST(PredictedCommunication, IsThatOfGradientsInBuckets) {
  for (const char* method : {"data-parallel", "zero2", "zero3", "megatron:2,2"}) {
    const PlannedTraining planned = plannedBy("gpt2", method, 2000);
    const ShardingPlan& sharding = *planned.plan.stages.at(StageId(0)).sharding;
    const WorkCount counted = countedOf(planned);
    EXPECT_EQ(counted.communication_ns, sharding.communication_ns) << method;
    EXPECT_GE(counted.compute_ns, sharding.compute_ns) << method;
    EXPECT_FALSE(backgroundWaits(planned.whole.ranks.ofAllRanks().back().program).lane.empty()) << method;
  }
}

// GPT-2 has queries, keys and values in one matrix, Llama in three: both are cut by heads, so that sums are
// exchanged, two a layer and direction; beside them the embedding's or the loss's, and the logits with their
// gradient.
TEST(TensorParallelism, OfLanguageModelsExchangesSumsAlone) {
  for (const char* model : {"gpt2", "llama"}) {
    const PlannedTraining planned = plannedBy(model, "megatron:2,2");
    std::map<std::string, std::map<Phase, int>> counts;
    const RankProgram rank = planned.whole.ranks.ofAllRanks().back();
    for (size_t s = 0; s < rank.subgraphs.size(); ++s) {
      for (const Node& node : rank.subgraphs[s].nodes) {
        if (node.domain == kPipeshardDomain) ++counts[node.op_type][rank.program.subgraphs[s].phase];
      }
    }
    EXPECT_TRUE(counts["AllToAll"].empty()) << model;
    EXPECT_TRUE(counts["ReduceScatter"].empty()) << model;
    EXPECT_LE(counts["AllGather"][Phase::kForward] + counts["AllGather"][Phase::kBackward], 2) << model;
    EXPECT_GE(counts["AllReduce"][Phase::kForward], 2 * 4) << model;
    EXPECT_LE(counts["AllReduce"][Phase::kForward], 2 * 4 + 1) << model;
  }
}

std::vector<std::pair<std::string, std::string>> cases() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const char* model : {"mlp", "gpt2", "llama"}) {
    for (const char* method : {"auto", "data-parallel", "zero2", "zero3", "tensor-parallel", "megatron:2,2"})
      all.emplace_back(model, method);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Examples, PredictedCost, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.first + "_" + info.param.second;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace pipeshard
