// Softmax and relatives along an axis that is cut.
#include <gtest/gtest.h>

#include <limits>

#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

FormProblem softmaxProblem(const std::string& op_type, DataType type, const Shape& shape, int64_t axis,
                           bool gradient) {
  std::mt19937_64 generator(7);
  FormProblem problem;
  std::vector<ValueId> inputs{problem.input("a", randomReals(generator, shape, type))};
  if (gradient) inputs.push_back(problem.input("b", randomReals(generator, shape, type)));
  problem.node(gradient ? std::string(kPipeshardDomain) : "", op_type, inputs, {{type, shape}},
               {{"axis", axis}});
  return problem;
}

TEST(ExchangeSoftmax, AlongACutAxisGivesTheSame) {
  for (const char* op : {"Softmax", "LogSoftmax", "SoftmaxGrad", "LogSoftmaxGrad"}) {
    const bool gradient = std::string(op).ends_with("Grad");
    for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      const FormProblem last = softmaxProblem(op, type, {3, 11}, -1, gradient);
      const FormProblem middle = softmaxProblem(op, type, {5, 7, 3}, 1, gradient);
      for (const auto& [mesh, factors] : cutsOf("a1")) {
        expectAsWhole(last, mesh, factors, toleranceOf(type));
        expectAsWhole(middle, mesh, factors, toleranceOf(type));
      }
      expectAsWhole(middle, {{2, 3}}, {"a0", "a1"}, toleranceOf(type));
      expectAsWhole(middle, {{2, 2, 2}}, {"a1", "a2", "a1"}, toleranceOf(type));
    }
  }
}

TEST(ExchangeSoftmax, BeforeOpset13AllAxesBehindAreOne) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    FormProblem problem = softmaxProblem(op, DataType::kFloat64, {2, 5, 3}, 1, false);
    problem.graph.opset_imports[""] = 12;
    problem.graph.nodes.back().opset_version = 12;
    expectAsWhole(problem, {{2}}, {"a1"}, 1e-12);
    expectAsWhole(problem, {{3}}, {"a2"}, 1e-12);
    expectAsWhole(problem, {{2, 3}}, {"a1", "a2"}, 1e-12);
  }
}

// ReduceMax takes its axes as an attribute before opset 18.
TEST(ExchangeSoftmax, WritesTheOperatorsOfTheModelsOpset) {
  for (const int opset : {17, 18}) {
    FormProblem problem = softmaxProblem("Softmax", DataType::kFloat64, {3, 8}, 1, false);
    problem.graph.opset_imports[""] = opset;
    problem.graph.nodes.back().opset_version = opset;
    expectAsWhole(problem, {{2}}, {"a1"}, 1e-12);
    const Graph local = runForm(problem, {{2}}, strategyOf(problem, {{2}}, {"a1"})).graphs[0];
    for (const Node& node : local.nodes) {
      EXPECT_EQ(node.opset_version, node.domain.empty() ? opset : 1);
      EXPECT_TRUE(!node.is("ReduceMax") || node.inputs.size() == (opset < 18 ? 1u : 2u));
    }
  }
}

TEST(ExchangeSoftmax, LargeAndMaskedScoresStayFinite) {
  FormProblem problem = softmaxProblem("Softmax", DataType::kFloat32, {1, 6}, 1, false);
  const float inf = std::numeric_limits<float>::infinity();
  problem.given["a"] = makeConstant<float>({1, 6}, {-inf, -inf, -inf, 3000.F, 3001.F, -inf});
  expectAsWhole(problem, {{2}}, {"a1"}, 1e-6);  // one device holds nothing but masked scores
  expectAsWhole(problem, {{3}}, {"a1"}, 1e-6);
}

TEST(ExchangeSoftmax, ExchangesOneMaximumAndOneSumPerMeshAxis) {
  const FormProblem problem = softmaxProblem("Softmax", DataType::kFloat64, {3, 8}, 1, false);
  const FormResult one = runForm(problem, {{2}}, strategyOf(problem, {{2}}, {"a1"}));
  EXPECT_EQ(countNodes(one.graphs[0], "AllReduce"), 2);
  const FormResult two = runForm(problem, {{2, 2}}, strategyOf(problem, {{2, 2}}, {"a1", "a1"}));
  EXPECT_EQ(countNodes(two.graphs[0], "AllReduce"), 4);
  const FormResult rows = runForm(problem, {{3, 2, 1}}, strategyOf(problem, {{3, 2, 1}}, {"a0", "a1", "a1"}));
  EXPECT_EQ(countNodes(rows.graphs[0], "AllReduce"), 2);
}

}  // namespace
}  // namespace pipeshard
