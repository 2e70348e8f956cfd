// The exported models of examples/: imported, prepared for the whole batch and for a microbatch, in float64,
// with weights read from their files.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "ir/base/error.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/input_range.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/sharding/batch/time_model.h"

namespace pipeshard::testing {
namespace {

constexpr int64_t kBatch = 8;

struct Example {
  Graph graph;
  std::vector<BatchInput> inputs;
  ValueId loss;
  Tensors weights;
};

// Weights become float64, whatever the file has.
Tensors readWeights(const Graph& graph, const PrecisionChange& change) {
  Tensors weights;
  for (const auto& [id, initializer] : graph.initializers) {
    const auto* reference = std::get_if<WeightReference>(&initializer);
    if (reference == nullptr) continue;
    const Value& value = graph.value(id);
    const auto source = change.source_types.find(value.name);
    Constant stored{source == change.source_types.end() ? value.data_type : source->second, *value.shape, {}};
    stored.bytes.resize(reference->length);
    std::ifstream file(graph.directory + "/" + reference->location, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(reference->offset));
    file.read(reinterpret_cast<char*>(stored.bytes.data()), static_cast<std::streamsize>(reference->length));
    PIPESHARD_CHECK(file.good(), "{} is too short", reference->location);
    weights[value.name] = isFloatingPoint(value.data_type)
                              ? makeConstant<double>(stored.shape, numericElements(stored))
                              : stored;
  }
  return weights;
}

Example load(const std::string& name, int64_t batch) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + name);
  const PrecisionChange change = setPrecision(graph, DataType::kFloat64);
  const std::string loss = graph.value(graph.outputs.at(0)).name;
  PrepareOptions options;
  options.dimensions = {{"batch", batch}};
  Example example;
  example.graph = prepareModel(std::move(graph), options);
  for (ValueId input : example.graph.inputs) example.inputs.push_back({input, 0});
  example.loss = findValue(example.graph, loss);
  example.weights = readWeights(example.graph, change);
  return example;
}

Tensors makeBatch(const Graph& graph) {
  std::mt19937_64 generator(11);
  Tensors data;
  for (ValueId input : graph.inputs) {
    const Value& value = graph.value(input);
    if (isFloatingPoint(value.data_type)) {
      data[value.name] = randomReals(generator, *value.shape);
      continue;
    }
    const IntegerRange range = inputRange(graph, input);
    Constant numbers = randomIntegers(generator, *value.shape, range.low, range.high);
    auto* elements = reinterpret_cast<int64_t*>(numbers.bytes.data());
    const int64_t count = elementCount(*value.shape);
    for (int64_t i = 0; value.name == "labels" && i < count; ++i) {
      // most at the start: microbatches get different counts
      if (i < count / 3 ? i % 5 != 0 : i % 7 == 0) elements[i] = -100;
    }
    data[value.name] = numbers;
  }
  return data;
}

void expectMicrobatchesGiveTheWholeLoss(const std::string& name) {
  const Example whole = load(name, kBatch);
  const Tensors batch = makeBatch(whole.graph);
  Tensors given = batch;
  given.insert(whole.weights.begin(), whole.weights.end());
  const std::string loss_name = whole.graph.value(whole.loss).name;
  const double wanted = numericElements(runGraph(whole.graph, given, {loss_name}).at(loss_name)).front();
  EXPECT_TRUE(std::isfinite(wanted));
  EXPECT_GT(wanted, 0);
  const Example half = load(name, kBatch / 2);
  for (int64_t count : {1, 2, 3, 4, 5, 8}) {
    std::map<int64_t, std::pair<Example, TimeAxisResult>> made;  // by rows
    std::vector<BatchPart> parts;
    for (int64_t k = 0; k < count; ++k) {
      const Rows rows = shareOf({0, kBatch}, k, count);
      if (!made.contains(rows.count)) {
        Example part = load(name, rows.count);
        const bool is_whole = rows.count == kBatch;
        const BatchShare share{rows.count, kBatch, is_whole ? &half.graph : &whole.graph,
                               is_whole ? kBatch / 2 : kBatch};
        TimeAxisResult time = splitTimeAxis(part.graph, {part.loss}, part.inputs, share);
        verifyGraph(part.graph);
        made.emplace(rows.count, std::pair(std::move(part), std::move(time)));
      }
      parts.push_back({rows, &made.at(rows.count).first.graph, &made.at(rows.count).second});
    }
    const Constant sum = sumOverParts(parts, whole.inputs, kBatch, batch, whole.weights);
    EXPECT_NEAR(numericElements(sum).front(), wanted, 1e-12 * wanted) << count << " microbatches";
  }
}

TEST(TimeAxisOfExamples, MeanSquaredErrorOfTheMlp) { expectMicrobatchesGiveTheWholeLoss("mlp.onnx"); }

TEST(TimeAxisOfExamples, CrossEntropyOfGpt2WithLabelsIgnoredUnevenly) {
  expectMicrobatchesGiveTheWholeLoss("gpt2.onnx");
}

}  // namespace
}  // namespace pipeshard::testing
