#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/loss/axis_names.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

constexpr auto kUsage = ErrorCode::kUsage;

const char* const kModel = R"(<ir_version: 10, opset_import: ["" : 18]>
  g (float[batch,seq,3] x, float[batch,3] z, float[?,3] u) => (float[batch,seq,3] y) { y = Relu(x) })";

TEST(SymbolicDimensions, AreListedWithTheirPlaces) {
  const auto dimensions = symbolicDimensions(testing::graphFromText(kModel));
  ASSERT_EQ(dimensions.size(), 3u);
  EXPECT_EQ(dimensions[0].name, "batch");
  EXPECT_EQ(dimensions[0].places, (std::vector<std::string>{"x axis 0", "z axis 0"}));
  EXPECT_EQ(dimensions[1].name, "seq");
  EXPECT_EQ(dimensions[2].name, "u_axis0");
}

TEST(SymbolicDimensions, BindingGivesStaticShapes) {
  const Graph graph =
      prepareModel(testing::graphFromText(kModel), {{{"batch", 8}, {"seq", 4}, {"u_axis0", 2}}, 1 << 20, {}});
  EXPECT_EQ(graph.shape(findValue(graph, "x")), Shape({8, 4, 3}));
  EXPECT_EQ(graph.shape(findValue(graph, "y")), Shape({8, 4, 3}));
  EXPECT_EQ(graph.shape(findValue(graph, "u")), Shape({2, 3}));
}

TEST(SymbolicDimensions, AnUnboundOneIsNamedWithItsOption) {
  EXPECT_ERROR(prepareModel(testing::graphFromText(kModel), {{{"batch", 8}}, 1 << 20, {}}), kUsage,
               "seq (x axis 1)", "--dim seq=SIZE", "--dim u_axis0=SIZE");
}

TEST(SymbolicDimensions, AnUnknownOneIsRefusedWithTheKnownNames) {
  EXPECT_ERROR(prepareModel(testing::graphFromText(kModel), {{{"bach", 8}}, 1 << 20, {}}), kUsage, "'bach'",
               "batch (x axis 0, z axis 0)");
}

TEST(SymbolicDimensions, ASizeBelowOneIsRefused) {
  EXPECT_ERROR(
      prepareModel(testing::graphFromText(kModel), {{{"batch", 0}, {"seq", 4}, {"u_axis0", 2}}, 1 << 20, {}}),
      kUsage, "'batch'", "0");
}

TEST(SymbolicDimensions, ExpressionsAreEvaluated) {
  const std::map<std::string, int64_t> sizes = {{"batch", 8}, {"s0", 3}};
  EXPECT_EQ(evaluateDimension("batch", sizes), 8);
  EXPECT_EQ(evaluateDimension("16*batch", sizes), 128);
  EXPECT_EQ(evaluateDimension("(s0 + 1)//2 - 1", sizes), 1);
  EXPECT_EQ(evaluateDimension("batch/2", sizes), 4);
  EXPECT_EQ(evaluateDimension("batch/3", sizes), std::nullopt);
  EXPECT_EQ(evaluateDimension("other", sizes), std::nullopt);
  EXPECT_EQ(evaluateDimension("1 - batch", sizes), std::nullopt);
  EXPECT_EQ(evaluateDimension("9223372036854775807*batch", sizes), std::nullopt);
  EXPECT_EQ(evaluateDimension(std::string(100'000, '('), sizes), std::nullopt);
  EXPECT_EQ(evaluateDimension("batch + ", sizes), std::nullopt);
}

TEST(SymbolicDimensions, AnInputMayBeAnExpressionOfOthers) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,3] x, float[b2,3] z) => (float[batch,3] y) { y = Relu(x) })");
  graph.value(graph.inputs[1]).symbols[0] = "2*batch";
  EXPECT_EQ(symbolicDimensions(graph).size(), 1u);
  const Graph prepared = prepareModel(graph, {{{"batch", 5}}, 1 << 20, {}});
  EXPECT_EQ(prepared.shape(prepared.inputs[1]), Shape({10, 3}));
}

