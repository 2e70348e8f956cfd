// The training steps of examples/ under random strategies and specs: every device's graph is proven, and
// together they give the losses and gradients of one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/plan/optimizer.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/autodiff/training.h"
#include "sharding/batch/time_axis.h"
#include "sharding/spmd/batch_moments.h"
#include "sharding/stage/row_sharding.h"
#include "tests/sharding/example_model.h"
#include "tests/sharding/spmd/sharded_runner.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard::testing {
namespace {

ForwardGraph load(const std::string& name, int64_t rows) {
  ForwardGraph forward = exampleForward(name, rows);
  setPrecision(forward.graph, DataType::kFloat64);
  return forward;
}

// Nodes of these phases: what is read from outside, and the loss with all parts of gradients.
Graph pieceOf(const TrainingGraph& training, bool (*is_in)(Phase)) {
  const Graph& graph = training.graph;
  std::vector<NodeId> nodes;
  std::vector<bool> made(graph.values.size(), false), read(graph.values.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!is_in(training.node_phase[n])) continue;
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

// A microbatch of 4 of 8 rows: its step, the piece of it that passes are, and what one device computes.
struct ExampleStep {
  ExampleStep(const char* example, bool (*is_in)(Phase))
      : training(stepOf(example)), piece(pieceOf(training, is_in)) {
    for (ValueId input : piece.inputs)
      inputs[piece.value(input).name] = dataFor(generator, piece.value(input));
    std::vector<std::string> names;
    for (ValueId output : piece.outputs) names.push_back(piece.value(output).name);
    outputs = runGraph(piece, inputs, names);
  }

  static TrainingGraph stepOf(const char* example) {
    ForwardGraph half = load(example, 4);
    const ForwardGraph whole = load(example, 8);
    TimeAxisResult time = splitTimeAxis(half.graph, {half.loss}, half.inputs, {4, 8, &whole.graph, 8});
    half.totals = std::move(time.totals);
    half.microbatches = 2;
    return buildTrainingGraph(std::move(half), parseOptimizer("sgd"));
  }

  TrainingGraph training;
  Graph piece;
  std::mt19937_64 generator{31};
  Tensors inputs, outputs;
};

class SpmdExamples : public ::testing::TestWithParam<const char*> {};

TEST_P(SpmdExamples, AnyShardingGivesTheSameGradients) {
  ExampleStep step(GetParam(), [](Phase phase) { return phase != Phase::kUpdate; });
  for (const char* mesh : {"2", "2x2", "3"}) {
    SCOPED_TRACE(mesh);
    const PieceSharding sharding = randomSharding(step.generator, step.piece, parseMesh(mesh), false);
    std::vector<LocalPiece> pieces = rewriteAll(step.piece, sharding);
    checkPieces(step.piece, step.inputs, step.outputs, sharding, std::move(pieces), 1e-10);
  }
}

// The part of a whole graph's sharding that is about a piece of it.
PieceSharding shardingOfPiece(const TrainingGraph& training, const Graph& piece,
                              const StageSharding& sharding) {
  PieceSharding result{sharding.mesh, CostModel::uniform(sharding.mesh), {}, {}};
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (isPass(training.node_phase[n])) result.strategies.push_back(sharding.strategies[n]);
  }
  for (const Value& value : piece.values)
    result.kept.push_back(sharding.kept[findValue(training.graph, value.name).index()]);
  return result;
}

TEST_P(SpmdExamples, DevicesThatShareRowsExchangeNothingButMomentsOfTheBatch) {
  ExampleStep step(GetParam(), isPass);
  const BatchDependence batch = followBatch(step.training);
  for (const LogicalMesh& mesh : {LogicalMesh{{2, 1}, 4}, LogicalMesh{{3, 1}, 4}, LogicalMesh{{2, 2}, 4}}) {
    SCOPED_TRACE(printMesh(mesh));
    const StageSharding rows = rowSharding(step.training, batch, mesh);
    verifyStageSharding(step.training, allNodes(step.training), rows);
    const PieceSharding sharding = shardingOfPiece(step.training, step.piece, rows);
    std::vector<LocalPiece> pieces = rewriteAll(step.piece, sharding);
    const auto isNormalization = [&](const Node& node) { return needsBatchMoments(node); };
    const bool normalizes = std::any_of(step.piece.nodes.begin(), step.piece.nodes.end(), isNormalization);
    for (const LocalPiece& piece : pieces) EXPECT_EQ(!piece.collectives.empty(), normalizes);
    checkPieces(step.piece, step.inputs, step.outputs, sharding, std::move(pieces), 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, SpmdExamples,
                         ::testing::Values("gpt2.onnx", "llama.onnx", "mlp.onnx", "resnet.onnx"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('.'));
                         });

}  // namespace
}  // namespace pipeshard::testing
