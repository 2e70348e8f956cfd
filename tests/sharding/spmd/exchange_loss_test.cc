// Classification losses with the vocabulary cut, and means over labels that are cut.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "ir/base/error.h"
#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

struct LossCase {
  Shape scores;  // [n, classes, d..]
  std::string reduction = "mean";
  bool weighted = false;
  std::optional<int64_t> ignore_index = std::nullopt;
  DataType type = DataType::kFloat64;
};

Shape labelShape(const LossCase& c) {
  Shape shape = c.scores;
  shape.erase(shape.begin() + 1);
  return shape;
}

// Some labels are ignored, if any may be; in the first rows all are, so that a device has none that counts.
Constant labelsFor(const LossCase& c) {
  std::mt19937_64 generator(5);
  const Shape shape = labelShape(c);
  std::vector<int64_t> labels = integerElements(randomIntegers(generator, shape, 0, c.scores[1]));
  const size_t row = labels.size() / static_cast<size_t>(shape[0]);
  for (size_t i = 0; c.ignore_index && i < labels.size(); ++i) {
    if (i < 2 * row || i % 3 == 0) labels[i] = *c.ignore_index;
  }
  return makeConstant<int64_t>(shape, labels);
}

Constant weightsFor(const LossCase& c) {
  std::mt19937_64 generator(8);
  std::vector<double> weights = numericElements(randomReals(generator, {c.scores[1]}));
  for (double& weight : weights) weight = 0.5 + weight * weight;
  weights[0] = 0;
  if (c.type == DataType::kFloat64) return makeConstant<double>({c.scores[1]}, weights);
  return makeConstant<float>({c.scores[1]}, std::vector<float>(weights.begin(), weights.end()));
}

std::map<std::string, Attribute> attributesOf(const LossCase& c) {
  std::map<std::string, Attribute> attributes{{"reduction", c.reduction}};
  if (c.ignore_index) attributes["ignore_index"] = *c.ignore_index;
  return attributes;
}

FormProblem lossProblem(const LossCase& c, const std::string& op_type, bool log_prob = true) {
  std::mt19937_64 generator(7);
  FormProblem problem;
  std::vector<ValueId> inputs{problem.input("scores", randomReals(generator, c.scores, c.type)),
                              problem.input("labels", labelsFor(c))};
  if (c.weighted) inputs.push_back(problem.input("weights", weightsFor(c)));
  std::vector<std::pair<DataType, Shape>> outputs{{c.type, c.reduction == "none" ? labelShape(c) : Shape{}}};
  if (log_prob && op_type == "SoftmaxCrossEntropyLoss") outputs.emplace_back(c.type, c.scores);
  problem.node("", op_type, inputs, outputs, attributesOf(c));
  return problem;
}

// A call of ours: also says apart whether a label may be ignored, and its overload.
void callOurs(FormProblem& problem, const LossCase& c, const std::string& op_type,
              const std::vector<ValueId>& inputs, const std::vector<std::pair<DataType, Shape>>& outputs) {
  std::map<std::string, Attribute> attributes = attributesOf(c);
  attributes["has_ignore_index"] = int64_t{c.ignore_index.has_value()};
  problem.node(std::string(kPipeshardDomain), op_type, inputs, outputs, attributes);
  problem.graph.nodes.back().overload = c.reduction + (c.weighted ? "_weighted" : "");
}

// With the two numbers of each label that the gradient needs, or without.
FormProblem crossEntropyProblem(const LossCase& c, bool of_rows = true) {
  std::mt19937_64 generator(7);
  FormProblem problem;
  std::vector<ValueId> inputs{problem.input("scores", randomReals(generator, c.scores, c.type)),
                              problem.input("labels", labelsFor(c))};
  if (c.weighted) inputs.push_back(problem.input("weights", weightsFor(c)));
  std::vector<std::pair<DataType, Shape>> outputs{{c.type, c.reduction == "none" ? labelShape(c) : Shape{}}};
  if (of_rows) outputs.insert(outputs.end(), 2, {c.type, labelShape(c)});
  callOurs(problem, c, "CrossEntropyLoss", inputs, outputs);
  return problem;
}

FormProblem gradProblem(const LossCase& c) {
  std::mt19937_64 generator(6);
  const FormProblem forward = crossEntropyProblem(c);
  const auto rows = runGraph(forward.graph, forward.given, {"out1", "out2"});
  FormProblem problem;
  std::vector<ValueId> inputs{
      problem.input("dloss", randomReals(generator, c.reduction == "none" ? labelShape(c) : Shape{}, c.type)),
      problem.input("scores", forward.given.at("scores")), problem.input("row_max", rows.at("out1")),
      problem.input("row_sum", rows.at("out2")), problem.input("labels", labelsFor(c))};
  if (c.weighted) inputs.push_back(problem.input("weights", weightsFor(c)));
  callOurs(problem, c, "CrossEntropyLossGrad", inputs, {{c.type, c.scores}});
  return problem;
}

void forEachCase(const Shape& scores, DataType type, const std::function<void(const LossCase&)>& body) {
  for (const char* reduction : {"none", "sum", "mean"}) {
    for (const bool weighted : {false, true}) {
      for (const std::optional<int64_t>& ignored :
           {std::optional<int64_t>(), std::optional<int64_t>(-100), std::optional<int64_t>(1)}) {
        body({scores, reduction, weighted, ignored, type});
      }
    }
  }
}

