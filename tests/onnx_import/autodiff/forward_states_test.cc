// Running statistics: which initializers they are, and what a forward pass makes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kMomentum = 0.75f;
const std::map<std::string, Attribute> kTraining = {{"training_mode", int64_t{1}}, {"momentum", kMomentum}};
const std::vector<double> kMean = {0.1, -0.2};
const std::vector<double> kVariance = {1.5, 0.5};
const Shape kShape = {2, 2, 3};  // channels on axis 1

struct Module {
  ValueId scale, bias, mean, variance;
};

ValueId buffer(TestGraph& test, const std::string& name, const std::vector<double>& content) {
  return test.builder().addConstant(name, makeTensor({2}, content));
}

Module makeModule(TestGraph& test, const std::string& name) {
  return {test.parameter(name + ".scale", {2}), test.parameter(name + ".bias", {2}),
          buffer(test, name + ".mean", kMean), buffer(test, name + ".variance", kVariance)};
}

// The node's three outputs.
std::vector<ValueId> apply(TestGraph& test, const Module& module, ValueId x) {
  return test.ops("BatchNormalization", {x, module.scale, module.bias, module.mean, module.variance}, 3,
                  kTraining);
}

ValueId input(TestGraph& test, const std::string& name, uint64_t seed) {
  return test.input(name, randomTensor(kShape, seed));
}

ValueId sumOf(TestGraph& test, const std::vector<ValueId>& values) {
  std::vector<ValueId> sums;
  for (ValueId value : values)
    sums.push_back(test.op("ReduceSum", {test.op("Mul", {value, value})}, {{"keepdims", int64_t{0}}}));
  return test.op("Sum", sums);
}

TrainingGraph build(TestGraph& test, ValueId loss) {
  ForwardGraph forward;
  forward.graph = test.graph();
  forward.loss = loss;
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  return buildTrainingGraph(std::move(forward), {});
}

std::vector<std::string> stateNames(const TrainingGraph& training) {
  std::vector<std::string> names;
  for (const ForwardState& state : training.forward_states)
    names.push_back(training.graph.value(state.value).name);
  return names;
}

// What one forward pass makes of each state.
std::vector<std::vector<double>> updatedStates(const TrainingGraph& training, const TestGraph& test) {
  std::vector<NodeId> forward;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.node_phase[n] == Phase::kForward) forward.emplace_back(n);
  }
  const Tensors tensors = Interpreter(training.graph, forward).run(test.contents());
  std::vector<std::vector<double>> result;
  for (const ForwardState& state : training.forward_states)
    result.push_back(elementsOf(tensors.at(training.graph.value(state.updated).name)));
  return result;
}

// ONNX's definition, element by element: the moments of each channel of x, the variance divided by the count.
void expectUpdate(std::vector<double>& mean, std::vector<double>& variance, const Constant& x) {
  const std::vector<double> elements = elementsOf(x);
  for (size_t c = 0; c < 2; ++c) {
    std::vector<double> channel;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i / 3 % 2 == c) channel.push_back(elements[i]);
    }
    double sum = 0;
    for (double value : channel) sum += value;
    const double average = sum / 6;
    double squares = 0;
    for (double value : channel) squares += (value - average) * (value - average);
    mean[c] = mean[c] * kMomentum + average * (1 - kMomentum);
    variance[c] = variance[c] * kMomentum + squares / 6 * (1 - kMomentum);
  }
}

void expectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << i;
}

TEST(ForwardStates, AreRunningStatisticsUpdatedByThePopulationMomentsOfTheMicrobatch) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const TrainingGraph training = build(test, sumOf(test, {apply(test, makeModule(test, "bn"), x)[0]}));
  EXPECT_THAT(stateNames(training), ElementsAre("bn.mean", "bn.variance"));
  std::vector<double> mean = kMean, variance = kVariance;
  expectUpdate(mean, variance, test.contents().at("x"));
  const auto updated = updatedStates(training, test);
  expectNear(updated.at(0), mean);
  expectNear(updated.at(1), variance);
}

TEST(ForwardStates, AreUpdatedAlsoWhereTheFileLeavesTheOutputsUnnamed) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const ValueId y = apply(test, makeModule(test, "bn"), x)[0];
  std::vector<ValueId>& outputs = test.graph().nodes.back().outputs;
  outputs[1] = outputs[2] = ValueId();
  const TrainingGraph training = build(test, sumOf(test, {y}));
  std::vector<double> mean = kMean, variance = kVariance;
  expectUpdate(mean, variance, test.contents().at("x"));
  const auto updated = updatedStates(training, test);
  expectNear(updated.at(0), mean);
  expectNear(updated.at(1), variance);
  EXPECT_EQ(training.graph.value(training.forward_states[0].updated).name, "bn.mean.updated");
}

