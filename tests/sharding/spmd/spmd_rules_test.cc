// Generated from the rules: every strategy of every operator, run by all devices of a mesh, gives what the
// operator gives. An operator is tested because it is registered; there is nothing here about any of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "ir/base/error.h"
#include "onnx_import/autodiff/functions.h"
#include "tests/sharding/rules/rule_cases.h"
#include "tests/sharding/spmd/sharded_runner.h"

namespace pipeshard::testing {
namespace {

// A case with other sizes, and what the operator gives there.
struct Instance {
  std::string name;
  Graph graph;
  Tensors inputs;
  Tensors outputs;
};

Shape shapeOf(const FactorRule& rule, const TensorFactors& tensor, const Shape& old) {
  Shape shape = old;
  for (size_t axis = 0; axis < tensor.size(); ++axis) {
    if (tensor[axis].empty()) continue;
    shape[axis] = 1;
    for (int factor : tensor[axis]) shape[axis] *= rule.factors[factor].size;
  }
  return shape;
}

void addFunctions(Graph& graph) {
  const Node& node = graph.nodes[0];
  const std::vector<std::pair<std::string, std::string>> all = pipeshardFunctions();
  const bool known = std::find(all.begin(), all.end(), std::pair(node.op_type, std::string())) != all.end();
  if (node.domain == kPipeshardDomain && known)
    graph.functions.push_back(makePipeshardFunction(node.op_type, "", 18));
}

// The case at its own sizes, or (seed > 0) with every factor larger by up to 3, so that indices stay in
// range.
Instance instantiate(const RuleCase& rule_case, uint64_t seed) {
  std::mt19937_64 generator(seed + 1);
  RuleCase grown = rule_case;
  const Graph plain = caseGraph(rule_case);
  if (seed > 0) {
    auto rule = *factorRule(plain, plain.nodes[0]);
    for (Factor& factor : rule.factors)
      factor.size += factor.size > 1 ? static_cast<int64_t>(generator() % 4) : 0;
    for (size_t i = 0; i < grown.inputs.size(); ++i) {
      if (grown.inputs[i].kind == Argument::Kind::kAbsent || grown.inputs[i].kind == Argument::Kind::kFixed)
        continue;
      grown.inputs[i].shape = shapeOf(rule, rule.inputs[i], grown.inputs[i].shape);
    }
    for (size_t o = 0; o < grown.outputs.size(); ++o)
      grown.outputs[o].second = shapeOf(rule, rule.outputs[o], grown.outputs[o].second);
  }
  Instance instance;
  instance.name = rule_case.name;
  const std::vector<Constant> inputs = caseInputs(grown, generator);
  std::vector<Shape> shapes;
  for (const auto& [type, shape] : grown.outputs) shapes.push_back(shape);
  instance.graph = caseGraph(grown, inputs, shapes);
  addFunctions(instance.graph);
  for (ValueId id : instance.graph.inputs) {
    const std::string& name = instance.graph.value(id).name;
    instance.inputs[name] = inputs[std::stoul(name.substr(5))];
  }
  return instance;
}

// The same instance with 32 bits.
void makeSingle(Instance& instance) {
  instance.graph = singlePrecision(instance.graph);
  for (auto& [name, tensor] : instance.inputs) tensor = singlePrecision(tensor);
}

// What the operator gives. False where it cannot run: no kernel and no body, not these types, not these sizes
// (fixed inputs like pads and the ends of slices were made for others).
bool computeOutputs(Instance& instance) try {
  if (!shapeFault(instance.graph).empty()) return false;
  Graph runnable = instance.graph;
  makeRunnable(runnable);
  if (!isRunnable(runnable)) return false;
  LocalPiece piece;
  piece.graph = std::move(runnable);
  const Tensors values = runPieces({piece}, {instance.inputs})[0];
  for (ValueId output : instance.graph.outputs)
    instance.outputs[instance.graph.value(output).name] = values.at(instance.graph.value(output).name);
  return true;
} catch (const Error&) {
  return false;
}

// Inputs as the strategy needs them, outputs as it gives them: no resharding.
PieceSharding naturalSharding(const Graph& graph, const LogicalMesh& mesh, const Strategy& strategy) {
  PieceSharding sharding{
      mesh, CostModel::uniform(mesh), {strategy}, std::vector<ShardingSpec>(graph.values.size())};
  const Node& node = graph.nodes[0];
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i].valid()) sharding.kept[node.inputs[i].index()] = strategy.inputs[i];
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (node.outputs[o].valid()) sharding.kept[node.outputs[o].index()] = strategy.outputs[o];
  }
  return sharding;
}

