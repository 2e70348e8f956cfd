// What shardStage finds, against brute force over all strategies and specs.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sharding/stage/shard_stage.h"
#include "sharding/stage/stage_context.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

using testing::allNodes;
using testing::StageModel;

// The least cost over all strategies of all nodes, by dynamic trial: every node's strategy is tried, and for
// the strategies chosen every kept spec that the tensor can have.
class BruteForce {
 public:
  BruteForce(const TrainingGraph& training, const LogicalMesh& mesh, const CostModel& model,
             int64_t microbatches)
      : training_(training),
        mesh_(mesh),
        model_(model),
        microbatches_(microbatches),
        values_(stageValues(training, allNodes(training), {})) {
    for (NodeId node : allNodes(training))
      strategies_.push_back(strategies(training.graph, training.graph.node(node), mesh));
    choice_.resize(strategies_.size());
    for (const Parameter& parameter : training.parameters) {
      if (!parameter.gradient_parts.empty())
        gradients_[parameter.gradient_parts.front()] = parameter.gradient;
    }
    groups_ = groups();
  }

  int64_t least() {
    try_(0, 0);
    return best_;
  }

 private:
  std::vector<std::vector<ValueId>> groups() const {
    std::map<ValueId, std::vector<ValueId>> by_first;
    for (size_t index = 0; index < values_.size(); ++index) {
      const ValueId id(index);
      if (!values_[index].held || values_[index].constant) continue;
      ValueId first = values_[index].shares;
      for (const auto& [part, gradient] : gradients_) {
        if (gradient == id) first = part;  // decided together with the accumulator
      }
      by_first[first].push_back(id);
    }
    std::vector<std::vector<ValueId>> result;
    for (auto& [first, members] : by_first) result.push_back(std::move(members));
    return result;
  }

  void try_(size_t node, int64_t cost) {
    if (cost >= best_) return;
    if (node == strategies_.size()) {
      for (const std::vector<ValueId>& group : groups_) cost += keep(group);
      best_ = std::min(best_, cost);
      return;
    }
    const Node& of = training_.graph.node(NodeId(node));
    for (const Strategy& strategy : strategies_[node]) {
      choice_[node] = &strategy;
      try_(node + 1,
           cost + runs(NodeId(node)) * strategyCost(training_.graph, of, mesh_, strategy, model_).total());
    }
  }

  int64_t runs(NodeId node) const { return runsPerStep(training_, node, microbatches_); }

  int64_t reshard(ValueId id, const ShardingSpec& from, const ShardingSpec& to) {
    int64_t& cost = known_.try_emplace({training_.graph.shape(id), from, to}, -1).first->second;
    if (cost < 0)
      cost = planResharding(training_.graph.shape(id), training_.graph.dataType(id), from, to, mesh_, model_)
                 .cost_ns;
    return cost;
  }

  int64_t costAt(ValueId id, const ShardingSpec& kept) {
    const StageValue& value = values_[id.index()];
    int64_t cost = 0;
    if (value.producer.valid())
      cost +=
          runs(value.producer) * reshard(id, choice_[value.producer.index()]->outputs[value.output], kept);
    for (const ValueReader& reader : value.readers) {
      std::set<ShardingSpec> wanted;
      for (size_t position : reader.positions) wanted.insert(choice_[reader.node.index()]->inputs[position]);
      for (const ShardingSpec& spec : wanted) cost += runs(reader.node) * reshard(id, kept, spec);
    }
    return cost;
  }

  int64_t keep(const std::vector<ValueId>& group) {
    bool partial = true;
    ValueId gradient;
    std::vector<ValueId> members;
    for (ValueId id : group) {
      const bool is_gradient = std::any_of(gradients_.begin(), gradients_.end(),
                                           [id](const auto& entry) { return entry.second == id; });
      if (is_gradient) gradient = id;
      if (!is_gradient) members.push_back(id);
      if (!is_gradient) partial = partial && values_[id.index()].partial_allowed;
    }
    int64_t least = INT64_MAX;
    for (const ShardingSpec& spec : possibleSpecs(training_.graph.shape(members.front()), mesh_, partial)) {
      if (values_[members.front().index()].fixed_replicated && !spec.isReplicated()) continue;
      int64_t cost = 0;
      for (ValueId id : members) cost += costAt(id, spec);
      if (gradient.valid()) {
        int64_t synchronised = INT64_MAX;
        for (const ShardingSpec& kept : possibleSpecs(training_.graph.shape(gradient), mesh_, false)) {
          synchronised = std::min(synchronised, reshard(gradient, spec, kept) + costAt(gradient, kept));
        }
        cost += synchronised;
      }
      least = std::min(least, cost);
    }
    return least;
  }