TEST(ExchangeLoss, WithClassesCut) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    forEachCase({7, 11}, type, [&](const LossCase& c) {
      for (const auto& [mesh, factors] : cutsOf("a1")) {
        expectAsWhole(lossProblem(c, "SoftmaxCrossEntropyLoss"), mesh, factors, toleranceOf(type));
        expectAsWhole(lossProblem(c, "SoftmaxCrossEntropyLoss", false), mesh, factors, toleranceOf(type));
        expectAsWhole(crossEntropyProblem(c), mesh, factors, toleranceOf(type));
        expectAsWhole(crossEntropyProblem(c, false), mesh, factors, toleranceOf(type));
        expectAsWhole(lossProblem(c, "NegativeLogLikelihoodLoss"), mesh, factors, toleranceOf(type));
        expectAsWhole(gradProblem(c), mesh, factors, toleranceOf(type));
      }
    });
  }
}

TEST(ExchangeLoss, WithLabelsOf32Bits) {
  FormProblem problem = lossProblem({{5, 7}, "mean", true, 1, DataType::kFloat64}, "SoftmaxCrossEntropyLoss");
  const std::vector<int64_t> labels = integerElements(problem.given.at("labels"));
  problem.given["labels"] = makeConstant<int32_t>({5}, std::vector<int32_t>(labels.begin(), labels.end()));
  problem.graph.value(problem.theNode().inputs[1]).data_type = DataType::kInt32;
  expectAsWhole(problem, {{3}}, {"a1"}, 1e-12);
  expectAsWhole(problem, {{2}}, {"a0"}, 1e-12);
}

TEST(ExchangeLoss, WithClassesAndLabelsCut) {
  forEachCase({5, 7, 3}, DataType::kFloat64, [&](const LossCase& c) {
    for (const std::vector<std::string>& factors : {std::vector<std::string>{"a0", "a1"}, {"a1", "a2"}}) {
      expectAsWhole(lossProblem(c, "SoftmaxCrossEntropyLoss"), {{2, 3}}, factors, 1e-12);
      expectAsWhole(crossEntropyProblem(c), {{2, 3}}, factors, 1e-12);
      expectAsWhole(lossProblem(c, "NegativeLogLikelihoodLoss"), {{2, 3}}, factors, 1e-12);
      expectAsWhole(gradProblem(c), {{2, 3}}, factors, 1e-12);
    }
  });
}

TEST(ExchangeLoss, MeansOverLabelsThatAreCut) {
  forEachCase({5, 7, 3}, DataType::kFloat64, [&](const LossCase& c) {
    if (c.reduction != "mean") return;
    for (const std::vector<std::string>& factors :
         {std::vector<std::string>{"a0", ""}, {"a0", "a2"}, {"", "a0"}}) {
      expectAsWhole(lossProblem(c, "SoftmaxCrossEntropyLoss"), {{2, 3}}, factors, 1e-12);
      expectAsWhole(crossEntropyProblem(c), {{2, 3}}, factors, 1e-12);
      expectAsWhole(lossProblem(c, "NegativeLogLikelihoodLoss"), {{2, 3}}, factors, 1e-12);
      expectAsWhole(gradProblem(c), {{2, 3}}, factors, 1e-12);
    }
    const FormResult result = runForm(gradProblem(c), {{2}}, strategyOf(gradProblem(c), {{2}}, {"a0"}));
    EXPECT_EQ(countNodes(result.graphs[0], "AllReduce"), c.weighted || c.ignore_index ? 1 : 0);
  });
}

TEST(ExchangeLoss, AMeanOverNoLabelGivesNoGradient) {
  for (const std::vector<std::string>& factors : {std::vector<std::string>{"a1"}, {"a0"}}) {
    FormProblem problem = gradProblem({{4, 6}, "mean", false, -100, DataType::kFloat64});
    problem.given["labels"] = makeConstant<int64_t>({4}, {-100, -100, -100, -100});
    expectAsWhole(problem, {{2}}, factors, 0);
  }
}

TEST(ExchangeLoss, TheVocabularyOfGpt2OverFourDevices) {
  const LossCase c{{3, 50257}, "mean", false, -100, DataType::kFloat32};
  expectAsWhole(lossProblem(c, "SoftmaxCrossEntropyLoss"), {{4}}, {"a1"}, 1e-5);
  expectAsWhole(gradProblem(c), {{4}}, {"a1"}, 1e-5);
  const FormResult result =
      runForm(crossEntropyProblem(c), {{4}}, strategyOf(crossEntropyProblem(c), {{4}}, {"a1"}));
  // maxima and sums; the label's own score stays a partial sum
  EXPECT_EQ(countNodes(result.graphs[0], "AllReduce"), 2);
  const FormResult gradient = runForm(gradProblem(c), {{4}}, strategyOf(gradProblem(c), {{4}}, {"a1"}));
  EXPECT_EQ(countNodes(gradient.graphs[0], "AllReduce"), 0) << "both numbers are there";
}

TEST(ExchangeLoss, RefusesALabelThatIsNoClass) {
  for (const int64_t bad : {int64_t{6}, int64_t{-1}}) {
    FormProblem problem = lossProblem({{3, 6}}, "SoftmaxCrossEntropyLoss");
    problem.given["labels"] = makeConstant<int64_t>({3}, {0, bad, 2});
    EXPECT_THROW(runForm(problem, {{2}}, strategyOf(problem, {{2}}, {"a1"})), Error);
  }
}

}  // namespace
}  // namespace pipeshard
