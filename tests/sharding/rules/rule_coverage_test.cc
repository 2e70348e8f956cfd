// Which operators have a factor rule: all that the training graphs of examples/ are made of, and every
// function of the pipeshard domain.
#include <gtest/gtest.h>

#include <set>

#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/autodiff/training.h"
#include "sharding/batch/time_axis.h"
#include "sharding/rules/factor_rule.h"
#include "tests/sharding/example_model.h"
#include "tests/sharding/rules/rule_cases.h"

namespace pipeshard::testing {
namespace {

std::vector<std::string> nodesWithoutRule(const Graph& graph) {
  std::vector<std::string> missing;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!factorRule(graph, NodeId(n))) missing.push_back(describeNode(graph.nodes[n]));
  }
  return missing;
}

class RulesOfExamples : public ::testing::TestWithParam<const char*> {};

TEST_P(RulesOfExamples, CoverEveryNodeOfTheTrainingStep) {
  constexpr int64_t kBatch = 8;
  const ForwardGraph whole = exampleForward(GetParam(), kBatch);
  for (const char* optimizer : {"sgd:momentum=0.9", "adamw", "lamb:warmup=3", "adafactor", "muon"}) {
    ForwardGraph half = exampleForward(GetParam(), kBatch / 2);
    TimeAxisResult time =
        splitTimeAxis(half.graph, {half.loss}, half.inputs, {kBatch / 2, kBatch, &whole.graph, kBatch});
    half.totals = std::move(time.totals);
    half.microbatches = 2;
    const TrainingGraph training = buildTrainingGraph(std::move(half), parseOptimizer(optimizer));
    EXPECT_GT(training.graph.nodes.size(), whole.graph.nodes.size());
    EXPECT_EQ(nodesWithoutRule(training.graph), std::vector<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, RulesOfExamples,
                         ::testing::Values("gpt2.onnx", "gpt2_torchscript.onnx", "llama.onnx", "mlp.onnx",
                                           "resnet.onnx", "resnet_torchscript.onnx"));

// rule_cases.cc has a configuration of each, and the property test fails for one without a rule.
TEST(RuleCases, CoverEveryFunction) {
  std::set<std::string> covered;
  for (const RuleCase& rule_case : ruleCases()) {
    if (rule_case.domain == kPipeshardDomain) covered.insert(rule_case.op_type);
  }
  covered.insert(functionsWithoutCase().begin(), functionsWithoutCase().end());
  for (const auto& [name, overload] : pipeshardFunctions()) EXPECT_TRUE(covered.contains(name)) << name;
}

}  // namespace
}  // namespace pipeshard::testing