bool addsUp(const PieceSharding& sharding) {
  return std::any_of(sharding.kept.begin(), sharding.kept.end(),
                     [](const ShardingSpec& spec) { return !spec.partial.empty(); });
}

// Operators that copy elements: their results are compared bit by bit.
bool moves(const Instance& instance) {
  static const std::set<std::string> kMovers = {
      "Identity", "Reshape", "Flatten",         "Squeeze",        "Unsqueeze",      "Transpose",
      "Expand",   "Tile",    "Slice",           "Split",          "Concat",         "Pad",
      "Trilu",    "Gather",  "Where",           "GatherElements", "GatherND",       "OneHot",
      "TopK",     "Cast",    "ConstantOfShape", "ScatterND",      "ScatterElements"};
  return kMovers.contains(instance.graph.nodes[0].op_type);
}

struct Tally {
  int strategies = 0;
  int instances = 0;
  int grown = 0;
};

void checkStrategies(const Instance& instance, const LogicalMesh& mesh, bool single, Tally& tally) {
  for (const Strategy& strategy : strategies(instance.graph, instance.graph.nodes[0], mesh)) {
    SCOPED_TRACE(printUses(instance.graph, instance.graph.nodes[0], strategy.uses));
    const PieceSharding sharding = naturalSharding(instance.graph, mesh, strategy);
    const double tolerance = moves(instance) && !addsUp(sharding) ? 0 : single ? 1e-5 : 1e-12;
    checkPieces(instance.graph, instance.inputs, instance.outputs, sharding,
                rewriteAll(instance.graph, sharding), tolerance);
    ++tally.strategies;
  }
}

class SpmdRules : public ::testing::TestWithParam<const char*> {};

TEST_P(SpmdRules, EveryStrategyGivesWhatTheOperatorGives) {
  const LogicalMesh mesh = parseMesh(GetParam());
  Tally tally;
  std::set<std::string> computed, uncomputed;
  for (const RuleCase& rule_case : ruleCases()) {
    uncomputed.insert(rule_case.op_type);
    for (const auto& [grow, single] : {std::pair(false, false), {true, false}, {true, true}, {false, true}}) {
      Instance instance = instantiate(rule_case, grow ? 1 : 0);
      if (single) makeSingle(instance);
      if (!computeOutputs(instance)) continue;
      computed.insert(rule_case.op_type);
      SCOPED_TRACE(rule_case.name + (single ? " (32 bits): " : ": ") +
                   printFactorRule(*factorRule(instance.graph, NodeId(0))));
      checkStrategies(instance, mesh, single, tally);
      ++tally.instances;
      tally.grown += grow;
      if (HasFailure()) return;
    }
  }
  for (const std::string& op_type : computed) uncomputed.erase(op_type);
  EXPECT_EQ(uncomputed, std::set<std::string>());  // a kernel, a lowering or a body runs each of them
  EXPECT_GT(tally.grown, 300);
  RecordProperty("strategies", tally.strategies);
  std::cout << tally.strategies << " strategies of " << tally.instances << " instances, " << tally.grown
            << " of other sizes\n";
}

INSTANTIATE_TEST_SUITE_P(Meshes, SpmdRules, ::testing::Values("2", "3", "4", "2x2"),
                         [](const auto& info) { return "mesh" + std::string(info.param); });

TEST(SpmdRules, EveryRegisteredOperatorHasACase) {
  std::set<std::pair<std::string, std::string>> covered;
  for (const RuleCase& rule_case : ruleCases()) covered.emplace(rule_case.domain, rule_case.op_type);
  for (const std::string& name : functionsWithoutCase()) covered.emplace(kPipeshardDomain, name);
  for (const auto& name : operatorsWithRule())
    EXPECT_TRUE(covered.contains(name)) << name.first << "::" << name.second << " has no case";
}

}  // namespace
}  // namespace pipeshard::testing