TEST(ForwardStates, OfAModuleAppliedTwiceAreUpdatedInTurn) {
  TestGraph test;
  const ValueId a = input(test, "a", 1);
  const ValueId b = input(test, "b", 2);
  const Module module = makeModule(test, "bn");
  const ValueId first = apply(test, module, a)[0];
  const TrainingGraph training = build(test, sumOf(test, {first, apply(test, module, b)[0]}));
  EXPECT_THAT(stateNames(training), ElementsAre("bn.mean", "bn.variance"));
  std::vector<double> mean = kMean, variance = kVariance;
  expectUpdate(mean, variance, test.contents().at("a"));
  expectUpdate(mean, variance, test.contents().at("b"));
  const auto updated = updatedStates(training, test);
  expectNear(updated.at(0), mean);
  expectNear(updated.at(1), variance);
}

TEST(ForwardStates, FollowAChainThatTheFileWrites) {
  TestGraph test;
  const ValueId a = input(test, "a", 1);
  const ValueId b = input(test, "b", 2);
  Module module = makeModule(test, "bn");
  const std::vector<ValueId> first = apply(test, module, a);
  module.mean = first[1];
  module.variance = first[2];
  const std::vector<ValueId> second = apply(test, module, b);
  const std::string updated_name = test.graph().value(second[2]).name;
  const TrainingGraph training = build(test, sumOf(test, {first[0], second[0]}));
  EXPECT_THAT(stateNames(training), ElementsAre("bn.mean", "bn.variance"));
  EXPECT_EQ(training.graph.value(training.forward_states.at(1).updated).name, updated_name);
  std::vector<double> mean = kMean, variance = kVariance;
  expectUpdate(mean, variance, test.contents().at("a"));
  expectUpdate(mean, variance, test.contents().at("b"));
  expectNear(updatedStates(training, test).at(0), mean);
}

// So PyTorch's exporter writes the second call of a module.
TEST(ForwardStates, AreReadThroughNodesThatChangeNothing) {
  for (const bool reshaped : {false, true}) {
    TestGraph test;
    const ValueId a = input(test, "a", 1);
    const ValueId b = input(test, "b", 2);
    Module module = makeModule(test, "bn");
    const ValueId first = apply(test, module, a)[0];
    const auto copy = [&](ValueId statistic) {
      if (!reshaped) return test.op("Identity", {statistic});
      const ValueId row = test.op("Unsqueeze", {statistic, test.integers({0})});
      return test.op("Squeeze", {row, test.integers({0})});
    };
    module.mean = copy(module.mean);
    module.variance = copy(module.variance);
    const TrainingGraph training = build(test, sumOf(test, {first, apply(test, module, b)[0]}));
    EXPECT_THAT(stateNames(training), ElementsAre("bn.mean", "bn.variance"));
    std::vector<double> mean = kMean, variance = kVariance;
    expectUpdate(mean, variance, test.contents().at("a"));
    expectUpdate(mean, variance, test.contents().at("b"));
    const auto updated = updatedStates(training, test);
    expectNear(updated.at(0), mean);
    expectNear(updated.at(1), variance);
  }
}

// Two calls of a module in a file, of which the second reads `mean` as the mean. The statistics are small
// enough to be folded.
Graph twoCalls(const std::string& mean) {
  return graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float loss)
      <float[3] scale = {1,2,3}, float[3] shift = {1,2,3}, float[3] running_mean = {1,2,3},
       float[3] running_var = {1,2,3}> {
      y, mean_1, var_1 = BatchNormalization <training_mode = 1> (x, scale, shift, running_mean, running_var)
      half = Cast <to = 10> (running_mean)
      rounded = Cast <to = 1> (half)
      same = Identity (running_mean)
      variance = Identity (running_var)
      z, mean_last, var_last = BatchNormalization <training_mode = 1> (y, scale, shift, )" +
                       mean + R"(, variance)
      squares = Mul (z, z)
      loss = ReduceSum <keepdims = 0> (squares) })");
}

TrainingGraph prepareAndBuild(Graph graph) {
  ForwardGraph forward;
  forward.graph = prepareModel(std::move(graph), {});
  forward.loss = findValue(forward.graph, "loss");
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  return buildTrainingGraph(std::move(forward), {});
}

