// Batch normalisations in inference mode, in the pieces that converters write.
#include "onnx_import/exporter/running_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

Graph graphOf(const std::string& body) {
  return testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x) => (float[2,3] y)
<float[3] gamma = {1, 2, 1}, float[3] beta = {0, 1, 0}, float[3] mean = {1, 2, 3}, float[3] var = {1, 4, 1},
 float epsilon = {0.001}, float one = {1}, float half = {-0.5}, int64[2] row = {1, 3}, int64[1] last = {1}>
{
)" + body + "}");
}

std::vector<std::string> buffers(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    if (roles[id.index()] == InitializerRole::kBuffer) names.push_back(graph.value(id).name);
  }
  return names;
}

// As jax2onnx writes Keras' layer.
TEST(WrittenStatistics, TheMeanInsideTheShift) {
  Graph graph = graphOf(R"(
  m = Reshape (mean, row)
  v = Reshape (var, row)
  sum = Add (v, epsilon)
  root = Sqrt (sum)
  inverse = Div (one, root)
  g = Reshape (gamma, row)
  scale = Mul (inverse, g)
  negative = Neg (m)
  moved = Mul (negative, scale)
  b = Reshape (beta, row)
  shift = Add (moved, b)
  scaled = Mul (x, scale)
  y = Add (scaled, shift)
)");
  EXPECT_THAT(takeWrittenStatistics(graph), HasSubstr("wrote in pieces: var, mean: not trained"));
  EXPECT_THAT(buffers(graph), ::testing::UnorderedElementsAre("mean", "var"));
  EXPECT_EQ(takeWrittenStatistics(graph), "");
}

TEST(WrittenStatistics, TheMeanIsSubtractedFirst) {
  for (const char* const inverse : {"root = Sqrt (sum)\n centred = Sub (x, mean)\n n = Div (centred, root)\n",
                                    "i = Pow (sum, half)\n centred = Sub (x, mean)\n n = Mul (i, centred)\n",
                                    "root = Sqrt (sum)\n i = Reciprocal (root)\n s = Mul (gamma, i)\n"
                                    "centred = Sub (x, mean)\n n = Mul (centred, s)\n"}) {
    Graph graph = graphOf("sum = Add (var, epsilon)\n" + std::string(inverse) + "y = Add (n, beta)\n");
    EXPECT_NE(takeWrittenStatistics(graph), "") << inverse;
    EXPECT_THAT(buffers(graph), ::testing::UnorderedElementsAre("mean", "var")) << inverse;
  }
}

// The variance is that of x; gamma and beta are learned.
TEST(WrittenStatistics, ALayerNormalizationHasNone) {
  Graph graph = graphOf(R"(
  average = ReduceMean (x, last)
  centred = Sub (x, average)
  squares = Mul (centred, centred)
  variance = ReduceMean (squares, last)
  sum = Add (variance, epsilon)
  root = Sqrt (sum)
  n = Div (centred, root)
  scaled = Mul (n, gamma)
  y = Add (scaled, beta)
)");
  EXPECT_EQ(takeWrittenStatistics(graph), "");
}

// A learned scale, a learned width that is read elsewhere, too, and one whose root scales nothing.
TEST(WrittenStatistics, OtherWeightsAreLeftAlone) {
  for (const char* const body :
       {"s = Sub (x, mean)\n m = Mul (s, gamma)\n y = Add (m, beta)\n",
        "sum = Add (var, epsilon)\n r = Sqrt (sum)\n s = Div (x, r)\n y = Mul (s, var)\n",
        "sum = Add (var, one)\n r = Sqrt (sum)\n y = Div (x, r)\n",
        "sum = Add (var, epsilon)\n r = Sqrt (sum)\n y = Add (x, r)\n"}) {
    Graph graph = graphOf(body);
    EXPECT_EQ(takeWrittenStatistics(graph), "") << body;
    EXPECT_TRUE(buffers(graph).empty()) << body;
  }
}

// The user's word comes first.
TEST(WrittenStatistics, TrainTrainsThem) {
  Graph graph = graphOf("sum = Add (var, epsilon)\n r = Sqrt (sum)\n c = Sub (x, mean)\n y = Div (c, r)\n");
  takeWrittenStatistics(graph);
  const ValueId mean = findValue(graph, "mean");
  graph.value(mean).metadata.emplace_back(kTrainedMark, "yes");
  EXPECT_EQ(initializerRoles(graph)[mean.index()], InitializerRole::kParameter);
}

// `num_batches_tracked` counts calls.
TEST(CallsByMean, AreThoseOfOneModule) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x) => (float[2,3] y)
<float[3] s = {1, 2, 1}, float[3] b = {0, 1, 0}, float[3] mean = {1, 2, 3}, float[3] var = {1, 4, 1},
 float[3] other = {1, 2, 3}>
{
  same = Identity (mean)
  h = BatchNormalization (x, s, b, mean, var)
  k = BatchNormalization (h, s, b, same, var)
  y = BatchNormalization (k, s, b, other, var)
})");
  const std::map<ValueId, int> calls = callsByMean(graph);
  EXPECT_EQ(calls.at(findValue(graph, "mean")), 2);
  EXPECT_EQ(calls.at(findValue(graph, "other")), 1);
}

// A file may hand on what each call has updated, or a view of it.
TEST(CallsByMean, AreThoseOfAChain) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x) => (float[2,3] y)
<float[3] s = {1, 2, 1}, float[3] b = {0, 1, 0}, float[3] mean = {1, 2, 3}, float[3] var = {1, 4, 1},
 int64[1] three = {3}>
{
  h, mean1, var1 = BatchNormalization <training_mode = 1> (x, s, b, mean, var)
  viewed = Reshape (mean1, three)
  k, mean2, var2 = BatchNormalization <training_mode = 1> (h, s, b, viewed, var1)
  y, mean3, var3 = BatchNormalization <training_mode = 1> (k, s, b, mean2, var2)
})");
  const std::map<ValueId, int> calls = callsByMean(graph);
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls.at(findValue(graph, "mean")), 3);
}

}  // namespace
}  // namespace pipeshard
