#include "runtime/execute/fold_transposes.h"
#include "runtime/kernels/base/cpu_kernels.h"

#include <gtest/gtest.h>

#include <map>

namespace pipeshard {
namespace {

struct Sketch {
  Graph graph;
  GraphBuilder builder{graph};

  ValueId input(const Shape& shape) {
    graph.inputs.push_back(builder.addValue("x", DataType::kFloat32, shape));
    return graph.inputs.back();
  }
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, const Shape& shape,
             std::map<std::string, Attribute> attributes = {}) {
    graph.opset_imports[""] = 18;
    const ValueId id = builder.addValue("y", DataType::kFloat32, shape);
    builder.addNode("", op_type, std::move(inputs), {id}, std::move(attributes));
    return id;
  }
  size_t count(std::string_view op_type) const {
    size_t found = 0;
    for (const Node& node : graph.nodes) found += node.op_type == op_type ? 1 : 0;
    return found;
  }
};

const std::vector<int64_t> kSwap = {0, 1, 3, 2};

TEST(FoldTransposes, MakesThemFlagsOfTheProduct) {
  Sketch sketch;
  const ValueId a = sketch.input({2, 3, 4, 5});
  const ValueId b = sketch.input({2, 3, 6, 4});
  const ValueId at = sketch.op("Transpose", {a}, {2, 3, 5, 4}, {{"perm", kSwap}});
  const ValueId bt = sketch.op("Transpose", {b}, {2, 3, 4, 6}, {{"perm", kSwap}});
  sketch.graph.outputs = {sketch.op("MatMul", {at, bt}, {2, 3, 5, 6})};
  EXPECT_EQ(foldTransposes(sketch.graph, cpuKernels()), 2);
  ASSERT_EQ(sketch.graph.nodes.size(), 1U);
  const Node& node = sketch.graph.nodes[0];
  EXPECT_EQ(node.domain + "::" + node.op_type, "com.microsoft::FusedMatMul");
  EXPECT_EQ(node.inputs, (std::vector{a, b}));
  EXPECT_EQ(node.intAttribute("transA", 0), 1);
  EXPECT_EQ(node.intAttribute("transB", 0), 1);
}

TEST(FoldTransposes, TurnsTheFlagsOfAGemm) {
  Sketch sketch;
  const ValueId a = sketch.input({4, 5});
  const ValueId b = sketch.input({6, 4});
  const ValueId at = sketch.op("Transpose", {a}, {5, 4});
  const ValueId bt = sketch.op("Transpose", {b}, {4, 6}, {{"perm", std::vector<int64_t>{1, 0}}});
  const ValueId product = sketch.op("Gemm", {at, bt}, {5, 6});
  sketch.graph.outputs = {product, sketch.op("Gemm", {at, a}, {5, 5}, {{"transA", int64_t{0}}})};
  sketch.graph.outputs.push_back(
      sketch.op("Gemm", {at, b}, {4, 4}, {{"transA", int64_t{1}}, {"transB", int64_t{1}}}));
  EXPECT_EQ(foldTransposes(sketch.graph, cpuKernels()), 4);
  EXPECT_EQ(sketch.count("Transpose"), 0U);
  EXPECT_EQ(sketch.graph.nodes[2].intAttribute("transA", 1), 0) << "transposed twice";
}

TEST(FoldTransposes, KeepsOneThatIsReadElsewhereOrMovesOtherAxes) {
  Sketch sketch;
  const ValueId a = sketch.input({4, 5});
  const ValueId at = sketch.op("Transpose", {a}, {5, 4});
  sketch.graph.outputs = {sketch.op("MatMul", {at, a}, {5, 5}), at};
  const ValueId b = sketch.input({2, 3, 4, 5});
  const ValueId moved =
      sketch.op("Transpose", {b}, {3, 2, 4, 5}, {{"perm", std::vector<int64_t>{1, 0, 2, 3}}});
  sketch.graph.outputs.push_back(sketch.op("MatMul", {moved, at}, {3, 2, 4, 4}));
  EXPECT_EQ(foldTransposes(sketch.graph, cpuKernels()), 2);
  EXPECT_EQ(sketch.count("Transpose"), 2U);
}

TEST(FoldTransposes, LeavesMatMulToKernelsThatKnowNothingElse) {
  Sketch sketch;
  const ValueId a = sketch.input({4, 5});
  sketch.graph.outputs = {sketch.op("MatMul", {sketch.op("Transpose", {a}, {5, 4}), a}, {5, 5})};
  EXPECT_EQ(foldTransposes(sketch.graph, KernelRegistry()), 0);
  EXPECT_EQ(sketch.count("MatMul"), 1U);
}

// A subgraph's file may have been changed by hand.
TEST(FoldTransposes, LeavesProductsOfOneOperandToTheirKernelsRefusal) {
  Sketch sketch;
  const ValueId a = sketch.input({4, 5});
  const ValueId at = sketch.op("Transpose", {a}, {5, 4});
  sketch.graph.outputs = {sketch.op("MatMul", {at}, {5, 5}), sketch.op("Gemm", {ValueId(), at}, {5, 5})};
  EXPECT_EQ(foldTransposes(sketch.graph, cpuKernels()), 2);
  sketch.graph.outputs = {sketch.op("MatMul", {}, {5, 5}), sketch.op("Gemm", {}, {5, 5})};
  EXPECT_EQ(foldTransposes(sketch.graph, cpuKernels()), 0);
}

}  // namespace
}  // namespace pipeshard
