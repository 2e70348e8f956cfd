#include "onnx_import/row_numbers/row_forms.h"

#include <gtest/gtest.h>

#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::graphFromText;

Graph prepared(const std::string& body, const std::string& inputs, const std::string& output) {
  return prepareModel(graphFromText("<ir_version: 10, opset_import: [\"\" : 18]> g (" + inputs + ") => (" +
                                    output + ") {" + body + "}"),
                      {});
}

const Node& only(const Graph& graph) {
  EXPECT_EQ(graph.nodes.size(), 1u);
  return graph.nodes.at(0);
}

// y[arange(4), i], as pooling by the last token is exported.
constexpr const char* kRows = R"(
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  four = Constant <value_int: int = 4> ()
  last = Constant <value_ints: ints = [-1]> ()
  range = Range(zero, four, one)
  rows = Unsqueeze(range, last)
)";

TEST(RowForms, AnIndexOfEachRowNeedsNoRowNumbers) {
  const Graph graph = prepared(std::string(kRows) + R"(
      column = Unsqueeze(i, last)
      places = Concat <axis = -1> (rows, column)
      y = GatherND(x, places))",
                               "float[4,6,5] x, int64[4] i", "float[4,5] y");
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_TRUE(graph.nodes[0].is("Unsqueeze"));
  EXPECT_TRUE(graph.nodes[1].is("GatherND"));
  EXPECT_EQ(graph.nodes[1].intAttribute("batch_dims", 0), 1);
  EXPECT_EQ(graph.nodes[1].inputs[1], graph.nodes[0].outputs[0]);
}

// x[i, arange(4)] and x[i, j, arange(4)], where the sequence comes first.
TEST(RowForms, RowsThatAreNotTheFirstAxisBecomeIt) {
  Graph graph = prepared(std::string(kRows) + R"(
      column = Unsqueeze(i, last)
      places = Concat <axis = -1> (column, rows)
      y = GatherND(x, places))",
                         "float[6,4,5] x, int64[4] i", "float[4,5] y");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_TRUE(graph.nodes[1].is("Transpose"));
  EXPECT_EQ(graph.nodes[1].intsAttribute("perm"), (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(graph.nodes[2].intAttribute("batch_dims", 0), 1);
  EXPECT_EQ(graph.nodes[2].inputs[0], graph.nodes[1].outputs[0]);
  EXPECT_EQ(graph.nodes[2].inputs[1], graph.nodes[0].outputs[0]);
  graph = prepared(std::string(kRows) + R"(
      first = Unsqueeze(i, last)
      second = Unsqueeze(j, last)
      places = Concat <axis = -1> (first, second, rows)
      y = GatherND(x, places))",
                   "float[6,5,4] x, int64[4] i, int64[4] j", "float[4] y");
  EXPECT_EQ(graph.shape(graph.nodes.back().inputs[0]), (Shape{4, 6, 5}));
  EXPECT_EQ(graph.shape(graph.nodes.back().inputs[1]), (Shape{4, 2}));
  EXPECT_EQ(graph.nodes.back().intAttribute("batch_dims", 0), 1);
}

TEST(RowForms, TheSameColumnOfEveryRowIsAGather) {
  const Graph graph = prepared(std::string(kRows) + R"(
      two = Constant <value_ints: ints = [2]> ()
      sizes = Constant <value_ints: ints = [4, 1]> ()
      column = Expand(two, sizes)
      places = Concat <axis = -1> (rows, column)
      y = GatherND(x, places))",
                               "float[4,6,5] x", "float[4,5] y");
  EXPECT_TRUE(only(graph).is("Gather"));
  EXPECT_EQ(only(graph).intAttribute("axis", 0), 1);
}

