// Every operator of the evaluator against values worked out by hand (or by numpy).

#include <limits>

#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/evaluator.h"
#include "onnx_import/prepare/inference.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using Elements = std::vector<double>;

struct Case {
  const char* name;
  const char* declarations;  // initializers, in ONNX's text syntax
  const char* nodes;         // define y
  Shape shape;
  Elements elements;
  DataType type = DataType::kInt64;
};

class EvaluatorTest : public ::testing::TestWithParam<Case> {};

TEST_P(EvaluatorTest, Computes) {
  const Case& c = GetParam();
  Graph graph = testing::graphFromText(fmt::format(
      R"(<ir_version: 10, opset_import: ["" : 18]> g () => (y) <{}> {{ {} }})", c.declarations, c.nodes));
  for (Value& value : graph.values) markFolded(value);
  foldConstants(graph, 1 << 20);
  EXPECT_EQ(testing::elementsOf(graph, "y"), c.elements);
  EXPECT_EQ(graph.shape(findValue(graph, "y")), c.shape);
  EXPECT_EQ(dataTypeName(graph.dataType(findValue(graph, "y"))), dataTypeName(c.type));
  EXPECT_TRUE(graph.nodes.empty());
}

constexpr auto kBool = DataType::kBool;
constexpr auto kFloat = DataType::kFloat32;

