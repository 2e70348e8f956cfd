// Operators that draw at random: what they draw has the distribution that they say, and depends on the place
// in the whole batch alone.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "ir/base/tensor_box.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/inference.h"
#include "tests/expect_error.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/drawn_content.h"

namespace pipeshard::testing {
namespace {

// A node of one operator, lowered, whose rows are some of a larger batch.
class RandomNode {
 public:
  RandomNode(const std::string& op_type, std::vector<Constant> inputs,
             const std::map<std::string, Attribute>& attributes) {
    std::vector<ValueId> given;
    for (size_t i = 0; i < inputs.size(); ++i)
      given.push_back(test_.input("x" + std::to_string(i), std::move(inputs[i])));
    output_ = test_.op(op_type, given, attributes);
    Graph& graph = test_.graph();
    graph.node(NodeId(graph.nodes.size() - 1)).name = "random";
    EXPECT_EQ(expandUnsupported(graph, [](const Node&) { return false; }), 1);
    inferShapes(graph);
  }

  // Rows from `first` on, of `rows`; -1: all that there are.
  std::vector<double> draw(uint64_t seed = 0, int64_t step = 1, int64_t first = 0, int64_t rows = -1) {
    const Graph& graph = test_.graph();
    Tensors contents = test_.contents();
    for (ValueId id : graph.inputs) {
      const Value& value = graph.value(id);
      if (!value.drawn) continue;
      Shape whole = *value.shape;
      Shard box = wholeBox(whole);
      if (rows >= 0) whole[0] = rows;
      box.start[0] = first;
      contents.insert_or_assign(value.name, drawnContent(value, whole, box, seed, step));
    }
    return elementsOf(Interpreter(graph).run(contents).at(graph.value(output_).name));
  }

 private:
  TestGraph test_;
  ValueId output_;
};

Constant scoresOf(const std::vector<double>& probabilities, int64_t rows) {
  std::vector<double> scores;
  for (int64_t row = 0; row < rows; ++row) {  // what is added to all of a row changes nothing
    for (double p : probabilities) scores.push_back(std::log(p) + static_cast<double>(row % 7) - 3);
  }
  return makeTensor({rows, std::ssize(probabilities)}, scores);
}

// The sum over classes of (drawn - expected)^2 / expected.
double chiSquare(const std::vector<double>& samples, const std::vector<double>& probabilities) {
  std::vector<double> counts(probabilities.size());
  for (double sample : samples) ++counts.at(static_cast<size_t>(sample));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(samples.size());
    if (expected > 0) {
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    } else {
      EXPECT_EQ(counts[i], 0) << "class " << i;
    }
  }
  return sum;
}

// 6 classes that can be drawn: 20.5 is exceeded once in a thousand seeds.
TEST(RandomOperators, MultinomialDrawsWithTheProbabilities) {
  const std::vector<double> probabilities{0, 0.05, 0.4, 0, 0.25, 0.01, 0.19, 0.1, 0};
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    Constant scores = scoresOf(probabilities, 100);
    if (type == DataType::kFloat32) {
      const std::vector<double> wide = elementsOf(scores);
      scores = makeConstant<float>(scores.shape, std::vector<float>(wide.begin(), wide.end()));
    }
    RandomNode node("Multinomial", {scores}, {{"sample_size", int64_t{200}}, {"dtype", int64_t{7}}});
    const std::vector<double> first = node.draw();
    EXPECT_EQ(first.size(), 20'000u);
    EXPECT_LT(chiSquare(first, probabilities), 20.5);
    EXPECT_LT(chiSquare(node.draw(1), probabilities), 20.5);
    EXPECT_LT(chiSquare(node.draw(0, 2), probabilities), 20.5);
  }
}

TEST(RandomOperators, MultinomialDependsOnSeedAndStepAlone) {
  const std::vector<double> even(8, 0.125);
  RandomNode node("Multinomial", {scoresOf(even, 40)}, {{"sample_size", int64_t{50}}});
  const std::vector<double> first = node.draw();
  EXPECT_EQ(node.draw(), first);
  for (const std::vector<double>& other : {node.draw(1), node.draw(0, 2)}) {
    int equal = 0;
    for (size_t i = 0; i < first.size(); ++i) equal += first[i] == other[i] ? 1 : 0;
    EXPECT_NEAR(equal, 250, 74);  // of 2000, five standard deviations: independent of each other
  }
}

TEST(RandomOperators, MultinomialDrawsTheSameHoweverTheBatchIsCut) {
  const int64_t rows = 6, classes = 5;
  const Constant scores = randomTensor({rows, classes}, 3, -2, 2);
  const std::vector<double> all = elementsOf(scores);
  const std::map<std::string, Attribute> attributes{{"sample_size", int64_t{4}}};
  const std::vector<double> whole = RandomNode("Multinomial", {scores}, attributes).draw(5, 2);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{2, 2, 2}, {1, 4, 1}, {5, 1}}) {
    std::vector<double> joined;
    int64_t first = 0;
    for (const int64_t count : counts) {
      const std::vector<double> part(all.begin() + first * classes, all.begin() + (first + count) * classes);
      RandomNode node("Multinomial", {makeTensor({count, classes}, part)}, attributes);
      const std::vector<double> drawn = node.draw(5, 2, first, rows);
      joined.insert(joined.end(), drawn.begin(), drawn.end());
      first += count;
    }
    EXPECT_EQ(joined, whole);
  }
}

TEST(RandomOperators, MultinomialNeedsRowsOfClasses) {
  const auto lower = [](const Shape& shape, int64_t samples) {
    const Constant scores = makeTensor(shape, std::vector<double>(elementCount(shape)));
    RandomNode("Multinomial", {scores}, {{"sample_size", samples}});
  };
  EXPECT_ERROR(lower({1, 2}, 0), ErrorCode::kBadModel, "its sample_size is 0");
  EXPECT_ERROR(lower({2, 0}, 1), ErrorCode::kBadModel, "not a batch of one or more classes");
}

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments momentsOf(const std::vector<double>& numbers) {
  const auto count = static_cast<double>(numbers.size());
  Moments moments{std::accumulate(numbers.begin(), numbers.end(), 0.0) / count, 0};
  for (double number : numbers) moments.variance += (number - moments.mean) * (number - moments.mean) / count;
  return moments;
}

// 100 x 100 numbers; within five standard deviations.
TEST(RandomOperators, OthersHaveTheMomentsThatTheySay) {
  const Constant zeros = makeTensor({100, 100}, std::vector<double>(10'000));
  const Moments uniform =
      momentsOf(RandomNode("RandomUniformLike", {zeros}, {{"low", 1.0F}, {"high", 4.0F}}).draw());
  EXPECT_NEAR(uniform.mean, 2.5, 0.044);
  EXPECT_NEAR(uniform.variance, 0.75, 0.034);
  const Moments normal =
      momentsOf(RandomNode("RandomNormalLike", {zeros}, {{"mean", -1.0F}, {"scale", 2.0F}}).draw());
  EXPECT_NEAR(normal.mean, -1, 0.1);
  EXPECT_NEAR(normal.variance, 4, 0.29);
  const Constant chances = makeTensor({100, 100}, std::vector<double>(10'000, 0.3));
  EXPECT_NEAR(momentsOf(RandomNode("Bernoulli", {chances}, {}).draw()).mean, 0.3, 0.023);
}

}  // namespace
}  // namespace pipeshard::testing