// The TorchScript exporter's mask[row, 0, 0, column], the numbers counted in the graph.
TEST(RowForms, AMaskThatIsReadFlatHasNoRowNumbers) {
  for (const int64_t fold_limit : {64, 1 << 20}) {
    PrepareOptions options;
    options.fold_limit_bytes = fold_limit;
    const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (bool[4,6] x) => (bool[4,1,1,6,1] y)
      <int64[4,1,1,1] row = {0, 1, 2, 3}, int64[1,1,1,6] column = {0, 1, 2, 3, 4, 5}, int64 size = {6}> {
      starts = Mul(row, size)
      places = Add(column, starts)
      flat = Flatten <axis = 2> (x)
      y = Gather(flat, places) })"),
                                     options);
    const Node& node = graph.nodes.back();
    ASSERT_TRUE(node.is("Gather")) << fold_limit;
    EXPECT_EQ(node.intAttribute("axis", 0), 1);
    EXPECT_EQ(graph.shape(node.inputs[0]), (Shape{4, 6, 1}));
    EXPECT_EQ(graph.shape(node.inputs[1]), (Shape{1, 1, 6}));
    EXPECT_EQ(graph.shape(node.outputs[0]), (Shape{4, 1, 1, 6, 1}));
  }
}

// The TorchScript exporter's x[arange(4), i].
TEST(RowForms, AnIndexOfEachRowThatIsReadFlatHasNoRowNumbers) {
  const Graph graph = prepared(R"(
      starts = Constant <value_ints: ints = [0, 6, 12, 18]> ()
      places = Add(i, starts)
      flat = Flatten <axis = 2> (x)
      y = Gather(flat, places))",
                               "float[4,6] x, int64[4] i", "float[4,1] y");
  const Node& node = graph.nodes.back();
  ASSERT_TRUE(node.is("GatherND"));
  EXPECT_EQ(node.intAttribute("batch_dims", 0), 1);
  EXPECT_EQ(graph.shape(node.inputs[0]), (Shape{4, 6, 1}));
  EXPECT_EQ(graph.shape(node.inputs[1]), (Shape{4, 1}));
  EXPECT_EQ(graph.shape(node.outputs[0]), (Shape{4, 1}));
}

// A mask of a large batch: its indices are not folded, and it is written as that of a small one.
TEST(RowForms, LargeBatchesAreWrittenAsSmallOnes) {
  for (const int64_t fold_limit : {64, 1 << 20}) {
    PrepareOptions options;
    options.fold_limit_bytes = fold_limit;
    const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,6] x) => (float[4,1,6] y)
      <int64[4,1,1] row = {0, 1, 2, 3}, int64[1,1,6] column = {0, 1, 2, 3, 4, 5}, int64[3] sizes = {4, 1, 6},
       int64[1] last = {-1}> {
      rows = Expand(row, sizes)
      columns = Expand(column, sizes)
      r = Unsqueeze(rows, last)
      c = Unsqueeze(columns, last)
      places = Concat <axis = -1> (r, c)
      y = GatherND(x, places) })"),
                                     options);
    const Node& node = graph.nodes.back();
    EXPECT_TRUE(node.is("Gather")) << fold_limit;
    EXPECT_EQ(node.intAttribute("axis", 0), 1);
    const Constant* indices = graph.constant(node.inputs[1]);
    ASSERT_NE(indices, nullptr);
    EXPECT_EQ(indices->shape, (Shape{1, 6}));
    EXPECT_EQ(integerElements(*indices), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  }
}