TEST(ForwardStates, OfASecondCallAreNotFoldedIntoConstants) {
  const TrainingGraph training = prepareAndBuild(twoCalls("same"));
  EXPECT_THAT(stateNames(training), ElementsAre("running_mean", "running_var"));
  EXPECT_EQ(training.graph.value(training.forward_states.at(0).updated).name, "mean_last");
  EXPECT_EQ(training.graph.value(training.forward_states.at(1).updated).name, "var_last");
}

TEST(ForwardStates, OfWhichASecondCallReadsOtherNumbersAreRefused) {
  try {
    prepareAndBuild(twoCalls("rounded"));
    FAIL() << "no refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'running_mean'"), HasSubstr("Cast")));
  }
}

TEST(ForwardStates, AreNeitherGivenStatisticsNorConstantsOfTheFileNorWhatTheLossDoesNotNeed) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const Module given = makeModule(test, "given");
  const ValueId inference =
      test.op("BatchNormalization", {x, given.scale, given.bias, given.mean, given.variance});
  const Module constant = makeModule(test, "constant");
  for (ValueId id : {constant.mean, constant.variance}) markFolded(test.graph().value(id));
  const ValueId stateless = apply(test, constant, x)[0];
  apply(test, makeModule(test, "unused"), x);
  EXPECT_THAT(stateNames(build(test, sumOf(test, {inference, stateless}))), IsEmpty());
}

TEST(ForwardStates, AreNotLearnedEvenIfTheExporterCallsThemParameters) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const Module module = makeModule(test, "bn");
  test.graph()
      .value(module.mean)
      .metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  const TrainingGraph training = build(test, sumOf(test, {apply(test, module, x)[0]}));
  EXPECT_EQ(training.forward_states.size(), 2u);
  for (const Parameter& parameter : training.parameters)
    EXPECT_NE(training.graph.value(parameter.value).name, "bn.mean");
}

void expectRefusal(TestGraph& test, ValueId loss, const std::string& state, const std::string& reader) {
  try {
    build(test, loss);
    FAIL() << "no refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'" + state + "'"), HasSubstr(reader)));
  }
}

TEST(ForwardStates, ThatAnotherCallHasUpdatedSinceAreRefused) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  Module module = makeModule(test, "bn");
  const std::vector<ValueId> first = apply(test, module, x);
  module.mean = first[1];
  module.variance = first[2];
  const ValueId second = apply(test, module, x)[0];
  const ValueId third = apply(test, module, x)[0];
  test.graph().nodes.back().name = "third";
  test.graph().value(first[1]).name = "updated";
  expectRefusal(test, sumOf(test, {first[0], second, third}), "updated", "'third'");
}

TEST(ForwardStates, OfTwoModulesThatShareAMeanAreRefused) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const Module one = makeModule(test, "one");
  Module two = makeModule(test, "two");
  two.mean = one.mean;
  const ValueId first = apply(test, one, x)[0];
  const ValueId second = apply(test, two, x)[0];
  test.graph().nodes.back().name = "second";
  expectRefusal(test, sumOf(test, {first, second}), "one.mean", "'second'");
}

TEST(ForwardStates, ThatAreMeanAndVarianceAtOnceAreRefused) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  Module module = makeModule(test, "bn");
  module.variance = module.mean;
  const ValueId y = apply(test, module, x)[0];
  expectRefusal(test, sumOf(test, {y}), "bn.mean", "BatchNormalization");
}

TEST(ForwardStates, ThatAnotherOperatorReadsAreRefused) {
  TestGraph test;
  const ValueId x = input(test, "x", 1);
  const Module module = makeModule(test, "bn");
  const ValueId y = apply(test, module, x)[0];
  const ValueId penalty = test.op("Exp", {module.variance});
  test.graph().nodes.back().name = "penalty";
  expectRefusal(test, sumOf(test, {y, penalty}), "bn.variance", "'penalty'");
}

// No gradient reaches statistics either, but forward passes replace them.
TEST(ForwardStates, ThatAreMarkedAsParametersAreNoConstants) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x, int64[2] labels) => (float loss)
      <float[3] scale = {1,2,3}, float[3] shift = {1,2,3}, float[3] mean = {1,2,3}, float[3] var = {1,2,3},
       float[3] classes = {1,2,4}> {
      y, mean_1, var_1 = BatchNormalization <training_mode = 1> (x, scale, shift, mean, var)
      loss = SoftmaxCrossEntropyLoss (y, labels, classes) })");
  for (const char* name : {"scale", "shift", "mean", "var", "classes"})
    setExportedKind(graph.value(findValue(graph, name)), "PARAMETER");
  EXPECT_EQ(constantParameters(graph, findValue(graph, "loss")),
            std::vector<ValueId>{findValue(graph, "classes")});
}

}  // namespace
}  // namespace pipeshard::testing
