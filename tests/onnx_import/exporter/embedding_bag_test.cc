// nn.EmbeddingBag as PyTorch's exporter writes it: with its marks, and a loop of which only what it reads
// counts.
#include "onnx_import/exporter/embedding_bag.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

constexpr const char* kCallKey = "pkg.torch.onnx.fx_node";

// x [batch, 5] and a table [100, 16]; each bag() adds a call.
class EmbeddingBagTest : public ::testing::Test {
 protected:
  EmbeddingBagTest() {
    graph.opset_imports = {{"", 20}};
    x = input("x", {"batch", "5"}, DataType::kInt64);
    table = GraphBuilder(graph).addConstant("e.weight",
                                            makeConstant<float>({100, 16}, std::vector<float>(1600, 0.5F)));
  }

  // Axes are numbers or symbols.
  void setAxes(ValueId id, const std::vector<std::string>& axes) {
    Value& value = graph.value(id);
    value.shape = Shape();
    for (const std::string& axis : axes) {
      const bool number = axis.find_first_not_of("0123456789") == std::string::npos;
      value.shape->push_back(number ? std::stoll(axis) : kUnknownSize);
      value.symbols.push_back(number ? "" : axis);
    }
  }
  ValueId input(const std::string& name, const std::vector<std::string>& axes, DataType type) {
    const ValueId id = GraphBuilder(graph).addValue(name, type, {});
    setAxes(id, axes);
    graph.inputs.push_back(id);
    return id;
  }
  ValueId number(int64_t value) {
    return GraphBuilder(graph).addConstant("number", makeConstant<int64_t>({}, {value}));
  }
  ValueId node(const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& output,
               DataType type = DataType::kInt64, std::map<std::string, Attribute> attributes = {}) {
    GraphBuilder builder(graph);
    const ValueId made = builder.addValue(output, type, {});
    graph.value(made).shape.reset();
    builder.addNode("", op_type, inputs, {made}, std::move(attributes));
    graph.nodes.back().name = "node_" + output;
    if (!call.empty()) {
      graph.nodes.back().metadata = {
          {kCallKey,
           "%embedding_bag : [num_users=1] = call_function[target=torch.ops.aten.embedding_bag."
           "padding_idx](args = (" +
               call + "), kwargs = {})"}};
    }
    return made;
  }

  // The size of an axis of x, as the module's code asks for it.
  ValueId sizeOf(ValueId value, int64_t axis) {
    const ValueId shape =
        node("Shape", {value}, "shape", DataType::kInt64, {{"start", axis}, {"end", axis + 1}});
    return node("Squeeze", {shape}, "size");
  }
  ValueId flat(ValueId value, const std::string& name) {
    const ValueId sizes = GraphBuilder(graph).addConstant("sizes", makeConstant<int64_t>({1}, {-1}));
    return node("Reshape", {value, sizes}, name, graph.dataType(value));
  }
  // arange(0, rows * size, size)
  ValueId arange(ValueId limit, ValueId size) { return node("Range", {number(0), limit, size}, "arange"); }
  ValueId arange() { return arange(node("Mul", {sizeOf(x, 0), number(5)}, "mul"), number(5)); }

  // A loop that reads these values by name and gives a sequence.
  ValueId loop(const std::vector<ValueId>& reads) {
    auto body = std::make_shared<Graph>();
    GraphBuilder builder(*body);
    std::vector<ValueId> inputs;
    for (ValueId id : reads) inputs.push_back(builder.addValue(graph.value(id).name, graph.dataType(id), {}));
    const ValueId row = builder.addValue("row", DataType::kFloat32, {});
    builder.addNode("", "Slice", inputs, {row});
    body->outputs = {row};
    return node("Loop", {number(0)}, "result", DataType::kUndefined,
                {{"body", std::shared_ptr<const Graph>(body)}});
  }

