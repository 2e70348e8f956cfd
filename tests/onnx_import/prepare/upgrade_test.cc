#include "onnx_import/prepare/upgrade.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ir/graph/graph_print.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::elementsOf;
using testing::errorOf;
using testing::graphFromText;

using Numbers = std::vector<double>;

// A model of one old opset; `rest`: "(inputs) => (outputs) { nodes }".
Graph oldModel(int opset, const std::string& rest) {
  return graphFromText(fmt::format(R"(<ir_version: 10, opset_import: ["" : {}]> g {})", opset, rest));
}

Graph upgraded(int opset, const std::string& rest) {
  Graph graph = oldModel(opset, rest);
  EXPECT_GT(upgradeOperators(graph), 0);
  EXPECT_EQ(graph.opset_imports.at(""), 18);
  for (const Node& node : graph.nodes) EXPECT_EQ(node.opset_version, 18) << node.op_type;
  verifyGraph(graph);
  return graph;
}

const Node& only(const Graph& graph, std::string_view op) {
  const auto is_it = [&](const Node& node) { return node.is(op); };
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_it);
  if (found == graph.nodes.end() || std::count_if(graph.nodes.begin(), graph.nodes.end(), is_it) != 1)
    fail(ErrorCode::kInternal, "not one {} in\n{}", op, printGraph(graph));
  return *found;
}

Numbers inputOf(const Graph& graph, const Node& node, size_t position) {
  return elementsOf(graph, graph.value(node.inputs.at(position)).name);
}

// Prepared, so that the forms hold before ONNX's own schemas.
Graph checked(Graph graph) {
  Graph prepared = prepareModel(std::move(graph), {});
  checkModel(prepared);
  return prepared;
}

TEST(Upgrade, AGraphOfOpset16Or17StaysAsItIs) {
  for (int opset : {16, 17, 18, 20}) {
    Graph graph = oldModel(
        opset, R"((float[2,3] x) => (float[2] y) { y = ReduceMean <axes = [1], keepdims = 0> (x) })");
    const std::string before = printGraph(graph);
    EXPECT_EQ(upgradeOperators(graph), 0);
    EXPECT_EQ(printGraph(graph), before);
    EXPECT_EQ(graph.opset_imports.at(""), opset);
  }
}

// Their bodies in ONNX are of opset 18. ReduceL2 has a lowering of its own.
TEST(Upgrade, ReductionsThatGetTheirBodiesInOpset18AreBroughtThere) {
  const std::string form = "(float[2,3] x) => (float[2] y) {{ y = {} <axes = [1], keepdims = 0> (x) }}";
  for (int opset : {16, 17}) {
    for (const char* op : {"ReduceL1", "ReduceSumSquare", "ReduceLogSum"}) {
      const Graph graph = upgraded(opset, fmt::format(fmt::runtime(form), op));
      EXPECT_EQ(inputOf(graph, only(graph, op), 1), Numbers{1}) << op;
    }
    Graph other = oldModel(opset, fmt::format(fmt::runtime(form), "ReduceL2"));
    EXPECT_EQ(upgradeOperators(other), 0);
  }
}

TEST(Upgrade, OneOldNodeBringsAllOthersAlong) {
  Graph graph = oldModel(17, R"((float[2,3] x) => (float[2] y) {
    z = ReduceMean <axes = [1], keepdims = 0> (x)  y = Relu(z) })");
  graph.nodes[1].opset_version = 9;
  EXPECT_EQ(upgradeOperators(graph), 2);
  EXPECT_EQ(graph.nodes[0].opset_version, 18);
  EXPECT_EQ(inputOf(graph, graph.nodes[0], 1), Numbers{1});
}

