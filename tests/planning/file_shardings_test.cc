// Shardings in files: model.onnx of a plan says what plan.json says, and a model that says the same is
// planned the same.
#include "planning/model/file_shardings.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/plan/plan.h"
#include "ir/plan/plan_json.h"
#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/device_sharding.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/expect_error.h"
#include "tests/onnx_import/check_model.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const LogicalMesh kMesh{{2, 2}};

Plan planWith(const TemporaryFolder& folder, const std::string& model,
              const std::vector<std::string>& options) {
  std::vector<std::string> line = {"plan",     model,       "--cluster", "1x4",
                                   "--stages", "uniform:1", "-o",        folder.file("a.plan")};
  line.insert(line.end(), options.begin(), options.end());
  const CommandResult result = runPipeshard(line);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  return result.exit_code == 0 ? planFromJson(readFile(folder.file("a.plan/plan.json"))) : Plan{};
}

// What plan.json says of a value; nothing for a partial sum.
std::optional<ShardingSpec> planned(const ShardingPlan& sharding, const std::string& value, size_t rank) {
  const auto found = sharding.specs.find(value);
  const ShardingSpec spec = found == sharding.specs.end() ? replicated(rank) : parseSpec(found->second);
  return spec.partial.empty() ? std::optional(spec) : std::nullopt;
}

TEST(FileShardings, OfAPlansModelAreThoseOfThePlan) {
  const TemporaryFolder folder;
  const Plan plan = planWith(folder, "examples/gpt2.onnx", {"--method", "megatron:2,2"});
  ASSERT_EQ(plan.stages.size(), 1u);
  const Graph graph = readModel(folder.file("a.plan/model.onnx"));
  checkModel(graph);
  EXPECT_EQ(graph.ir_version, 11);
  const ReadShardings read = nodeShardings(graph, "pipeshard", {{kMesh, {0, 1, 2, 3}}});
  EXPECT_EQ(read.skipped, 0u);
  int cut = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (size_t i = 0; i < read.nodes[n].outputs.size(); ++i) {
      if (!read.nodes[n].outputs[i]) continue;
      const std::string& name = graph.value(graph.nodes[n].outputs[i]).name;
      EXPECT_EQ(read.nodes[n].outputs[i],
                planned(*plan.stages[StageId(0)].sharding, name, read.nodes[n].outputs[i]->axes.size()))
          << name;
      cut += read.nodes[n].outputs[i]->isReplicated() ? 0 : 1;
    }
  }
  EXPECT_GT(cut, 200);
}

TEST(FileShardings, APlanWithoutShardingsSaysStagesOnly) {
  const TemporaryFolder folder;
  planWith(folder, "examples/mlp.onnx", {});
  const Graph graph = readModel(folder.file("a.plan/model.onnx"));
  EXPECT_FALSE(readFileShardings(graph, {}).has_value());
}

// The example with the annotations of a plan of it: those of forward nodes, by the name of what they make.
std::string annotatedExample(const TemporaryFolder& folder, const std::string& example) {
  const Graph planned = readModel(folder.file("a.plan/model.onnx"));
  const std::vector<DeviceConfiguration> configurations = deviceConfigurations(planned);
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + example);
  annotatePipelineStages(graph, configurations.at(0), std::vector<int>(graph.nodes.size(), 0));
  std::map<std::string, const Node*> makers;
  for (const Node& node : planned.nodes) makers[planned.value(node.outputs[0]).name] = &node;
  for (Node& node : graph.nodes) {
    const auto maker = makers.find(graph.value(node.outputs[0]).name);
    // A node whose inputs preparation has changed, or that differentiation gave more outputs, is left
    // without.
    if (maker == makers.end() || maker->second->inputs.size() != node.inputs.size() ||
        maker->second->outputs.size() != node.outputs.size())
      continue;
    bool same = true;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId mine = node.inputs[i], theirs = maker->second->inputs[i];
      same = same && mine.valid() == theirs.valid() &&
             (!mine.valid() || graph.value(mine).name == planned.value(theirs).name);
    }
    if (same) node.opaque = maker->second->opaque;
  }
  const std::filesystem::path weights =
      std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples" / (example + ".data");
  if (std::filesystem::exists(weights)) std::filesystem::copy_file(weights, folder.file(example + ".data"));
  writeModel(graph, folder.file(example));
  return folder.file(example);
}

TEST(FileShardings, AModelThatSaysThemIsPlannedSo) {
  const TemporaryFolder folder, again;
  const Plan first = planWith(folder, "examples/mlp.onnx", {"--method", "megatron:2,2"});
  ASSERT_EQ(first.stages.size(), 1u);
  const std::string annotated = annotatedExample(folder, "mlp.onnx");
  const std::optional<FileShardings> given = readFileShardings(readModel(annotated), {});
  ASSERT_TRUE(given.has_value());
  EXPECT_EQ(given->mesh, kMesh);
  const Plan second = planWith(again, annotated, {"--method", "manual"});
  ASSERT_EQ(second.stages.size(), 1u);
  EXPECT_EQ(second.stages[StageId(0)].sharding->mesh, kMesh.shape);
  EXPECT_THAT(second.notes,
              Contains(HasSubstr("the model's device configuration 'pipeshard' gives the shardings of")));
  const Graph graph = readModel(annotated);
  // what no node makes lies as its readers need it, which the first plan may cut from whole tensors
  std::set<std::string> made;
  for (const Node& node : graph.nodes) made.insert(graph.value(node.outputs[0]).name);
  int cut = 0;
  for (const auto& [name, spec] : given->specs) {
    const ShardingPlan& one = *first.stages[StageId(0)].sharding;
    const ShardingPlan& two = *second.stages[StageId(0)].sharding;
    const auto kept = planned(two, name, spec.axes.size());
    EXPECT_EQ(kept, spec) << name;
    const auto was = planned(one, name, spec.axes.size());
    if (!made.contains(name) || !was) continue;  // a partial sum is unsaid: there its readers speak
    EXPECT_EQ(spec, *was) << name;
    cut += spec.isReplicated() ? 0 : 1;
  }
  EXPECT_GE(cut, 3);
  const CommandResult result = runPipeshard({"validate", again.file("a.plan"), "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

TEST(FileShardings, SayNothingWithoutAnnotations) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "--stages",
                                             "uniform:1", "--method", "manual", "-o", folder.file("a.plan")});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, HasSubstr("method manual: no shardings are given"));
}

}  // namespace
}  // namespace pipeshard