  // The call; `arguments` from scale_grad_by_freq on.
  void bag(ValueId indices, ValueId offsets, const std::string& arguments, ValueId weights = {}) {
    call =
        "%p_e_weight, %" + graph.value(indices).name + ", %" + graph.value(offsets).name + ", " + arguments;
    const ValueId list = flat(indices, "indices_1d");
    const ValueId rows = node("Gather", {table, list}, "new_weight", DataType::kFloat32);
    if (!weights.valid()) weights = node("Expand", {number(1), node("Shape", {list}, "val_3")}, "val_4");
    const ValueId axes = GraphBuilder(graph).addConstant("axes", makeConstant<int64_t>({1}, {1}));
    const ValueId column = node("Unsqueeze", {weights, axes}, "tmp", DataType::kFloat32);
    const ValueId product = node("Mul", {rows, column}, "new_weight_0", DataType::kFloat32);
    const bool computed = graph.initializers.contains(offsets);
    const ValueId ends =
        computed ? offsets : node("Concat", {offsets, node("Shape", {list}, "end")}, "offsets_7");
    const ValueId result = loop({product, ends});
    const ValueId output = node("ConcatFromSequence", {result}, "result_60", DataType::kFloat32);
    call.clear();
    graph.outputs = {node("Cast", {output}, "getitem", DataType::kFloat32, {{"to", int64_t{1}}})};
  }

  std::vector<std::string> operators() const {
    std::vector<std::string> names;
    for (const Node& node : graph.nodes) {
      if (!exportedCall(node).name.empty()) names.push_back(node.op_type);
    }
    return names;
  }
  const Node& first(const std::string& op_type) const {
    return *std::find_if(graph.nodes.begin(), graph.nodes.end(),
                         [&](const Node& node) { return node.is(op_type); });
  }
  void expectRefused(const std::string& part) {
    EXPECT_ERROR(takeEmbeddingBags(graph), ErrorCode::kBadModel, part);
    EXPECT_ERROR(takeEmbeddingBags(graph), ErrorCode::kBadModel, "node_");
  }

  Graph graph;
  ValueId x, table;
  std::string call;  // the arguments of the call that nodes are made for
};

TEST_F(EmbeddingBagTest, TheBagsOfA2DInputAreAReductionOfItsRows) {
  bag(flat(x, "view"), arange(), "False, 0, False, None, False, None");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  verifyGraph(graph);
  EXPECT_THAT(operators(), ElementsAre("Gather", "ReduceSum"));
  EXPECT_THAT(first("Gather").inputs, ElementsAre(table, x));
  EXPECT_EQ(graph.value(table).name, "e.weight");
  EXPECT_EQ(graph.value(first("Cast").inputs[0]).name, "result_60");
  EXPECT_EQ(exportedCall(first("ReduceSum")).name, "embedding_bag");
  PrepareOptions options;
  options.dimensions = {{"batch", 3}};
  const Graph prepared = prepareModel(graph, options);
  EXPECT_EQ(prepared.shape(prepared.nodes[0].outputs[0]), (Shape{3, 5, 16}));
  EXPECT_EQ(prepared.shape(prepared.outputs[0]), (Shape{3, 16}));
}

TEST_F(EmbeddingBagTest, MeanAndMax) {
  Graph empty = graph;
  bag(flat(x, "view"), arange(), "False, 1");  // the rest unsaid
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_THAT(operators(), ElementsAre("Gather", "ReduceMean"));
  graph = empty;
  bag(flat(x, "view"), arange(), "False, 2, False, None, False, None");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_THAT(operators(), ElementsAre("Gather", "ReduceMax"));
}

TEST_F(EmbeddingBagTest, WeightsOfSamplesAreTakenByBagsToo) {
  const ValueId w = input("w", {"batch", "5"}, DataType::kFloat32);
  bag(flat(x, "view"), arange(), "False, 0, False, %view_1, False, None", flat(w, "view_1"));
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_THAT(operators(), ElementsAre("Gather", "Unsqueeze", "Mul", "ReduceSum"));
  EXPECT_EQ(first("Unsqueeze").inputs[0], w);
}

TEST_F(EmbeddingBagTest, PaddingDoesNotCount) {
  Graph empty = graph;
  bag(flat(x, "view"), arange(), "False, 1, False, None, False, 3");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_THAT(operators(), ElementsAre("Gather", "Equal", "Unsqueeze", "Where", "ReduceSum", "Where",
                                       "ReduceSum", "Max", "Div"));
  EXPECT_THAT(integerElements(*graph.constant(first("Equal").inputs[1])), ElementsAre(3));
  EXPECT_TRUE(isMade(graph.value(first("Where").inputs[1]))) << "it would be trained";
  graph = empty;
  bag(flat(x, "view"), arange(), "False, 2, False, None, False, -1");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_THAT(operators(), ElementsAre("Gather", "Equal", "Unsqueeze", "Where", "ReduceMax", "Where",
                                       "ReduceSum", "Greater", "Where"));
  EXPECT_THAT(integerElements(*graph.constant(first("Equal").inputs[1])), ElementsAre(99));
}