TEST(SymbolicDimensions, ASizeThatContradictsTheModelIsTold) {
  const auto refused = [](const char* text, int64_t tokens) {
    const Graph graph = testing::graphFromText(text);
    EXPECT_ERROR(prepareModel(graph, {{{"batch", 2}, {"tokens", tokens}}, 1 << 20, {}}), ErrorCode::kBadModel,
                 "'node0'", "batch = 2 and tokens = 9 are given (--dim, --microbatches)");
  };
  // The table of positions has 8 rows.
  const char* const added = R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,tokens,4] x) => (float[batch,tokens,4] y) <float[8,1] table = {0, 0, 0, 0, 0, 0, 0, 0}> { [node0] y = Add(x, table) })";
  refused(added, 9);
  const char* const gathered = R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,tokens,4] x) => (float[batch,tokens,4] y)
    <float[8,1] table = {0, 0, 0, 0, 0, 0, 0, 0}, int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}> {
      shape = Shape(x)
      tokens = Gather(shape, one)
      places = Range(zero, tokens, one)
      [node0] rows = Gather(table, places)
      y = Add(x, rows) })";
  refused(gathered, 9);
  EXPECT_TRUE(prepareModel(testing::graphFromText(gathered), {{{"batch", 2}, {"tokens", 8}}, 1 << 20, {}})
                  .model_metadata.empty());
}

TEST(SymbolicDimensions, AChosenSizeIsNotCalledGiven) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,tokens,4] x) => (float[batch,tokens,4] y) <float[8,1] table = {0, 0, 0, 0, 0, 0, 0, 0}> { [node0] y = Add(x, table) })");
  PrepareOptions options;
  options.dimensions = {{"batch", 2}, {"tokens", 9}};
  options.chosen = {"tokens"};
  EXPECT_ERROR(prepareModel(graph, options), ErrorCode::kBadModel, "'node0'", "batch = 2 is given (--dim",
               "tokens = 9 is chosen", "--dim tokens=N");
}

// A fault that is there at any size does not send people to look for another.
TEST(SymbolicDimensions, AChosenSizeIsNotNamedWhereItHasNothingToDoWithTheFault) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 8, opset_import: ["" : 9]>
    g (float[batch,2,4] x) => (float[batch,2,4] y)
      <float[2] one = {1, 1}, float[2] zero = {0, 0}> {
      [node0] y, mean, var, saved_mean, saved_var = BatchNormalization(x, one, zero, zero, one) })");
  PrepareOptions options;
  options.dimensions = {{"batch", 1}};
  options.chosen = {"batch"};
  try {
    prepareModel(graph, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.message(),
                ::testing::HasSubstr("'node0' (onnx::BatchNormalization) is in training mode"));
    EXPECT_THAT(error.message(), ::testing::Not(::testing::HasSubstr("--dim")));
  }
}

// As PyTorch's exporters write cross_entropy with probabilities, and an LSTM with a projection.
TEST(SymbolicDimensions, NoSizeIsAskedForWhereNoneMendsTheFile) {
  const auto refused = [](const std::string& body, auto... parts) {
    const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
      g (float[batch,4] x, float[batch,4] z) => (float[m] y) <int64 one = {1}, int64[1] axes = {1}> {)" +
                                               body + "}");
    for (const std::set<std::string>& chosen : {std::set<std::string>{}, std::set<std::string>{"batch"}}) {
      PrepareOptions options;
      options.dimensions = {{"batch", 2}};
      options.chosen = chosen;
      EXPECT_ERROR(prepareModel(graph, options), ErrorCode::kBadModel, parts...);
      try {
        prepareModel(graph, options);
      } catch (const Error& error) {
        const bool of_sizes = error.message().find("batch = 2") != std::string::npos;
        const bool of_none = error.message().find("no size mends that") != std::string::npos;
        EXPECT_NE(of_sizes, of_none) << error.message();
      }
    }
  };
  refused("[node0] y = SoftmaxCrossEntropyLoss(x, z)", "'node0'", "no size mends that", "dynamo=True");
  refused("[node1] y = Concat<axis = 0>(axes, one)", "'node1'", "no size mends that");
  refused("a = ReduceSum<keepdims = 0>(x, axes) [node2] y = Concat<axis = 0>(a, z)", "'node2'",
          "no size mends that");
  refused("[node3] y = MatMul(z, z)", "'node3'", "batch = 2 is ");
  // The number of axes of what a Squeeze without axes makes is a matter of sizes.
  refused("a = Squeeze(x) [node4] y = Concat<axis = 0>(a, axes)", "'node4'", "batch = 2 is ");
}