INSTANTIATE_TEST_SUITE_P(
    Operators, EvaluatorTest,
    ::testing::Values(
        Case{"ConstantInts", "", "y = Constant <value_ints: ints = [3, 4]> ()", {2}, {3, 4}},
        Case{"ConstantFloat", "", "y = Constant <value_float: float = 1.5> ()", {}, {1.5}, kFloat},
        Case{"ConstantOfShape",
             "int64[2] s = {2,1}",
             "y = ConstantOfShape <value = int64[1] {7}> (s)",
             {2, 1},
             {7, 7}},
        Case{"Shape", "float[2,3] x = {1,2,3,4,5,6}", "y = Shape(x)", {2}, {2, 3}},
        Case{"ShapePart", "float[2,3,1] x = {1,2,3,4,5,6}", "y = Shape <start = -2, end = -1> (x)", {1}, {3}},
        Case{"Size", "float[2,3] x = {1,2,3,4,5,6}", "y = Size(x)", {}, {6}},
        Case{"Gather",
             "int64[2,3] x = {1,2,3,4,5,6}, int64[2] i = {-1,0}",
             "y = Gather <axis = 1> (x, i)",
             {2, 2},
             {3, 1, 6, 4}},
        Case{"SliceBackwards",
             "int64[4] x = {1,2,3,4}, int64[1] s = {-1}, int64[1] e = {-100}, int64[1] a = {0}, int64[1] t = "
             "{-2}",
             "y = Slice(x, s, e, a, t)",
             {2},
             {4, 2}},
        Case{"SliceClamped",
             "int64[2,3] x = {1,2,3,4,5,6}, int64[1] s = {1}, int64[1] e = {9223372036854775807}, int64[1] a "
             "= {1}",
             "y = Slice(x, s, e, a)",
             {2, 2},
             {2, 3, 5, 6}},
        Case{"SliceToNothing",
             "int64[3] x = {1,2,3}, int64[1] s = {2}, int64[1] e = {1}",
             "y = Slice(x, s, e)",
             {0},
             {}},
        Case{"Concat",
             "int64[2,1] a = {1,2}, int64[2,2] b = {3,4,5,6}",
             "y = Concat <axis = -1> (a, b)",
             {2, 3},
             {1, 3, 4, 2, 5, 6}},
        Case{
            "Unsqueeze", "int64[2] x = {1,2}, int64[2] a = {0,-1}", "y = Unsqueeze(x, a)", {1, 2, 1}, {1, 2}},
        Case{"Squeeze", "int64[1,2,1] x = {1,2}", "y = Squeeze(x)", {2}, {1, 2}},
        Case{"Reshape",
             "int64[2,3] x = {1,2,3,4,5,6}, int64[3] s = {0,-1,1}",
             "y = Reshape(x, s)",
             {2, 3, 1},
             {1, 2, 3, 4, 5, 6}},
        Case{"CastTruncates", "float[3] x = {1.9,-1.9,0.0}", "y = Cast <to = 7> (x)", {3}, {1, -1, 0}},
        Case{"CastToBool", "float[3] x = {0.5,0.0,-2.0}", "y = Cast <to = 9> (x)", {3}, {1, 0, 1}, kBool},
        Case{"CastLike", "int64[1] x = {3}, float z = {0}", "y = CastLike(x, z)", {1}, {3}, kFloat},
        Case{"Range", "int64 a = {5}, int64 b = {0}, int64 d = {-2}", "y = Range(a, b, d)", {3}, {5, 3, 1}},
        Case{"Add",
             "int64[2,1] a = {1,2}, int64[3] b = {10,20,30}",
             "y = Add(a, b)",
             {2, 3},
             {11, 21, 31, 12, 22, 32}},
        Case{"DivTruncates", "int64[2] a = {-7,7}, int64 b = {2}", "y = Div(a, b)", {2}, {-3, 3}},
        Case{"ModFollowsTheDivisor",
             "int64[2] a = {-7,7}, int64[2] b = {3,-3}",
             "y = Mod(a, b)",
             {2},
             {2, -2}},
        Case{"ModTruncated",
             "int64[2] a = {-7,7}, int64[2] b = {3,-3}",
             "y = Mod <fmod = 1> (a, b)",
             {2},
             {-1, 1}},
        Case{"Neg", "int64[2] a = {-7,7}", "y = Neg(a)", {2}, {7, -7}},
        Case{"Min", "int64[2] a = {1,5}, int64[2] b = {3,2}, int64 c = {2}", "y = Min(a, b, c)", {2}, {1, 2}},
        Case{"PowOfIntegers",
             "int64[3] a = {2,-3,0}, int64[3] b = {10,3,0}",
             "y = Pow(a, b)",
             {3},
             {1024, -27, 1}},
        Case{"Sqrt", "float[2] a = {4,9}", "y = Sqrt(a)", {2}, {2, 3}, kFloat},
        Case{"Less", "int64[2] a = {1,5}, int64 b = {3}", "y = Less(a, b)", {2}, {1, 0}, kBool},
        Case{"GreaterOrEqual",
             "int64[2] a = {3,1}, int64 b = {3}",
             "y = GreaterOrEqual(a, b)",
             {2},
             {1, 0},
             kBool},
        Case{
            "And", "bool[4] a = {1,1,0,0}, bool[4] b = {1,0,1,0}", "y = And(a, b)", {4}, {1, 0, 0, 0}, kBool},
        Case{
            "Xor", "bool[4] a = {1,1,0,0}, bool[4] b = {1,0,1,0}", "y = Xor(a, b)", {4}, {0, 1, 1, 0}, kBool},
        Case{"Not", "bool[2] a = {1,0}", "y = Not(a)", {2}, {0, 1}, kBool},
        Case{"Where",
             "bool[2,1] c = {1,0}, int64[2] a = {1,2}, int64 b = {9}",
             "y = Where(c, a, b)",
             {2, 2},
             {1, 2, 9, 9}},
        Case{"Expand",
             "int64[2,1] x = {1,2}, int64[3] s = {2,1,2}",
             "y = Expand(x, s)",
             {2, 2, 2},
             {1, 1, 2, 2, 1, 1, 2, 2}},
        Case{"Tile",
             "int64[1,2] x = {1,2}, int64[2] r = {2,2}",
             "y = Tile(x, r)",
             {2, 4},
             {1, 2, 1, 2, 1, 2, 1, 2}},
        Case{"Transpose",
             "int64[1,2,3] x = {1,2,3,4,5,6}",
             "y = Transpose <perm = [2,0,1]> (x)",
             {3, 1, 2},
             {1, 4, 2, 5, 3, 6}},
        Case{"TriluLower",
             "int64[2,3] x = {1,2,3,4,5,6}",
             "y = Trilu <upper = 0> (x)",
             {2, 3},
             {1, 0, 0, 4, 5, 0}},
        Case{"TriluUpper",
             "int64[2,3] x = {1,2,3,4,5,6}, int64 k = {1}",
             "y = Trilu(x, k)",
             {2, 3},
             {0, 2, 3, 0, 0, 6}},
        Case{"ReduceProd",
             "int64[2,3] x = {1,2,3,4,5,6}, int64[1] a = {1}",
             "y = ReduceProd <keepdims = 0> (x, a)",
             {2},
             {6, 120}},
        Case{"ReduceSumOfAll", "int64[2,3] x = {1,2,3,4,5,6}", "y = ReduceSum <keepdims = 0> (x)", {}, {21}},
        Case{"ReduceMax",
             "int64[2,2] x = {-1,-2,-3,-4}, int64[1] a = {0}",
             "y = ReduceMax(x, a)",
             {1, 2},
             {-1, -2}},
        Case{
            "ReduceMin", "int64[2,2] x = {1,2,3,4}, int64[1] a = {0}", "y = ReduceMin(x, a)", {1, 2}, {1, 2}},
        Case{"Split", "int64[5] x = {1,2,3,4,5}", "a, y = Split <num_outputs = 2> (x)", {2}, {4, 5}},
        Case{"CumSum",
             "int64[2,3] x = {1,2,3,4,5,6}, int64 a = {1}",
             "y = CumSum(x, a)",
             {2, 3},
             {1, 3, 6, 4, 9, 15}},
        Case{"CumSumReverseExclusive",
             "int64[3] x = {1,2,3}, int64 a = {0}",
             "y = CumSum <reverse = 1, exclusive = 1> (x, a)",
             {3},
             {5, 3, 0}},
        Case{"Flatten",
             "int64[2,1,3] x = {1,2,3,4,5,6}",
             "y = Flatten <axis = 2> (x)",
             {2, 3},
             {1, 2, 3, 4, 5, 6}},
        Case{"NonZero", "int64[2,2] x = {0,3,4,0}", "y = NonZero(x)", {2, 2}, {0, 1, 1, 0}}),
    [](const auto& info) { return std::string(info.param.name); });