// The body of DynamicQuantizeLinear is of opset 11, and its ReduceMin was another operator in 17.
TEST(Upgrade, BodiesOfOlderOpsetsBringTheGraphToOpset18) {
  const auto supported = [](const Node& node) { return !node.is("DynamicQuantizeLinear"); };
  for (const int opset : {15, 16, 17}) {
    const Graph graph = prepareModel(
        oldModel(opset, R"((float[2,3] x) => (uint8[2,3] y, float scale, uint8 zero, float[2] mean) {
          y, scale, zero = DynamicQuantizeLinear(x)  mean = ReduceMean <axes = [1], keepdims = 0> (x) })"),
        {{}, 1 << 20, supported});
    EXPECT_EQ(only(graph, "ReduceMin").opset_version, 18);
    EXPECT_EQ(inputOf(graph, only(graph, "ReduceMean"), 1), Numbers{1});
    EXPECT_EQ(graph.opset_imports.at(""), 18);
    EXPECT_EQ(graph.shape(graph.outputs[3]), Shape{2});
    checkModel(graph);
  }
}

TEST(Upgrade, AxesBecomeAnInput) {
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
                         "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"}) {
    const Graph graph = checked(upgraded(
        11,
        fmt::format("(float[2,3,4] x) => (float[a] y) {{ y = {} <axes = [0, 2], keepdims = 0> (x) }}", op)));
    const Node& node = only(graph, op);
    EXPECT_FALSE(node.hasAttribute("axes"));
    EXPECT_EQ(inputOf(graph, node, 1), (Numbers{0, 2}));
    EXPECT_TRUE(isMade(graph.value(node.inputs[1])));
    EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({3}));
  }
  const Graph graph = checked(upgraded(12, R"((float[2,1,3] x) => (float[a,b,c,d] y, float[e,f] z) {
    y = Unsqueeze <axes = [1]> (x)  z = Squeeze <axes = [1]> (x) })"));
  EXPECT_EQ(inputOf(graph, only(graph, "Unsqueeze"), 1), Numbers{1});
  EXPECT_EQ(inputOf(graph, only(graph, "Squeeze"), 1), Numbers{1});
  EXPECT_EQ(graph.shape(graph.outputs[1]), Shape({2, 3}));
}

TEST(Upgrade, ReductionsOfAllAxesHaveNoInput) {
  const Graph graph = upgraded(13, "(float[2,3] x) => (float[a,b] y) { y = ReduceMax(x) }");
  EXPECT_EQ(graph.nodes[0].inputs.size(), 1u);
}

TEST(Upgrade, SplitSaysHowManyOrHowLarge) {
  const Graph sized = checked(upgraded(
      9, "(float[5] x) => (float[a] y, float[b] z) { y, z = Split <axis = 0, split = [2, 3]> (x) }"));
  EXPECT_EQ(inputOf(sized, only(sized, "Split"), 1), (Numbers{2, 3}));
  EXPECT_FALSE(only(sized, "Split").hasAttribute("num_outputs"));
  const Graph equal =
      checked(upgraded(13, "(float[6] x) => (float[a] y, float[b] z) { y, z = Split <axis = 0> (x) }"));
  EXPECT_EQ(only(equal, "Split").intAttribute("num_outputs", 0), 2);
}

// Of any opset, in the body of a loop, too.
TEST(Upgrade, PartsOfASplitWithoutANameGetOne) {
  const auto expectParts = [](const Graph& graph, size_t count) {
    size_t splits = 0;
    for (const Node& node : graph.nodes) {
      if (!node.is("Split")) continue;
      ++splits;
      ASSERT_EQ(node.outputs.size(), count);
      for (const ValueId part : node.outputs) {
        ASSERT_TRUE(part.valid());
        EXPECT_EQ(graph.shape(part), (Shape{2, 3}));
      }
    }
    EXPECT_GT(splits, 0u);
  };
  for (const int opset : {13, 18}) {
    const std::string attributes = opset < 18 ? "axis = 1" : "axis = 1, num_outputs = 3";
    for (const std::string parts : {R"("", y, "")", R"("", "", y)", R"(y, "", "")"}) {
      const std::string split = fmt::format("{} = Split <{}> (x)", parts, attributes);
      const Graph graph = checked(oldModel(opset, "(float[2,9] x) => (y) { " + split + " }"));
      expectParts(graph, 3);
      const auto& outputs = only(graph, "Split").outputs;
      EXPECT_EQ(graph.outputs.at(0), outputs.at(parts.find('y') / 4)) << parts;
    }
  }
  expectParts(checked(oldModel(18, R"((float[2,6] x) => (y) {
    trips = Constant <value_int = 2> ()  yes = Constant <value = bool {1}> ()
    start, rest = Split <axis = 1, num_outputs = 2> (x)
    y = Loop (trips, yes, start) <body = b (int64 i, bool go, float[2,3] h) => (bool goes, float[2,3] next) {
      goes = Identity(go)
      twice = Concat <axis = 1> (h, h)
      "", part = Split <axis = 1, num_outputs = 2> (twice)
      next = Relu(part) }> })")),
              2);
}