TEST(SymbolicDimensions, AnOperatorWithoutFloat64IsSaidToHaveFloat32) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (double[2] x) => (double[2] y) { [node0] y = Celu(x) })");
  EXPECT_ERROR(prepareModel(graph, {}), ErrorCode::kBadModel, "'node0' (onnx::Celu)", "--precision float32");
}

// optimum calls an axis of past and present together "past + 1", whatever is behind the past.
const char* const kPast = R"(<ir_version: 10, opset_import: ["" : 18]>
  g (float[batch,tokens] x, float[batch,past] before, float[batch,m] mask) => (float[batch,n] y) {
    all = Concat<axis = 1>(before, x)
    [node1] y = Add(all, mask) })";

Graph pastModel(const char* text = kPast) {
  Graph graph = testing::graphFromText(text);
  graph.value(graph.inputs[2]).symbols[1] = "past + 1";
  graph.value(graph.outputs[0]).symbols[1] = "past + 1";
  return graph;
}

TEST(SymbolicDimensions, AnExpressionIsBoundByItsWholeName) {
  const std::map<std::string, int64_t> sizes = {{"batch", 2}, {"tokens", 10}, {"past", 4}};
  EXPECT_ERROR(prepareModel(pastModel(), {sizes, 1 << 20, {}}), ErrorCode::kBadModel, "'node1'",
               "'past + 1' = 5", "--dim \"past + 1=N\"");
  std::map<std::string, int64_t> whole = sizes;
  whole["past + 1"] = 14;
  const Graph graph = prepareModel(pastModel(), {whole, 1 << 20, {}});
  EXPECT_EQ(graph.shape(graph.inputs[2]), Shape({2, 14}));
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({2, 14}));
}

TEST(AxisNames, OneMoreMayBeAsManyAsThereAre) {
  Graph graph = pastModel();
  EXPECT_TRUE(correctDimensionNames(graph, {{"past + 1", 14}}).empty());
  const std::vector<std::string> lines = correctDimensionNames(graph, {});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("'past + 1' is past + tokens"), std::string::npos) << lines[0];
  for (const int64_t tokens : {1, 10}) {
    const Graph prepared =
        prepareModel(graph, {{{"batch", 2}, {"tokens", tokens}, {"past", 4}}, 1 << 20, {}});
    EXPECT_EQ(prepared.shape(prepared.inputs[2]), Shape({2, 4 + tokens}));
  }
}

TEST(AxisNames, OneMoreStaysWhereItIsTrue) {
  Graph graph = pastModel(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,1] x, float[batch,past] before, float[batch,m] mask, float[tokens] z) => (float[batch,n] y) {
      all = Concat<axis = 1>(before, x)
      y = Add(all, mask) })");
  EXPECT_TRUE(correctDimensionNames(graph, {}).empty());
  EXPECT_EQ(graph.value(graph.inputs[2]).symbols[1], "past + 1");
}

// SegFormer's logits are called as high as the image, and are a quarter of it.
const char* const kQuarter = R"(<ir_version: 10, opset_import: ["" : 18]>
  g (float[batch,3,width] x) => (float[batch,3,width] y) {
    h = MaxPool<kernel_shape = [4], strides = [4]>(x)
    y = Relu(h) })";

TEST(SymbolicDimensions, AnOutputIsWhatItsOperatorsMake) {
  const Graph graph = testing::graphFromText(kQuarter);
  const std::map<std::string, int64_t> sizes = {{"batch", 2}, {"width", 32}};
  const Graph prepared = prepareModel(graph, {sizes, 1 << 20, {}});
  EXPECT_EQ(prepared.shape(prepared.outputs[0]), Shape({2, 3, 8}));
  EXPECT_TRUE(prepared.value(prepared.outputs[0]).symbols.empty());
  const std::vector<std::string> lines = misnamedOutputs(graph, prepared, sizes);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"'y'", "[2,3,32]", "(batch,,width)", "[2,3,8]"})
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  EXPECT_TRUE(misnamedOutputs(prepared, prepared, sizes).empty());
}

