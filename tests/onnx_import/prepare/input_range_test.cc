#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/input_range.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

std::pair<int64_t, int64_t> rangeOf(const Graph& graph, const std::string& input) {
  const IntegerRange range = inputRange(graph, findValue(graph, input));
  return {range.low, range.high};
}

using Range = std::pair<int64_t, int64_t>;

TEST(InputRange, OfTheExampleIsItsVocabulary) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx");
  PrepareOptions options;
  options.dimensions = defaultDimensions(graph);
  graph = prepareModel(std::move(graph), options);
  const int64_t vocabulary = graph.shape(findValue(graph, "lm_head.weight"))[0];
  EXPECT_EQ(rangeOf(graph, "input_ids"), (Range{0, vocabulary}));
  EXPECT_EQ(rangeOf(graph, "labels"), (Range{0, vocabulary}));
}

TEST(InputRange, IgnoresComparisonsWithAnIgnoredLabel) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,7] scores, int64[4] labels) => (float[4] y) <int64 ignore = {-100}, int64 zero = {0}, int64[1] axis = {1}> {
      ignored = Equal(labels, ignore)
      safe = Where(ignored, zero, labels)
      index = Unsqueeze(safe, axis)
      picked = GatherElements <axis = 1> (scores, index)
      y = Squeeze(picked, axis) })");
  EXPECT_EQ(rangeOf(graph, "labels"), (Range{0, 7}));
  EXPECT_EQ(rangeOf(graph, "scores"), (Range{0, 0}));
}

TEST(InputRange, TakesTheSmallestOfSeveralUses) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (int32[4] ids, float[10,2] a, float[2,6] b) => (float[4,2] x, float[2,4] y) {
      wide = Cast <to = 7> (ids)
      x = Gather <axis = 0> (a, wide)
      y = Gather <axis = -1> (b, ids) })");
  EXPECT_EQ(rangeOf(graph, "ids"), (Range{0, 6}));
}

TEST(InputRange, OfAMaskIsZeroOrOne) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (int64[4] mask, bool[4] flag) => (float[4] y, bool[4] z) { y = Cast <to = 1> (mask)  z = Not(flag) })");
  EXPECT_EQ(rangeOf(graph, "mask"), (Range{0, 2}));
  EXPECT_EQ(rangeOf(graph, "flag"), (Range{0, 2}));
}

std::optional<AllowedIntegers> allowedOf(Graph graph, const std::string& input) {
  inferShapes(graph);
  return allowedIntegers(graph, findValue(graph, input));
}

TEST(AllowedIntegers, OfIndicesCountFromTheEndToo) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (int32[4] ids, float[10,2] a, float[2,6] b) => (float[4,2] x, float[2,4] y) {
      wide = Cast <to = 7> (ids)
      x = Gather <axis = 0> (a, wide)
      y = Gather <axis = -1> (b, ids) })");
  EXPECT_EQ(allowedOf(graph, "ids"), (AllowedIntegers{-6, 6, {}}));
  EXPECT_EQ(allowedOf(graph, "a"), std::nullopt);
}

// PyTorch refuses what ONNX's Gather counts from the end.
TEST(AllowedIntegers, OfAnEmbeddingAreNotNegative) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (int64[4] ids, int64[4] index, float[10,2] a) => (float[4,2] x, float[4,2] y) {
      x = Gather (a, ids)
      y = Gather (a, index) })");
  const auto mark = [&](size_t node, const std::string& call, const std::string& function) {
    graph.nodes.at(node).metadata = {
        {"pkg.torch.onnx.fx_node", "%" + call + " : [num_users=1] = call_function[target=torch.ops." +
                                       function + "](args = (%p_weight, %ids), kwargs = {})"}};
  };
  mark(0, "embedding", "aten.embedding.default");
  mark(1, "index", "aten.index.Tensor");
  EXPECT_EQ(allowedOf(graph, "ids"), (AllowedIntegers{0, 10, {}}));
  EXPECT_EQ(allowedOf(graph, "index"), (AllowedIntegers{-10, 10, {}}));
}

TEST(AllowedIntegers, OfLabelsAreClassesAndTheIgnoredOne) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[8,7] scores, int64[2,4] labels, int64[8] plain) => (float x, float y) <int64[1] flat = {-1}> {
      line = Reshape(labels, flat)
      x = SoftmaxCrossEntropyLoss <ignore_index = -100> (scores, line)
      y = SoftmaxCrossEntropyLoss (scores, plain) })");
  EXPECT_EQ(allowedOf(graph, "labels"), (AllowedIntegers{0, 7, -100}));
  EXPECT_EQ(allowedOf(graph, "plain"), (AllowedIntegers{0, 7, {}}));
}

// The number out of range may be one that is cut off or replaced.
TEST(AllowedIntegers, AreNotExactBehindOperatorsThatDropElements) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (int64[4] ids, int64[4] other, bool[4] mask, int64[4] flags, float[10,2] a) => (float[3,2] x, float[4,2] y, float[4] z)
    <int64[1] one = {1}, int64[1] four = {4}, int64 zero = {0}> {
      part = Slice(ids, one, four)
      x = Gather(a, part)
      safe = Where(mask, other, zero)
      y = Gather(a, safe)
      z = Cast <to = 1> (flags) })");
  for (const char* input : {"ids", "other"})
    EXPECT_EQ(allowedOf(graph, input), (AllowedIntegers{-10, 10, {}, false})) << input;
  EXPECT_EQ(allowedOf(graph, "flags"), std::nullopt);
}

}  // namespace
}  // namespace pipeshard