TEST(Upgrade, SliceReadsItsEnds) {
  const Graph graph = checked(upgraded(
      9, "(float[4,5] x) => (float[a,b] y) { y = Slice <axes = [1], starts = [-3], ends = [9999]> (x) }"));
  const Node& slice = only(graph, "Slice");
  EXPECT_EQ(inputOf(graph, slice, 1), Numbers{-3});
  EXPECT_EQ(inputOf(graph, slice, 2), Numbers{9999});
  EXPECT_EQ(inputOf(graph, slice, 3), Numbers{1});
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({4, 3}));
}

TEST(Upgrade, PadReadsItsSizesAndItsValue) {
  const Graph graph = checked(upgraded(
      9, "(double[4] x) => (double[a] y) { y = Pad <mode = \"constant\", pads = [1, 2], value = 0.5> (x) }"));
  const Node& pad = only(graph, "Pad");
  EXPECT_EQ(inputOf(graph, pad, 1), (Numbers{1, 2}));
  EXPECT_EQ(inputOf(graph, pad, 2), Numbers{0.5});
  EXPECT_EQ(graph.dataType(pad.inputs[2]), DataType::kFloat64);
  const Graph first = upgraded(1, "(float[4] x) => (float[7] y) { y = Pad <paddings = [1, 2]> (x) }");
  EXPECT_EQ(inputOf(first, first.nodes[0], 1), (Numbers{1, 2}));
  EXPECT_EQ(first.nodes[0].inputs.size(), 2u);
}

TEST(Upgrade, ClipReadsItsBounds) {
  const Graph graph =
      checked(upgraded(6, "(float[4] x) => (float[4] y) { n = Neg(x)  y = Clip <max = 6.0> (n) }"));
  const Node& clip = only(graph, "Clip");
  ASSERT_EQ(clip.inputs.size(), 3u);
  EXPECT_FALSE(clip.inputs[1].valid());
  EXPECT_EQ(inputOf(graph, clip, 2), Numbers{6});
}

TEST(Upgrade, ABoundOfATypeThatIsFoundLaterIsCastToIt) {
  Graph graph = oldModel(6, "(float[4] x) => (float[4] y) { y = Clip <max = 6.0> (x) }");
  graph.value(graph.inputs[0]).data_type = DataType::kUndefined;
  upgradeOperators(graph);
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].op_type, "CastLike");
  EXPECT_EQ(graph.nodes[1].inputs.at(2), graph.nodes[0].outputs[0]);
}

TEST(Upgrade, DropoutReadsItsRatioAndTrainsOnlyIfItSaysSo) {
  const Graph graph = upgraded(10, R"((float[4] x) => (float[4] y) { y = Dropout <ratio = 0.25> (x) })");
  EXPECT_EQ(graph.nodes[0].inputs.size(), 2u);
  EXPECT_EQ(inputOf(graph, graph.nodes[0], 1), Numbers{0.25});
  EXPECT_EQ(
      upgraded(6, "(float[4] x) => (float[4] y) { y = Dropout <is_test = 1> (x) }").nodes[0].inputs.size(),
      1u);
  const Graph training = upgraded(6, "(float[4] x) => (float[4] y) { y = Dropout <ratio = 0.25> (x) }");
  EXPECT_EQ(inputOf(training, training.nodes[0], 2), Numbers{1});
  const Graph masked = checked(
      upgraded(7, "(float[4] x) => (float[4] y, float[4] mask) { y, mask = Dropout <ratio = 0.25> (x) }"));
  EXPECT_EQ(masked.dataType(masked.outputs[1]), DataType::kFloat32);
  EXPECT_EQ(only(masked, "Dropout").inputs.size(), 2u);
}