Node nodeOf(const char* op) {
  Node node;
  node.op_type = op;
  node.opset_version = 18;
  node.outputs = {ValueId(0)};
  return node;
}

TEST(Evaluator, LeavesDivisionByZeroToTheRun) {
  const Constant a = makeConstant<int64_t>({}, {1});
  const Constant zero = makeConstant<int64_t>({}, {0});
  EXPECT_FALSE(evaluateNode(nodeOf("Div"), {&a, &zero}).has_value());
  EXPECT_FALSE(evaluateNode(nodeOf("Mod"), {&a, &zero}).has_value());
}

TEST(Evaluator, IntegerExtremesAreDefined) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  const Constant lowest = makeConstant<int64_t>({}, {kLowest});
  const Constant minus_one = makeConstant<int64_t>({}, {-1});
  EXPECT_EQ(integerElements(evaluateNode(nodeOf("Div"), {&lowest, &minus_one})->front()).front(), kLowest);
  EXPECT_EQ(integerElements(evaluateNode(nodeOf("Mod"), {&lowest, &minus_one})->front()).front(), 0);
  EXPECT_EQ(integerElements(evaluateNode(nodeOf("Neg"), {&lowest})->front()).front(), kLowest);
  const Constant huge = makeConstant<float>({2}, {1e30f, -1e30f});
  Node cast = nodeOf("Cast");
  cast.attributes["to"] = static_cast<int64_t>(DataType::kInt64);
  EXPECT_EQ(integerElements(evaluateNode(cast, {&huge})->front()),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::max(), kLowest}));
}

TEST(Evaluator, KnowsNoRandomNumbersAndNoForeignOperators) {
  EXPECT_FALSE(evaluateNode(nodeOf("RandomNormal"), {}).has_value());
  Node foreign = nodeOf("Add");
  foreign.domain = "com.example";
  const Constant a = makeConstant<int64_t>({}, {1});
  EXPECT_FALSE(evaluateNode(foreign, {&a, &a}).has_value());
}

}  // namespace
}  // namespace pipeshard
