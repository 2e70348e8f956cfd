// The table of operators against what registers operators: kernels, factor rules and gradient rules.
#include "ir/operators/operator_facts.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/operators/operator_table.h"
#include "ir/operators/reduced_axes.h"
#include "onnx_import/autodiff/gradient_rules.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "sharding/pricing/kernel_memory.h"
#include "sharding/rules/factor_rule.h"
#include "tests/sharding/rules/rule_cases.h"

namespace pipeshard {
namespace {

using Operators = std::set<std::pair<std::string, std::string>>;

Operators rows() {
  Operators operators;
  for (const OperatorFacts& facts : operatorTable()) operators.emplace(facts.domain, facts.op_type);
  return operators;
}

// "domain::op_type" of a registry.
std::pair<std::string, std::string> parsed(const std::string& name) {
  const size_t colons = name.find("::");
  return {name.substr(0, colons), name.substr(colons + 2)};
}

TEST(OperatorFacts, AreARowPerOperator) { EXPECT_EQ(rows().size(), operatorTable().size()); }

TEST(OperatorFacts, AreFoundByDomainAndName) {
  for (const OperatorFacts& facts : operatorTable())
    EXPECT_EQ(&operatorFacts(facts.domain, facts.op_type), &facts) << facts.domain << "::" << facts.op_type;
}

TEST(OperatorFacts, ClaimNothingOfUnknownOperators) {
  for (const char* domain : {kPipeshardDomain.data(), "com.microsoft", "nobody"}) {
    const OperatorFacts& facts = operatorFacts(domain, "Reshape");
    EXPECT_EQ(facts.view, View::kNone);
    EXPECT_TRUE(facts.linear.empty());
    EXPECT_FALSE(facts.has_kernel);
  }
}

TEST(OperatorFacts, KnowEveryFactorRule) {
  const Operators known = rows();
  for (const auto& operator_with_rule : operatorsWithRule())
    EXPECT_TRUE(known.contains(operator_with_rule)) << ::testing::PrintToString(operator_with_rule);
}

TEST(OperatorFacts, KnowEveryGradientRule) {
  const Operators known = rows();
  for (const auto& [name, rule] : gradientRules())
    EXPECT_TRUE(known.contains(name)) << ::testing::PrintToString(name);
}

TEST(OperatorFacts, NoGradientReachesAnInputOfWhichNoElementIsRead) {
  int unread = 0;
  for (const OperatorFacts& facts : operatorTable()) {
    Node node;
    node.domain = facts.domain;
    node.op_type = facts.op_type;
    for (size_t input = 0; input < 3; ++input) {
      if (!facts.unread_inputs.contains(input)) continue;
      EXPECT_FALSE(passesGradient(node, input)) << facts.op_type << " input " << input;
      ++unread;
    }
  }
  EXPECT_GT(unread, 0);
}

// The column and the registry cannot drift apart: planning asks the one, workers the other.
TEST(OperatorFacts, SayWhatTheCpuHas) {
  Operators column, registry;
  for (const OperatorFacts& facts : operatorTable()) {
    if (facts.has_kernel) column.emplace(facts.domain, facts.op_type);
  }
  for (const std::string& name : cpuKernels().operators()) registry.insert(parsed(name));
  EXPECT_EQ(column, registry);
}

std::unique_ptr<Kernel> kernelOf(const Graph& graph) {
  const Node& node = graph.nodes.at(0);
  KernelSpec spec;
  spec.node = &node;
  const auto describe = [&](ValueId id) {
    return id.valid() ? TensorSpec{graph.dataType(id), graph.shape(id), graph.constant(id)} : TensorSpec();
  };
  for (ValueId id : node.inputs) spec.inputs.push_back(describe(id));
  for (ValueId id : node.outputs) spec.outputs.push_back(describe(id));
  return cpuKernels().create(spec);
}

// What planning counts on, kernels do: on the configurations that tests of factor rules have of each
// operator.
TEST(OperatorFacts, OfMemoryAreTrueOfKernels) {
  int in_place = 0, adding = 0;
  for (const testing::RuleCase& rule_case : testing::ruleCases()) {
    const Graph graph = testing::caseGraph(rule_case);
    const Node& node = graph.nodes.at(0);
    if (!hasKernel(node)) continue;
    const std::unique_ptr<Kernel> kernel = kernelOf(graph);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid() || !overwritesInput(node, i)) continue;
      if (graph.bytes(node.inputs[i]) != graph.bytes(node.outputs.at(0))) continue;
      EXPECT_TRUE(kernel->mayRunInPlace(static_cast<int>(i), 0)) << rule_case.name << " input " << i;
      ++in_place;
    }
    if (addsToResult(graph, node)) {
      EXPECT_TRUE(kernel->mayAccumulate(0)) << rule_case.name;
      ++adding;
    } else if (operatorFacts(node).adds_up == AddsUp::kNever) {
      EXPECT_FALSE(kernel->mayAccumulate(0)) << rule_case.name;
    }
  }
  EXPECT_GT(in_place, 0);
  EXPECT_GT(adding, 0);
}

// These and no others: their second input is numbers of classes.
TEST(OperatorFacts, SayWhichLossesTakeLabels) {
  Operators column;
  for (const OperatorFacts& facts : operatorTable()) {
    if (facts.takes_labels) column.emplace(facts.domain, facts.op_type);
  }
  EXPECT_EQ(column, (Operators{{"", "NegativeLogLikelihoodLoss"},
                               {"", "SoftmaxCrossEntropyLoss"},
                               {"pipeshard", "CrossEntropyLoss"}}));
}

TEST(OperatorFacts, SayWhichNormalizationIsByItsBatch) {
  Node node;
  node.op_type = "BatchNormalization";
  EXPECT_FALSE(normalizesByBatch(node));
  node.attributes["training_mode"] = int64_t{1};
  EXPECT_TRUE(normalizesByBatch(node));
  node.op_type = "LayerNormalization";
  EXPECT_FALSE(normalizesByBatch(node));
}

TEST(ReducedAxes, AreThoseGivenElseAllUnlessNoneMeansNone) {
  using Axes = std::vector<int64_t>;
  Node node;
  node.op_type = "ReduceSum";
  EXPECT_EQ(reducedAxes(node, Axes{2, -3}, 3), (Axes{2, -3}));  // as they are written
  EXPECT_EQ(reducedAxes(node, Axes{}, 3), (Axes{0, 1, 2}));
  EXPECT_EQ(reducedAxes(node, Axes{}, 0), Axes{});
  node.attributes["noop_with_empty_axes"] = int64_t{1};
  EXPECT_EQ(reducedAxes(node, Axes{}, 3), Axes{});
  EXPECT_EQ(reducedAxes(node, Axes{1}, 3), Axes{1});
}

TEST(InputSet, HoldsPositions) {
  constexpr InputSet kSome = {0, 2};
  EXPECT_TRUE(kSome.contains(0) && kSome.contains(2));
  EXPECT_FALSE(kSome.contains(1) || kSome.contains(100));
  EXPECT_TRUE(InputSet::from(3).contains(3) && InputSet::from(3).contains(100));
  EXPECT_FALSE(InputSet::from(3).contains(2));
  EXPECT_TRUE(InputSet().empty());
}

}  // namespace
}  // namespace pipeshard