TEST(Upgrade, TopKReadsHowMany) {
  const Graph graph =
      checked(upgraded(9, "(float[4] x) => (float[a] y, int64[b] i) { y, i = TopK <k = 2> (x) }"));
  EXPECT_EQ(inputOf(graph, only(graph, "TopK"), 1), Numbers{2});
  EXPECT_EQ(graph.shape(graph.outputs[1]), Shape({2}));
}

TEST(Upgrade, SoftmaxOfTheLastAxisStaysOneNode) {
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax"}) {
    for (const char* axis : {"", "<axis = 1>", "<axis = -1>"}) {
      const Graph graph =
          upgraded(11, fmt::format("(float[2,3] x) => (float[2,3] y) {{ y = {} {} (x) }}", op, axis));
      ASSERT_EQ(graph.nodes.size(), 1u);
      EXPECT_EQ(graph.nodes[0].intAttribute("axis", 7), -1);
    }
  }
}

TEST(Upgrade, SoftmaxOfSeveralAxesFlattensThem) {
  const Graph graph = upgraded(11, R"((float[2,3,N] x) => (float[2,3,N] y) { y = Softmax(x) })");
  ASSERT_EQ(graph.nodes.size(), 4u);
  const Node& flatten = only(graph, "Flatten");
  const Node& softmax = only(graph, "Softmax");
  const Node& reshape = only(graph, "Reshape");
  EXPECT_EQ(flatten.intAttribute("axis", 0), 1);
  EXPECT_EQ(softmax.inputs, flatten.outputs);
  EXPECT_EQ(softmax.intAttribute("axis", 0), -1);
  EXPECT_EQ(reshape.inputs, (std::vector<ValueId>{softmax.outputs[0], only(graph, "Shape").outputs[0]}));
  EXPECT_EQ(reshape.outputs, graph.outputs);
}

TEST(Upgrade, BatchNormalizationOfInference) {
  const Graph graph =
      checked(upgraded(6, R"((float[2,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v) =>
    (float[2,3,4,4] y) {
      y = BatchNormalization <is_test = 1, spatial = 1, epsilon = 0.01> (x, s, b, m, v) })"));
  EXPECT_EQ(only(graph, "BatchNormalization").attributes.size(), 1u);
}

TEST(Upgrade, BatchNormalizationOfTrainingIsRefused) {
  const auto refused = [](const char* outputs, const char* attributes) {
    const Error error = errorOf([&] {
      Graph graph =
          oldModel(9, fmt::format(R"((float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) =>
        (float[2,3,4] y) {{ {} = BatchNormalization {} (x, s, b, m, v) }})",
                                  outputs, attributes));
      for (Node& node : graph.nodes) node.opset_version = 7;
      upgradeOperators(graph);
    });
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    return std::string(error.what());
  };
  EXPECT_NE(refused("y, p, q", "").find("training"), std::string::npos);
  EXPECT_NE(refused("y", "<spatial = 0>").find("spatial"), std::string::npos);
}

TEST(Upgrade, UpsampleIsAResize) {
  const auto checkForm = [](const Graph& graph, const Numbers& scales) {
    const Node& resize = only(graph, "Resize");
    EXPECT_EQ(resize.stringAttribute("mode", ""), "linear");
    EXPECT_EQ(resize.stringAttribute("coordinate_transformation_mode", ""), "asymmetric");
    EXPECT_EQ(resize.stringAttribute("nearest_mode", ""), "floor");
    ASSERT_EQ(resize.inputs.size(), 3u);
    EXPECT_FALSE(resize.inputs[1].valid());
    EXPECT_EQ(inputOf(graph, resize, 2), scales);
  };
  const std::string x = "(float[1,1,2,2] x) => (float[a,b,c,d] y)";
  checkForm(
      upgraded(1, x + "{ y = Upsample <mode = \"bilinear\", height_scale = 2.0, width_scale = 3.0> (x) }"),
      {1, 1, 2, 3});
  checkForm(upgraded(7, x + "{ y = Upsample <mode = \"linear\", scales = [1.0, 1.0, 2.0, 3.0]> (x) }"),
            {1, 1, 2, 3});
  const std::string given = x + "<float[4] s = {1, 1, 2, 4}>";
  checkForm(checked(upgraded(9, given + "{ y = Upsample <mode = \"linear\"> (x, s) }")), {1, 1, 2, 4});
  checkForm(checked(upgraded(10, given + "{ y = Resize <mode = \"linear\"> (x, s) }")), {1, 1, 2, 4});
}

