// Normalisations over axes that are cut.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

constexpr DataType kBoth[] = {DataType::kFloat64, DataType::kFloat32};

// Away from zero: a wrong mean would show.
Constant shifted(Constant tensor) {
  if (tensor.data_type == DataType::kFloat64) {
    auto* elements = reinterpret_cast<double*>(tensor.bytes.data());
    for (size_t i = 0; i < tensor.bytes.size() / sizeof(double); ++i) elements[i] += 5;
  } else {
    auto* elements = reinterpret_cast<float*>(tensor.bytes.data());
    for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) elements[i] += 5;
  }
  return tensor;
}

Shape statisticsShape(const Shape& shape, int64_t axis) {
  Shape statistics = shape;
  for (size_t a = axis; a < shape.size(); ++a) statistics[a] = 1;
  return statistics;
}

struct LayerCase {
  Shape shape;
  int64_t axis;
  DataType type;
  DataType statistics;
  bool bias = true;
};

FormProblem layerProblem(const LayerCase& c) {
  std::mt19937_64 generator(7);
  const Shape weights(c.shape.begin() + c.axis, c.shape.end());
  FormProblem problem;
  std::vector<ValueId> inputs{problem.input("x", shifted(randomReals(generator, c.shape, c.type))),
                              problem.input("scale", randomReals(generator, weights, c.type))};
  if (c.bias) inputs.push_back(problem.input("bias", randomReals(generator, weights, c.type)));
  const Shape statistics = statisticsShape(c.shape, c.axis);
  problem.node("", "LayerNormalization", inputs,
               {{c.type, c.shape}, {c.statistics, statistics}, {c.statistics, statistics}},
               {{"axis", c.axis}, {"epsilon", 1e-3F}});
  return problem;
}

FormProblem layerGradient(const LayerCase& c) {
  std::mt19937_64 generator(8);
  const FormProblem forward = layerProblem(c);
  const Tensors statistics = runGraph(forward.graph, forward.given, {"out1", "out2"});
  FormProblem problem;
  const std::vector<ValueId> inputs{
      problem.input("dy", randomReals(generator, c.shape, c.type)), problem.input("x", forward.given.at("x")),
      problem.input("scale", forward.given.at("scale")), problem.input("mean", statistics.at("out1")),
      problem.input("inverse", statistics.at("out2"))};
  problem.node(std::string(kPipeshardDomain), "LayerNormalizationInputGrad", inputs, {{c.type, c.shape}},
               {{"axis", c.axis}});
  return problem;
}

TEST(ExchangeNormalization, LayersOverACutAxis) {
  for (const DataType type : kBoth) {
    // float64 statistics of a float64 layer are no ONNX, but the kernel gives them: float32 ones would hide a
    // wrong digit.
    const LayerCase last{{3, 2, 11}, 2, type, type};
    const LayerCase two{{3, 5, 4}, 1, type, type, false};
    for (const auto& [mesh, factors] : cutsOf("a2")) {
      for (const FormProblem& problem :
           {layerProblem(last), layerGradient(last), layerProblem(two), layerGradient(two)}) {
        expectAsWhole(problem, mesh, factors, toleranceOf(type));
      }
    }
    for (const FormProblem& problem : {layerProblem(two), layerGradient(two)}) {
      expectAsWhole(problem, {{3, 2}}, {"a1", "a2"}, toleranceOf(type));
      expectAsWhole(problem, {{2, 3}}, {"a2", "a0"}, toleranceOf(type));
    }
  }
}

TEST(ExchangeNormalization, StatisticsKeepTheirType) {
  const LayerCase c{{3, 8}, 1, DataType::kFloat64, DataType::kFloat32};
  expectAsWhole(layerProblem(c), {{2}}, {"a1"}, 1e-7);
  expectAsWhole(layerGradient(c), {{2}}, {"a1"}, 1e-12);
}

TEST(ExchangeNormalization, GradientOfALayerExchangesOnce) {
  const LayerCase c{{3, 8}, 1, DataType::kFloat32, DataType::kFloat32};
  const FormProblem problem = layerGradient(c);
  EXPECT_EQ(countNodes(runForm(problem, {{2}}, strategyOf(problem, {{2}}, {"a1"})).graphs[0], "AllReduce"),
            1);
}