TEST_F(EmbeddingBagTest, TheSizeOfABagMayBeSymbolic) {
  setAxes(x, {});
  graph.value(x).symbols.clear();
  setAxes(x, {"batch", "n"});
  const ValueId size = sizeOf(x, 1);
  bag(flat(x, "view"), arange(node("Mul", {sizeOf(x, 0), size}, "mul"), size), "False, 0");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_EQ(first("Gather").inputs[1], x);
}

TEST_F(EmbeddingBagTest, OffsetsMayBeComputedByTheExporter) {
  const ValueId y = input("y", {"3", "5"}, DataType::kInt64);
  const ValueId offsets =
      GraphBuilder(graph).addConstant("offsets_7", makeConstant<int64_t>({4}, {0, 5, 10, 15}));
  bag(flat(y, "view"), offsets, "False, 0");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_EQ(first("Gather").inputs[1], y);
}

TEST_F(EmbeddingBagTest, OffsetsThatAreNotInMemoryAreThoseOfA2DInput) {
  const ValueId y = input("y", {"3", "5"}, DataType::kInt64);
  const ValueId offsets =
      GraphBuilder(graph).addConstant("offsets_7", makeConstant<int64_t>({4}, {0, 5, 10, 15}));
  graph.initializers[offsets] = WeightReference{"model.data", 0, 32};
  bag(flat(y, "view"), offsets, "False, 0");
  expectRefused("depend on data");
  graph.value(offsets).metadata = {{"pkg.onnxscript.optimizer.folded_from", "['arange', 'indices_size']"}};
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_EQ(first("Gather").inputs[1], y);
}

TEST_F(EmbeddingBagTest, AListThatWasNever2DIsReshaped) {
  const ValueId y = input("y", {"batch", "3", "5"}, DataType::kInt64);
  bag(flat(y, "view"), arange(node("Mul", {sizeOf(y, 0), number(15)}, "mul"), number(5)), "False, 0");
  EXPECT_EQ(takeEmbeddingBags(graph), 1);
  EXPECT_EQ(graph.value(first("Gather").inputs[1]).name, "result_60_Reshape");
  PrepareOptions options;
  options.dimensions = {{"batch", 2}};
  const Graph prepared = prepareModel(graph, options);
  EXPECT_EQ(prepared.shape(prepared.outputs[0]), (Shape{6, 16}));
}

TEST_F(EmbeddingBagTest, BagsOfUnknownSizesAreRefused) {
  Graph empty = graph;
  const ValueId list = input("list", {"n"}, DataType::kInt64);
  Graph with_list = graph;
  bag(list, input("offsets", {"batch"}, DataType::kInt64), "False, 0");
  expectRefused("2-D input");
  graph = with_list;  // the last bag may be smaller
  bag(list, arange(sizeOf(list, 0), number(5)), "False, 0");
  expectRefused("2-D input");
  graph = empty;  // the last bag is larger
  bag(flat(x, "view"), arange(node("Mul", {sizeOf(x, 0), number(4)}, "mul"), number(4)), "False, 0");
  expectRefused("2-D input");
  graph = empty;
  bag(flat(x, "view"), arange(), "False, 0, False, None, True");
  expectRefused("2-D input");
}

TEST_F(EmbeddingBagTest, WhatTheFileDoesNotHaveIsRefused) {
  Graph empty = graph;
  bag(flat(x, "view"), arange(), "True, 0");
  expectRefused("scale_grad_by_freq");
  graph = empty;
  bag(flat(x, "view"), arange(), "False, 0");
  const ValueId ends = findValue(graph, "offsets_7");
  call = "%p_e_weight, %view, %arange";
  const ValueId sizes = node("Expand", {number(0), ends}, "bag_size");
  call.clear();
  graph.outputs.push_back(sizes);
  expectRefused("bag_size");
}

TEST_F(EmbeddingBagTest, ALoopWithoutMarksStays) {
  bag(flat(x, "view"), arange(), "False, 0");
  for (Node& node : graph.nodes) node.metadata.clear();
  const size_t nodes = graph.nodes.size();
  EXPECT_EQ(takeEmbeddingBags(graph), 0);
  EXPECT_EQ(graph.nodes.size(), nodes);
}

}  // namespace
}  // namespace pipeshard