TEST(SymbolicDimensions, NumbersOfAnOutputAndTheRowsOfItsBatchAreTrue) {
  const auto refused = [](const char* text) {
    EXPECT_ERROR(prepareModel(testing::graphFromText(text), {{{"batch", 4}, {"width", 32}}, 1 << 20, {}}),
                 ErrorCode::kBadModel, "its output 'y' is");
  };
  refused(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,3,width] x) => (float[batch,3,32] y) {
      h = MaxPool<kernel_shape = [4], strides = [4]>(x)
      y = Relu(h) })");
  // The batch of the example is in the file.
  refused(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,width] x) => (float[batch,n] y) <int64[2] rows = {2, -1}> { y = Reshape(x, rows) })");
}

// pytorch2keras and others declare any rank; ONNX Runtime warns.
TEST(SymbolicDimensions, TheRankOfAnOutputIsWhatItsOperatorsMake) {
  const std::map<std::string, int64_t> sizes = {{"batch", 2}};
  for (const char* declared : {"[n]", "", "[1,n,n]"}) {
    const Graph graph = testing::graphFromText(fmt::format(
        R"(<ir_version: 10, opset_import: ["" : 18]> g (float[batch,4] x) => (float{} y) {{ y = Relu(x) }})",
        declared));
    const Graph prepared = prepareModel(graph, {sizes, 1 << 20, {}});
    EXPECT_EQ(prepared.shape(prepared.outputs[0]), Shape({2, 4}));
    const std::vector<std::string> lines = misnamedOutputs(graph, prepared, sizes);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("'y'"), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("follows from its operators as [2,4]"), std::string::npos) << lines[0];
  }
  EXPECT_ERROR(prepareModel(testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,4] x) => (float[batch,4] y) <float[n] h> { h = Relu(x) y = Abs(h) })"),
                            {sizes, 1 << 20, {}}),
               ErrorCode::kBadModel, "its output 'h' is float32[?] in the model");
}

// Paddle's converter calls every open axis "?".
TEST(SymbolicDimensions, AxesWithoutANameAreEachOfTheirOwn) {
  onnx::ModelProto model = testing::parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu(x) })");
  auto& type = *model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type();
  for (const int axis : {2, 3}) type.mutable_shape()->mutable_dim(axis)->set_dim_param("?");
  const Graph graph = parseModel(model.SerializeAsString(), "", "text");
  const auto dimensions = symbolicDimensions(graph);
  ASSERT_EQ(dimensions.size(), 3u);
  EXPECT_EQ(dimensions[1].name, "x_axis2");
  EXPECT_EQ(dimensions[2].name, "x_axis3");
}

TEST(SymbolicDimensions, ChannelsAreThoseOfTheConvolution) {
  const Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,channels,height,width] x, float[4,3,2,2] w) => (float[batch,4,h,v] y) {
      same = Identity(x)
      y = Conv(same, w) })");
  EXPECT_EQ(dimensionsByWeights(graph), (std::map<std::string, int64_t>{{"channels", 3}}));
}

// x.squeeze() of PyTorch, of one row as of many.
TEST(SymbolicDimensions, ARowStaysABatchUnderASqueezeWithoutAxes) {
  for (const int opset : {11, 13, 18}) {
    const auto prepared = [&](const std::string& shape, const std::string& result, int64_t batch) {
      Graph graph = testing::graphFromText(fmt::format(
          R"(<ir_version: 10, opset_import: ["" : {}]>
          g (float{} x) => (float{} y) {{ a = Relu(x) y = Squeeze(a) }})",
          opset, shape, result));
      return prepareModel(std::move(graph), {{{"batch", batch}}, 1 << 20, {}});
    };
    for (const int64_t rows : {1, 2}) {
      const Graph pooled = prepared("[batch,3,1,1]", "[batch,3]", rows);
      EXPECT_EQ(pooled.shape(pooled.outputs[0]), Shape({rows, 3}));
      const Graph scores = prepared("[batch,1]", "[batch]", rows);
      EXPECT_EQ(scores.shape(scores.outputs[0]), Shape({rows}));
      const Graph features = prepared("[batch,3]", "[batch,3]", rows);
      EXPECT_EQ(features.shape(features.outputs[0]), Shape({rows, 3}));
    }
  }
}