// There is no kernel: the definition, written out, is what it is compared with.
TEST(ExchangeNormalization, RootMeanSquareOverACutAxis) {
  std::mt19937_64 generator(7);
  const Shape shape{3, 7};
  FormProblem problem;
  const ValueId x = problem.input("x", randomReals(generator, shape));
  const ValueId scale = problem.input("scale", randomReals(generator, {7}));
  problem.node("", "RMSNormalization", {x, scale}, {{DataType::kFloat64, shape}},
               {{"axis", int64_t{-1}}, {"epsilon", 1e-3F}});
  const std::vector<double> xs = numericElements(problem.given.at("x")),
                            scales = numericElements(problem.given.at("scale"));
  const Strategy strategy = strategyOf(problem, {{3}}, {"a1"});
  const FormResult result = runForm(problem, {{3}}, strategy);
  for (size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (size_t c = 0; c < 7; ++c) squares += xs[row * 7 + c] * xs[row * 7 + c];
    for (const DeviceId device : idsBelow<DeviceId>(3)) {
      const Shard shard = shardOf(strategy.outputs[0], shape, {{3}}, device);
      const std::vector<double> ys = numericElements(result.outputs[device.index()].at("out0"));
      for (int64_t c = 0; c < shard.size[1]; ++c) {
        const size_t whole = shard.start[1] + c;
        const double expected =
            xs[row * 7 + whole] / std::sqrt(squares / 7 + static_cast<double>(1e-3F)) * scales[whole];
        EXPECT_NEAR(ys[row * static_cast<size_t>(shard.size[1]) + static_cast<size_t>(c)], expected, 1e-13);
      }
    }
  }
}

FormProblem rmsProblem(const Shape& shape) {
  std::mt19937_64 generator(9);
  FormProblem problem;
  const ValueId x = problem.input("x", randomReals(generator, shape));
  const ValueId scale = problem.input("scale", randomReals(generator, {shape.back()}));
  problem.node(std::string(kPipeshardDomain), "RMSNormalization", {x, scale},
               {{DataType::kFloat64, shape}, {DataType::kFloat64, statisticsShape(shape, 2)}},
               {{"epsilon", 1e-3F}});
  return problem;
}

FormProblem rmsGradient(const Shape& shape) {
  std::mt19937_64 generator(10);
  const FormProblem forward = rmsProblem(shape);
  const Tensors statistics = runGraph(forward.graph, forward.given, {"out1"});
  FormProblem problem;
  const std::vector<ValueId> inputs{
      problem.input("dy", randomReals(generator, shape)), problem.input("x", forward.given.at("x")),
      problem.input("scale", forward.given.at("scale")), problem.input("inverse", statistics.at("out1"))};
  problem.node(std::string(kPipeshardDomain), "RMSNormalizationInputGrad", inputs,
               {{DataType::kFloat64, shape}}, {});
  return problem;
}

// Ours has a kernel, a second output and a gradient.
TEST(ExchangeNormalization, OurRootMeanSquareOverACutAxis) {
  const Shape shape{3, 2, 11};
  for (const auto& [mesh, factors] : cutsOf("a2")) {
    for (const FormProblem& problem : {rmsProblem(shape), rmsGradient(shape)})
      expectAsWhole(problem, mesh, factors, toleranceOf(DataType::kFloat64));
  }
}