TEST(Upgrade, ResizeWithAModeThatIsGoneKeepsItsVersion) {
  Graph graph =
      oldModel(11, R"((float[1,1,2,2] x, float[8] r) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2, 2}> {
    y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, r, s) })");
  EXPECT_EQ(upgradeOperators(graph), 0);
  EXPECT_EQ(graph.nodes[0].opset_version, 11);
}

TEST(Upgrade, CastNamesItsTypeByNumber) {
  const Graph graph = upgraded(1, "(float[2] x) => (int64[2] y) { y = Cast <to = \"INT64\"> (x) }");
  EXPECT_EQ(graph.nodes[0].intAttribute("to", 0), 7);
}

TEST(Upgrade, OperandsAreAlignedByAxesBehind) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow"}) {
    const Graph graph = checked(upgraded(6, fmt::format("(float[2,3,4,5] x, float[3,4] b) => (float[2,3,4,5] "
                                                        "y) {{ y = {} <broadcast = 1, axis = 1> (x, b) }}",
                                                        op)));
    EXPECT_EQ(inputOf(graph, only(graph, "Unsqueeze"), 1), Numbers{2});
    EXPECT_TRUE(only(graph, op).attributes.empty());
  }
  for (const char* op : {"And", "Or", "Xor", "Equal"}) {
    const Graph graph = checked(upgraded(
        6,
        fmt::format("(bool[2,3] x, bool[2] b) => (bool[2,3] y) {{ y = {} <broadcast = 1, axis = 0> (x, b) }}",
                    op)));
    EXPECT_EQ(inputOf(graph, only(graph, "Unsqueeze"), 1), Numbers{1});
  }
  for (const char* op : {"Greater", "Less"}) {
    const Graph graph = checked(upgraded(
        6,
        fmt::format("(float[2,3] x, float[3] b) => (bool[2,3] y) {{ y = {} <broadcast = 1> (x, b) }}", op)));
    EXPECT_EQ(graph.nodes.size(), 1u);
  }
}

TEST(Upgrade, OperandsOfUnknownRankKeepTheirVersion) {
  Graph graph = oldModel(6, R"((float[2,3] x, float[2] b) => (float[2,3] y) {
    n = Neg(b)  y = Add <broadcast = 1, axis = 0> (x, n) })");
  graph.value(graph.inputs[1]).shape.reset();
  EXPECT_EQ(upgradeOperators(graph), 1);
  EXPECT_EQ(graph.nodes[1].opset_version, 6);
  EXPECT_EQ(graph.nodes[1].intAttribute("axis", 7), 0);
}

TEST(Upgrade, GemmBroadcastsWithoutBeingTold) {
  const Graph graph = checked(upgraded(6, R"((float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) {
    y = Gemm <broadcast = 1, transA = 0> (a, b, c) })"));
  EXPECT_FALSE(only(graph, "Gemm").hasAttribute("broadcast"));
}

TEST(Upgrade, PReluHasItsSlopesAtTheChannels) {
  const Graph graph = checked(
      upgraded(6, "(float[2,3,4,5] x, float[3] slope) => (float[2,3,4,5] y) { y = PRelu(x, slope) }"));
  EXPECT_EQ(inputOf(graph, only(graph, "Unsqueeze"), 1), (Numbers{1, 2}));
  EXPECT_EQ(upgraded(7, "(float[2,3,4] x, float[4] slope) => (float[2,3,4] y) { y = PRelu(x, slope) }")
                .nodes.size(),
            1u);
}

TEST(Upgrade, ScatterHasANewName) {
  const Graph graph = checked(upgraded(
      9, "(float[4] x, int64[2] i, float[2] u) => (float[4] y) { y = Scatter <axis = 0> (x, i, u) }"));
  EXPECT_EQ(graph.nodes[0].op_type, "ScatterElements");
}