TEST(DefaultDimensions, ComeFromTheMetadata) {
  Graph graph = testing::graphFromText(kModel);
  EXPECT_TRUE(defaultDimensions(graph).empty());
  graph.model_metadata = {{"pipeshard.dimensions", "batch=8,seq=16"}};
  EXPECT_EQ(defaultDimensions(graph), (std::map<std::string, int64_t>{{"batch", 8}, {"seq", 16}}));
  graph.model_metadata = {{"pipeshard.dimensions", "batch=many"}};
  EXPECT_ERROR(defaultDimensions(graph), ErrorCode::kBadModel, "batch=many");
}

TEST(SymbolicDimensions, AWholeNumberIsNoName) {
  onnx::ModelProto model = testing::parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[s1,twelve] x) => (float[s1,12] y) { y = Relu(x) })");
  auto& type = *model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type();
  type.mutable_shape()->mutable_dim(1)->set_dim_param("12");
  const Graph graph = parseModel(model.SerializeAsString(), "", "text");
  EXPECT_EQ(*graph.value(findValue(graph, "x")).shape, Shape({kUnknownSize, 12}));
  const auto dimensions = symbolicDimensions(graph);
  ASSERT_EQ(dimensions.size(), 1u);
  EXPECT_EQ(dimensions[0].name, "s1");
}

// "float32[batch,8]" of a value whose axes are named.
std::string namedAxes(const std::string& model, const std::string& name, const AskedSizes& asked = {}) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]> )" + model);
  nameAxes(graph, {name, "nothing"}, asked);
  const Value& value = graph.value(findValue(graph, name));
  if (!value.shape) return "unknown";
  std::vector<std::string> axes;
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    const bool open = (*value.shape)[axis] < 0;
    const bool named = axis < value.symbols.size() && !value.symbols[axis].empty();
    axes.push_back(!open ? std::to_string((*value.shape)[axis]) : named ? value.symbols[axis] : "?");
  }
  return fmt::format("{}[{}]", dataTypeName(value.data_type), fmt::join(axes, ","));
}

TEST(AxisNames, AreFoundForValuesOfWhichTheFileSaysNothing) {
  const std::string model = R"(g (float[?,4] x, float[4,3] w) => (float[other,3] y)
    <int64[2] rows = {-1, 3}> { h = MatMul(x, w) z = Reshape(h, rows) y = Relu(z) })";
  EXPECT_EQ(namedAxes(model, "h"), "float32[x_axis0,3]");
  EXPECT_EQ(namedAxes(model, "z"), "float32[x_axis0,3]");
  EXPECT_EQ(namedAxes(model, "y"), "float32[x_axis0,3]");
}

TEST(AxisNames, AreSizesAndExpressionsOfTheInputs) {
  const std::string model = R"(
    g (float[batch,8,tokens] x, float[1,8,tokens] first) => (float[batch,n,tokens] y)
    <int64[1] all = {-1}, int64[6] pads = {0, 0, 1, 0, 0, 0}> {
      y = Relu(x) flat = Reshape(x, all) thrice = Concat<axis = 2>(first, first, first)
      ends = Pad(x, pads) })";
  EXPECT_EQ(namedAxes(model, "y"), "float32[batch,8,tokens]");
  EXPECT_EQ(namedAxes(model, "flat"), "float32[8*batch*tokens]");
  EXPECT_EQ(namedAxes(model, "thrice"), "float32[1,8,3*tokens]");
  EXPECT_EQ(namedAxes(model, "ends"), "float32[batch,8,tokens + 1]");
}

TEST(AxisNames, OfAnOutputAreWhatItsOperatorsMake) {
  Graph graph = testing::graphFromText(kQuarter);
  const std::vector<std::string> lines = nameAxes(graph, {"y"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("'y' is [batch,3,width]"), std::string::npos) << lines[0];
  EXPECT_EQ(graph.value(graph.outputs[0]).symbols, (std::vector<std::string>{"batch", "", "width/4"}));
  EXPECT_TRUE(nameAxes(graph, {"y"}).empty());
}

// A detector's scores: places of the image and of one that is half as wide and high.
constexpr const char* kPlaces = R"(g (float[batch,2,h,w] x) => (float[batch,2,n] y)
  <int64[3] flat = {0, 2, -1}> {
    half = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    fine = Reshape(x, flat)
    coarse = Reshape(half, flat)
    y = Concat<axis = 2>(fine, coarse) })";