// as_strided((4, 2, 3), (6, 3, 1)) of a batch so large that its sum of places is not folded.
TEST(RowForms, PlacesOfALargeBatchMayBeASumOfSeveral) {
  PrepareOptions options;
  options.fold_limit_bytes = 64;
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,6] x) => (float[4,2,3] y)
      <int64[4,1,1] row = {0, 6, 12, 18}, int64[2,1] middle = {0, 3}, int64[3] last = {0, 1, 2},
       int64[1] flat = {-1}> {
      f = Reshape(x, flat)
      partly = Add(row, middle)
      places = Add(partly, last)
      y = Gather(f, places) })"),
                                   options);
  const Node& node = graph.nodes.back();
  EXPECT_TRUE(node.is("Gather"));
  EXPECT_EQ(node.intAttribute("axis", 0), 1);
  const Constant* places = graph.constant(node.inputs[1]);
  ASSERT_NE(places, nullptr);
  EXPECT_EQ(places->shape, (Shape{2, 3}));
  EXPECT_EQ(integerElements(*places), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(RowForms, AllRowsInOrderAreTheWhole) {
  EXPECT_TRUE(
      only(prepared(std::string(kRows) + "g = GatherND(x, rows) y = Relu(g)", "float[4,5] x", "float[4,5] y"))
          .is("Relu"));
  EXPECT_TRUE(only(prepared(std::string(kRows) + "s = ScatterND(x, rows, u) y = Relu(s)",
                            "float[4,5] x, float[4,5] u", "float[4,5] y"))
                  .is("Relu"));
}

TEST(RowForms, EveryElementOfAFlatTensorIsAReshape) {
  const Graph graph = prepared(R"(
      flat = Constant <value_ints: ints = [-1]> ()
      zero = Constant <value_int: int = 0> ()
      one = Constant <value_int: int = 1> ()
      n = Constant <value_int: int = 24> ()
      sizes = Constant <value_ints: ints = [4, 3, 2, 1]> ()
      range = Range(zero, n, one)
      places = Reshape(range, sizes)
      f = Reshape(x, flat)
      y = Gather(f, places))",
                               "float[4,6] x", "float[4,3,2,1] y");
  EXPECT_TRUE(only(graph).is("Reshape"));
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({4, 3, 2, 1}));
}

// 6 row + 2 j, as as_strided((4, 2), (6, 2)) is exported; and 6 row + 5, of one axis.
TEST(RowForms, TheSamePlacesOfEveryRowAreAGather) {
  const Graph graph = prepared(R"(
      flat = Constant <value_ints: ints = [-1]> ()
      f = Reshape(x, flat)
      places = Constant <value = int64[4,2] {0, 2, 6, 8, 12, 14, 18, 20}> ()
      y = Gather(f, places)
      last = Constant <value_ints: ints = [5, 11, -7, -1]> ()
      z = Gather(f, last))",
                               "float[4,3,2] x", "float[4,2] y, float[4] z");
  ASSERT_EQ(graph.nodes.size(), 4u);
  for (const size_t gather : {1, 3}) {
    EXPECT_TRUE(graph.nodes[gather - 1].is("Reshape"));
    EXPECT_EQ(graph.shape(graph.nodes[gather - 1].outputs[0]), Shape({4, 6}));
    EXPECT_TRUE(graph.nodes[gather].is("Gather"));
    EXPECT_EQ(graph.nodes[gather].intAttribute("axis", 0), 1);
  }
  EXPECT_EQ(integerElements(*graph.constant(graph.nodes[1].inputs[1])), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(integerElements(*graph.constant(graph.nodes[3].inputs[1])), std::vector<int64_t>{5});
}

