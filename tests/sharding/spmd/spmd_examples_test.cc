// The training steps of examples/ under random strategies and specs: every device's graph is proven, and
// together they give the losses and gradients of one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/precision.h"
#include "onnx_import/autodiff/training.h"
#include "sharding/batch/time_axis.h"
#include "tests/sharding/example_model.h"
#include "tests/sharding/spmd/sharded_runner.h"

namespace pipeshard::testing {
namespace {

ForwardGraph load(const std::string& name, int64_t rows) {
  ForwardGraph forward = exampleForward(name, rows);
  setPrecision(forward.graph, DataType::kFloat64);
  return forward;
}

// Everything but the update: what is read from outside, and the loss with all parts of gradients.
Graph pieceOf(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  std::vector<NodeId> nodes;
  std::vector<bool> made(graph.values.size(), false), read(graph.values.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (training.node_phase[n] == Phase::kUpdate) continue;
    nodes.push_back(NodeId(n));
    for (ValueId output : graph.nodes[n].outputs) {
      if (output.valid()) made[output.index()] = true;
    }
    for (ValueId input : graph.nodes[n].inputs) {
      if (input.valid()) read[input.index()] = true;
    }
  }
  std::vector<ValueId> inputs;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (read[v] && !made[v] && graph.constant(ValueId(v)) == nullptr) inputs.push_back(ValueId(v));
  }
  std::vector<ValueId> outputs = {training.loss};
  for (const Parameter& parameter : training.parameters) {
    outputs.insert(outputs.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  }
  return extractSubgraph(graph, "step", nodes, inputs, outputs);
}

// Small weights; what has one axis (scales, shifts, running statistics) is about 1.
Constant dataFor(std::mt19937_64& generator, const Value& value) {
  if (!isFloatingPoint(value.data_type)) return randomIntegers(generator, *value.shape, 0, 4);
  const bool vector = value.shape->size() < 2;
  std::vector<double> elements = numericElements(randomReals(generator, *value.shape, value.data_type));
  for (double& element : elements) element = vector ? 1 + 0.1 * std::tanh(element) : 0.1 * element;
  return makeConstant<double>(*value.shape, elements);
}

class SpmdExamples : public ::testing::TestWithParam<const char*> {};

TEST_P(SpmdExamples, AnyShardingGivesTheSameGradients) {
  ForwardGraph half = load(GetParam(), 4);
  const ForwardGraph whole = load(GetParam(), 8);
  TimeAxisResult time = splitTimeAxis(half.graph, half.loss, half.inputs, {4, 8, &whole.graph, 8});
  half.totals = std::move(time.totals);
  half.microbatches = 2;
  const TrainingGraph training = buildTrainingGraph(std::move(half), parseOptimizer("sgd"));
  const Graph piece = pieceOf(training);
  std::mt19937_64 generator(31);
  Tensors inputs;
  for (ValueId input : piece.inputs) inputs[piece.value(input).name] = dataFor(generator, piece.value(input));
  std::vector<std::string> names;
  for (ValueId output : piece.outputs) names.push_back(piece.value(output).name);
  const Tensors outputs = runGraph(piece, inputs, names);
  for (const char* mesh : {"2", "2x2", "3"}) {
    SCOPED_TRACE(mesh);
    const PieceSharding sharding = randomSharding(generator, piece, parseMesh(mesh), false);
    std::vector<LocalPiece> pieces = rewriteAll(piece, sharding);
    checkPieces(piece, inputs, outputs, sharding, std::move(pieces), 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, SpmdExamples,
                         ::testing::Values("gpt2.onnx", "llama.onnx", "mlp.onnx", "resnet.onnx"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('.'));
                         });

}  // namespace
}  // namespace pipeshard::testing