TEST(AxisNames, AreSizesWhereTheyAreNoExpression) {
  EXPECT_EQ(namedAxes(kPlaces, "y"), "float32[batch,2,n]");
  const AskedSizes asked = {{{"batch", 5}, {"h", 8}, {"w", 6}}, {"batch"}};
  EXPECT_EQ(namedAxes(kPlaces, "y", asked), "float32[batch,2,60]");
  EXPECT_EQ(namedAxes(kPlaces, "fine", asked), "float32[batch,2,h*w]");
  AskedSizes with_name = asked;
  with_name.sizes["n"] = 60;  // as it was asked for once
  EXPECT_EQ(namedAxes(kPlaces, "y", with_name), "float32[batch,2,n]");
  with_name.sizes["n"] = 61;
  EXPECT_EQ(namedAxes(kPlaces, "y", with_name), "float32[batch,2,60]");
}

// A file without shapes, whose rank ONNX finds for sizes alone: [batch,2,w/2], and [1,w].
constexpr const char* kOpenRank = R"(g (float[batch,w] x) => (y)
  <int64[1] first = {0}, int64[1] second = {1}, int64[1] two = {2}, int64[1] rest = {-1}> {
    sizes = Shape(x)
    rows = Gather(sizes, first)
    target = Concat<axis = 0>(rows, two, rest)
    y = Reshape(x, target) })";
constexpr const char* kOneRow = R"(g (float[batch,w] x) => (y) <int64[1] second = {1}, int64[1] one = {1}> {
    sizes = Shape(x)
    width = Gather(sizes, second)
    target = Concat<axis = 0>(one, width)
    y = Reshape(x, target) })";

TEST(AxisNames, AreFoundWhereTheRankFollowsFromSizes) {
  const AskedSizes asked = {{{"batch", 5}, {"w", 6}}, {"batch"}};
  EXPECT_EQ(namedAxes(kOpenRank, "y"), "float32[batch,2,w/2]");
  EXPECT_EQ(namedAxes(kOpenRank, "y", asked), "float32[batch,2,w/2]");
  EXPECT_EQ(namedAxes(kOneRow, "y", {{{"batch", 1}, {"w", 6}}, {"batch"}}), "float32[batch,6]");
  EXPECT_NE(namedAxes(kOneRow, "y", asked), "float32[batch,6]") << "five rows are none";
}

TEST(AxisNames, RanksOfOutputsAreFoundForSizes) {
  const std::string text = R"(<ir_version: 10, opset_import: ["" : 18]> )";
  Graph graph = testing::graphFromText(text + kOneRow);
  findRanksOfOutputs(graph, {{{"batch", 1}, {"w", 6}}, {"batch"}});
  ASSERT_TRUE(graph.value(graph.outputs[0]).shape);
  EXPECT_EQ(graph.value(graph.outputs[0]).shape->size(), 2u);
}

TEST(AxisNames, OfAnOutputOfAnotherRankAreAllNew) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,w] x) => (float[1] y) { y = Relu(x) })");
  const std::vector<std::string> lines = nameAxes(graph, {"y"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("'y' is [1] in the file, but follows from its operators as [batch,w]"),
            std::string::npos)
      << lines[0];
  EXPECT_EQ(graph.value(graph.outputs[0]).symbols, (std::vector<std::string>{"batch", "w"}));
}

// As tf2onnx names the batch, once for every input.
TEST(AxisNames, AreOneWhereDimensionsMustBeOneSize) {
  const std::string model = R"(g (float[unk__1,4] x, float[unk__2,4] z) => (float[unk__3,8] y) {
      y = Concat<axis = 1>(x, z) })";
  EXPECT_EQ(namedAxes(model, "y"), "float32[unk__1,8]");
}

TEST(AxisNames, StayOpenWhereTheyFollowFromData) {
  const std::string model = R"(g (float[batch] x) => (int64[1,n] y) { y = NonZero(x) })";
  EXPECT_EQ(namedAxes(model, "y"), "int64[1,n]");
}

}  // namespace
}  // namespace pipeshard