TEST(RowForms, OtherPlacesOfEachRowStay) {
  for (const char* places : {"0, 2, 6, 9, 12, 14, 18, 20", "0, 7, 6, 13, 12, 19, 18, 23"}) {
    const Graph graph = prepared(std::string(R"(
      flat = Constant <value_ints: ints = [-1]> ()
      f = Reshape(x, flat)
      places = Constant <value = int64[4,2] {)") +
                                     places + "}> () y = Gather(f, places)",
                                 "float[4,3,2] x", "float[4,2] y");
    EXPECT_EQ(graph.nodes.back().intAttribute("axis", 0), 0) << places;
  }
}

// x[:, 1:] = y, as the TorchScript exporter shifts the labels of T5 and BART.
TEST(RowForms, ColumnsAreWrittenWithoutRowNumbers) {
  for (const int64_t fold_limit : {64, 1 << 20}) {
    PrepareOptions options;
    options.fold_limit_bytes = fold_limit;
    const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,6] x, float[4,5] u) => (float[4,6] y)
      <int64[4,1] row = {0, 1, 2, 3}, int64[1,5] column = {1, 2, 3, 4, 5}, int64[2] sizes = {4, 5},
       int64[1] last = {-1}> {
      rows = Expand(row, sizes)
      columns = Expand(column, sizes)
      r = Unsqueeze(rows, last)
      c = Unsqueeze(columns, last)
      places = Concat <axis = -1> (r, c)
      y = ScatterND(x, places, u) })"),
                                     options);
    const Node& node = graph.nodes.back();
    ASSERT_TRUE(node.is("ScatterElements")) << fold_limit;
    EXPECT_EQ(node.intAttribute("axis", 0), 1);
    EXPECT_EQ(graph.constant(node.inputs[1])->shape, (Shape{4, 5}));
  }
}

// Rows in another order stay what they are.
TEST(RowForms, RowsInAnotherOrderStay) {
  const std::string turned = R"(
      order = Constant <value_ints: ints = [1, 0, 2, 3]> ()
      last = Constant <value_ints: ints = [-1]> ()
      rows = Unsqueeze(order, last)
  )";
  const Graph graph = prepared(turned + "y = GatherND(x, rows)", "float[4,5] x", "float[4,5] y");
  EXPECT_TRUE(only(graph).is("GatherND"));
  EXPECT_EQ(graph.nodes[0].intAttribute("batch_dims", 0), 0);
}

// x.repeat(4, 1): rows are counted in the repeats.
TEST(RowForms, ARepeatIsAnExpand) {
  const Graph one =
      prepared("n = Constant <value_ints: ints = [4, 1]> () y = Tile(x, n)", "float[1,5] x", "float[4,5] y");
  EXPECT_TRUE(only(one).is("Expand"));
  const Graph more =
      prepared("n = Constant <value_ints: ints = [4, 1]> () y = Tile(x, n)", "float[3,5] x", "float[12,5] y");
  ASSERT_EQ(more.nodes.size(), 3u);
  EXPECT_TRUE(more.nodes[0].is("Reshape"));
  EXPECT_EQ(more.shape(more.nodes[0].outputs[0]), (Shape{1, 3, 5}));
  EXPECT_TRUE(more.nodes[1].is("Expand"));
  EXPECT_EQ(more.shape(more.nodes[1].outputs[0]), (Shape{4, 3, 5}));
  EXPECT_TRUE(more.nodes[2].is("Reshape"));
  EXPECT_EQ(more.shape(more.nodes[2].outputs[0]), (Shape{12, 5}));
}

// One row is written as several are, or a batch could not be cut into rows.
TEST(RowForms, ARepeatOfOneRowIsWrittenAsOneOfMore) {
  const Graph graph =
      prepared("n = Constant <value_ints: ints = [1, 1]> () y = Tile(x, n)", "float[3,5] x", "float[3,5] y");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_TRUE(graph.nodes[1].is("Expand"));
  EXPECT_EQ(graph.shape(graph.nodes[1].outputs[0]), (Shape{1, 3, 5}));
}

// As PyTorch exports an nn.Conv3d without a bias, optimize=False; its shape is none that a bias may have.
TEST(RowForms, ABiasOfZerosIsNoBias) {
  const Graph graph = prepared(R"(
      first = Shape <start = 0, end = 1> (w)
      two = Constant <value_ints: ints = [2]> ()
      sizes = Concat <axis = 0> (first, two)
      zero = Constant <value = float {0}> ()
      bias = Expand(zero, sizes)
      y = Conv(x, w, bias))",
                               "float[2,3,4,4,4] x, float[5,3,1,1,1] w", "float[2,5,4,4,4] y");
  EXPECT_EQ(only(graph).inputs.size(), 2u);
}

}  // namespace
}  // namespace pipeshard