TEST(Upgrade, ReshapeAndTileReadTheirSizes) {
  const Graph reshaped = upgraded(1, "(float[4,3] x) => (float[2,6] y) { y = Reshape <shape = [2, 6]> (x) }");
  EXPECT_EQ(inputOf(reshaped, reshaped.nodes[0], 1), (Numbers{2, 6}));
  const Graph tiled = upgraded(1, R"((float[4,3] x) => (float[4,6] y) <float tiles = {2}, float axis = {1}> {
    y = Tile(x, tiles, axis) })");
  EXPECT_EQ(tiled.nodes[0].inputs.size(), 2u);
  EXPECT_EQ(inputOf(tiled, tiled.nodes[0], 1), (Numbers{1, 2}));
}

TEST(Upgrade, RecurrentNodesHaveTheirSequencesAnyway) {
  const Graph graph =
      checked(upgraded(3, R"((float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[a,b,c,d] y) {
    y = LSTM <hidden_size = 4, output_sequence = 1> (x, w, r) })"));
  EXPECT_FALSE(only(graph, "LSTM").hasAttribute("output_sequence"));
}

TEST(Upgrade, DefaultsThatHaveChangedAreWrittenDown) {
  EXPECT_FLOAT_EQ(
      upgraded(1, "(float[2] x) => (float[2] y) { y = Selu(x) }").nodes[0].floatAttribute("alpha", 0),
      1.6732f);
  EXPECT_EQ(
      upgraded(3, "(float[2,1] x) => (float[2,2] y) { y = Concat(x, x) }").nodes[0].intAttribute("axis", 0),
      1);
  EXPECT_EQ(upgraded(1, "(float[1,1,4] x) => (float[1,1,1] y) { y = GlobalLpPool <p = 1.0> (x) }")
                .nodes[0]
                .intAttribute("p", 0),
            1);
  EXPECT_EQ(
      upgraded(
          10,
          R"((float[1,1,4,4] x, float[1,4] r, int64[1] i) => (float[1,1,1,1] y) { y = RoiAlign(x, r, i) })")
          .nodes[0]
          .stringAttribute("coordinate_transformation_mode", ""),
      "output_half_pixel");
}

TEST(Upgrade, NotesToTheAllocatorGo) {
  const Graph graph =
      upgraded(1, "(float[2] x, float[2] b) => (float[2] y) { y = Add <consumed_inputs = [0, 0]> (x, b) }");
  EXPECT_TRUE(graph.nodes[0].attributes.empty());
}

TEST(Upgrade, BranchesAreUpgradedToo) {
  const Graph graph = checked(upgraded(9, R"((bool c, float[2,3] x) => (float[a,b,d] y) {
    y = If (c) <then_branch = yes () => (float[a,b,d] p) { p = Unsqueeze <axes = [0]> (x) },
                else_branch = no () => (float[a,b,d] q) {
                  t = Clip <min = 0.0> (x)  q = Unsqueeze <axes = [0]> (t) }> })"));
  const auto branch = std::get<std::shared_ptr<const Graph>>(only(graph, "If").attributes.at("else_branch"));
  EXPECT_EQ(inputOf(*branch, only(*branch, "Unsqueeze"), 1), Numbers{0});
  for (const Node& node : branch->nodes) EXPECT_EQ(node.opset_version, 18);
}

TEST(Upgrade, WhatIsNotInOpset18KeepsItsVersion) {
  Graph graph = oldModel(8, "(float[2] x) => (float[2] y) { y = ImageScaler <scale = 2.0> (x) }");
  EXPECT_EQ(upgradeOperators(graph), 0);
  EXPECT_EQ(graph.nodes[0].opset_version, 8);
}

TEST(Upgrade, NodesKeepTheirNamesAndShareTheirMetadata) {
  Graph graph = oldModel(11, "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }");
  graph.nodes[0].name = "probabilities";
  graph.nodes[0].metadata = {{"module", "head"}};
  upgradeOperators(graph);
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.metadata, (Metadata{{"module", "head"}})) << node.name;
    EXPECT_EQ(node.name.rfind("probabilities", 0), 0u);
  }
  EXPECT_EQ(only(graph, "Softmax").name, "probabilities");
}

}  // namespace
}  // namespace pipeshard