FormProblem batchProblem(const std::string& op_type, DataType type, const Shape& shape) {
  std::mt19937_64 generator(7);
  const Shape channel{shape[1]};
  FormProblem problem;
  const ValueId x = problem.input("x", shifted(randomReals(generator, shape, type)));
  const ValueId scale = problem.input("scale", randomReals(generator, channel, type));
  if (op_type == "BatchNormalization") {
    const ValueId bias = problem.input("bias", randomReals(generator, channel, type));
    const ValueId mean = problem.input("mean", randomReals(generator, channel, type));
    const ValueId variance = problem.input("variance", shifted(randomReals(generator, channel, type)));
    problem.node("", op_type, {x, scale, bias, mean, variance},
                 {{type, shape}, {type, channel}, {type, channel}},
                 {{"training_mode", int64_t{1}}, {"momentum", 0.7F}, {"epsilon", 1e-3F}});
    return problem;
  }
  const ValueId dy = problem.input("dy", randomReals(generator, shape, type));
  const bool of_input = op_type == "BatchNormalizationInputGrad";
  std::vector<std::pair<DataType, Shape>> outputs{{type, of_input ? shape : channel}};
  if (!of_input) outputs.emplace_back(type, channel);
  problem.node(std::string(kPipeshardDomain), op_type,
               of_input ? std::vector{dy, x, scale} : std::vector{dy, x}, outputs, {{"epsilon", 1e-3F}});
  return problem;
}

TEST(ExchangeNormalization, BatchesInTrainingMode) {
  for (const char* op :
       {"BatchNormalization", "BatchNormalizationInputGrad", "BatchNormalizationWeightGrad"}) {
    for (const DataType type : kBoth) {
      const FormProblem image = batchProblem(op, type, {5, 4, 3, 2});
      const FormProblem rows = batchProblem(op, type, {7, 3});
      for (const auto& [mesh, factors] : cutsOf("a0")) {
        expectAsWhole(image, mesh, factors, toleranceOf(type));
        expectAsWhole(rows, mesh, factors, toleranceOf(type));
      }
      expectAsWhole(image, {{2, 3}}, {"a1", "a0"}, toleranceOf(type));
      expectAsWhole(image, {{2, 2}}, {"a3", "a0"}, toleranceOf(type));
    }
  }
}

TEST(ExchangeNormalization, WithGivenMomentsABatchNeedsNoForm) {
  FormProblem problem = batchProblem("BatchNormalization", DataType::kFloat32, {5, 4, 3});
  problem.graph.nodes.back().attributes["training_mode"] = int64_t{0};
  const auto rule = factorRule(problem.graph, problem.theNode());
  EXPECT_EQ(exchangeForm(problem.graph, problem.theNode(), *rule, 0), nullptr);
}

TEST(ExchangeNormalization, NormsOverACutAxis) {
  for (const DataType type : kBoth) {
    for (const int64_t p : {1, 2}) {
      std::mt19937_64 generator(7);
      FormProblem problem;
      const ValueId x = problem.input("x", randomReals(generator, {3, 7, 2}, type));
      problem.node("", "LpNormalization", {x}, {{type, {3, 7, 2}}}, {{"axis", int64_t{1}}, {"p", p}});
      for (const auto& [mesh, factors] : cutsOf("a1"))
        expectAsWhole(problem, mesh, factors, toleranceOf(type));
      expectAsWhole(problem, {{2, 3}}, {"a2", "a1"}, toleranceOf(type));
    }
  }
}

// Two gradients of one tensor share its moments when they are emitted into one graph with one EmittedValues.
TEST(ExchangeNormalization, NodesOfOneGraphShareMoments) {
  const FormProblem problem = batchProblem("BatchNormalizationInputGrad", DataType::kFloat32, {4, 3, 2});
  const LogicalMesh mesh{{2}};
  const Strategy strategy = strategyOf(problem, mesh, {"a0"});
  const MeshGroups groups = meshGroups(mesh);
  Graph local;
  local.opset_imports = problem.graph.opset_imports;
  GraphBuilder builder(local);
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < 3; ++i) {
    const ValueId whole = problem.theNode().inputs[i];
    const Shard shard = shardOf(strategy.inputs[i], problem.graph.shape(whole), mesh, DeviceId(0));
    inputs.push_back(builder.addValue("in", problem.graph.dataType(whole), shard.size));
  }
  EmittedValues emitted;
  for (const int again : {0, 1}) {
    const auto outputs = emitExchangeForm(builder, {problem.graph, mesh, DeviceId(0), groups, &emitted},
                                          problem.theNode(), strategy, inputs);
    EXPECT_TRUE(outputs[0].valid());
    EXPECT_EQ(countNodes(local, "AllReduce"), 4) << again;  // mean, variance, sum of dY and of dY (x - mean)
  }
}

}  // namespace
}  // namespace pipeshard