  const TrainingGraph& training_;
  const LogicalMesh& mesh_;
  const CostModel& model_;
  int64_t microbatches_;
  std::vector<StageValue> values_;
  std::vector<std::vector<Strategy>> strategies_;
  std::vector<const Strategy*> choice_;
  std::map<ValueId, ValueId> gradients_;
  std::vector<std::vector<ValueId>> groups_;
  std::map<std::tuple<Shape, ShardingSpec, ShardingSpec>, int64_t> known_;
  int64_t best_ = INT64_MAX;
};

TrainingGraph oneProduct(int64_t rows, int64_t in, int64_t out) {
  StageModel model;
  const ValueId x = model.input("x", {rows, in});
  const ValueId y = model.op("MatMul", {x, model.parameter("w", {in, out})}, {rows, out});
  return model.finish(model.op("ReduceSum", {y}, {}, {{"keepdims", int64_t{0}}}));
}

TrainingGraph scaled(int64_t rows, int64_t width) {
  StageModel model;
  const ValueId x = model.input("x", {rows, width});
  const ValueId y = model.op("Mul", {x, model.parameter("scale", {width})}, {rows, width});
  return model.finish(model.op("ReduceSum", {y}, {}, {{"keepdims", int64_t{0}}}), "sgd:lr=0.1,momentum=0.9");
}

struct BruteCase {
  const char* name;
  TrainingGraph training;
  const char* mesh;
  int64_t microbatches;
};

TEST(ShardStage, CostsWhatBruteForceOverAllStrategiesAndSpecsFinds) {
  std::vector<BruteCase> cases;
  cases.push_back({"square", oneProduct(64, 64, 64), "4", 1});
  cases.push_back({"wide", oneProduct(8, 4096, 1024), "4", 1});
  cases.push_back({"tall", oneProduct(4096, 64, 32), "4", 4});
  cases.push_back({"odd", oneProduct(7, 129, 65), "3", 2});
  cases.push_back({"scaled", scaled(512, 300), "4", 3});
  for (const BruteCase& test : cases) {
    for (const double speed : {5.0, 0.05}) {
      const LogicalMesh mesh = parseMesh(test.mesh);
      const CostModel model = CostModel::uniform(mesh, {.latency_ns = 500, .bytes_per_ns = speed});
      ShardStageOptions options;
      options.microbatches = test.microbatches;
      const ShardingResult result = shardStage(test.training, allNodes(test.training), mesh, model, options);
      EXPECT_TRUE(result.optimal) << test.name;
      EXPECT_EQ(result.lower_bound_ns, result.total_ns()) << test.name;
      EXPECT_EQ(result.total_ns(), BruteForce(test.training, mesh, model, test.microbatches).least())
          << test.name << " " << speed;
    }
  }
}

// What producers give and consumers want is enough: with every spec that a tensor can have, nothing becomes
// cheaper.
TEST(ShardStage, OtherSpecsThanThoseInUseMakeNothingCheaper) {
  std::vector<TrainingGraph> trainings;
  trainings.push_back(oneProduct(64, 256, 128));
  trainings.push_back(testing::perceptron(64, 96, 320, 48, "adam:lr=1e-3"));
  trainings.push_back(testing::gpt({.layers = 1, .batch = 4, .sequence = 32, .hidden = 64, .heads = 4}));
  for (const TrainingGraph& training : trainings) {
    const std::vector<NodeId> nodes = allNodes(training);
    const LogicalMesh mesh = parseMesh("2x2");
    const CostModel model = CostModel::uniform(mesh, {.latency_ns = 300, .bytes_per_ns = 2});
    const ShardStageOptions options;
    StageContext context(training, nodes, mesh, model, options);
    const ShardingProblem few(training, nodes, mesh, model, options, context.limits);
    context.limits.all_specs = true;
    context.limits.keep_all = true;
    const ShardingProblem all(training, nodes, mesh, model, options, context.limits);
    const ShardingResult result = context.solve(few, {});
    verifyStageSharding(training, nodes, result.sharding);
    EXPECT_TRUE(result.optimal);
    EXPECT_EQ(result.total_ns(), context.solve(all, {}).total_ns());
  }
}

}  // namespace
}  // namespace pipeshard
