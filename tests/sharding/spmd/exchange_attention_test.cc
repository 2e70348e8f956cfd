// Attention's gradients with queries cut, and with heads cut that share keys: the gradients of keys and
// values are partial sums.
#include <gtest/gtest.h>

#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

struct AttentionCase {
  Shape query, key, value;
  Shape mask;  // of the scores, broadcast
  DataType type;
};

// What the forward pass gives its gradient is what it gives.
FormProblem gradientProblem(const AttentionCase& c) {
  std::mt19937_64 generator(3);
  const auto reals = [&](const Shape& shape) { return randomReals(generator, shape, c.type); };
  Shape output = c.query, row = c.query;
  output.back() = c.value.back();
  row.back() = 1;
  const std::map<std::string, Attribute> attributes = {{"overlays", std::string("mask")}};
  Constant mask{DataType::kBool, c.mask, std::vector<std::byte>(elementCount(c.mask), std::byte{1})};
  for (size_t i = 0; i < mask.bytes.size(); i += 3) mask.bytes[i] = std::byte{0};

  FormProblem forward;
  const std::vector<std::pair<std::string, Constant>> given = {
      {"q", reals(c.query)}, {"k", reals(c.key)}, {"v", reals(c.value)}};
  const auto addInputs = [&](FormProblem& problem, std::vector<ValueId>& inputs) {
    for (const auto& [name, tensor] : given) inputs.push_back(problem.input(name, tensor));
    inputs.push_back(problem.constant("scale", randomReals(generator, {}, c.type)));
    inputs.push_back(problem.input("mask", mask));
    inputs.push_back(problem.constant("fill", randomReals(generator, {}, c.type)));
  };
  std::vector<ValueId> inputs;
  std::mt19937_64 again = generator;
  addInputs(forward, inputs);
  forward.node("pipeshard", "Attention", inputs, {{c.type, output}, {c.type, row}, {c.type, row}},
               attributes);
  const Tensors rows = runGraph(forward.graph, forward.given, {"out1", "out2"});

  FormProblem problem;
  generator = again;
  inputs = {problem.input("dy", reals(output)), problem.input("most", rows.at("out1")),
            problem.input("sum", rows.at("out2"))};
  generator = again;
  addInputs(problem, inputs);
  problem.node("pipeshard", "AttentionGrad", inputs, {{c.type, c.query}, {c.type, c.key}, {c.type, c.value}},
               attributes);
  return problem;
}

TEST(ExchangeAttentionTest, QueriesAreCut) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    const FormProblem problem =
        gradientProblem({{2, 3, 12, 4}, {2, 3, 7, 4}, {2, 3, 7, 5}, {2, 1, 12, 7}, type});
    for (const auto& [mesh, factors] : cutsOf("i")) expectAsWhole(problem, mesh, factors, toleranceOf(type));
    expectAsWhole(problem, LogicalMesh{{2, 3}}, {"i", "b1"}, toleranceOf(type));
  }
}

TEST(ExchangeAttentionTest, HeadsThatShareKeysAreCut) {
  const DataType type = DataType::kFloat64;
  const FormProblem problem =
      gradientProblem({{2, 2, 4, 6, 4}, {2, 2, 1, 7, 4}, {2, 2, 1, 7, 5}, {6, 7}, type});
  for (const auto& [mesh, factors] : cutsOf("b2")) expectAsWhole(problem, mesh, factors, toleranceOf(type));
  expectAsWhole(problem, LogicalMesh{{2, 2}}, {"b2", "i"}, toleranceOf(type));
  expectAsWhole(problem, LogicalMesh{{2, 2}}, {"b1", "b2"}, toleranceOf(type));
}

// Keys are whole: a softmax runs over them.
TEST(ExchangeAttentionTest, KeysAreNotCut) {
  const FormProblem problem =
      gradientProblem({{1, 2, 4, 4}, {1, 2, 8, 4}, {1, 2, 8, 4}, {4, 8}, DataType::kFloat32});
  const auto rule = *factorRule(problem.graph, problem.theNode());
  for (int factor = 0; factor < std::ssize(rule.factors); ++factor) {
    const bool is_cut = exchangeForm(problem.graph, problem.theNode(), rule, factor) != nullptr;
    EXPECT_EQ(is_cut, rule.factors[factor].name == "i") << rule.factors[factor].name;
  }
}

}  // namespace
}  // namespace pipeshard
