// Products, reductions, shapes and movement.
#include <gtest/gtest.h>

#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

TEST(Gradient, OfMatMulMatchesDifferencesForAllRanks) {
  const std::vector<std::pair<Shape, Shape>> cases = {{{2, 3}, {3, 4}},
                                                      {{3}, {3}},
                                                      {{3}, {3, 4}},
                                                      {{2, 3}, {3}},
                                                      {{5, 2, 3}, {3, 4}},
                                                      {{5, 2, 3}, {5, 3, 4}},
                                                      {{2, 3}, {5, 3, 4}},
                                                      {{5, 1, 2, 3}, {4, 3, 2}},
                                                      {{2, 1, 2, 3}, {1, 3, 3, 2}},
                                                      {{3}, {2, 3, 4}},
                                                      {{2, 4, 3}, {3}}};
  for (const auto& [a, b] : cases) {
    SCOPED_TRACE(shapeToString(a) + " " + shapeToString(b));
    TestGraph test;
    const ValueId left = test.parameter("a", a);
    const ValueId right = test.parameter("b", b);
    checkGradients(test, {test.op("MatMul", {left, right})});
  }
}

TEST(Gradient, OfGemmMatchesDifferencesForAllFlags) {
  const std::vector<Shape> biases = {{2, 4}, {4}, {2, 1}, {1, 4}, {}, {1}};
  for (int flags = 0; flags < 4; ++flags) {
    for (const Shape& bias : biases) {
      SCOPED_TRACE(shapeToString(bias) + std::to_string(flags));
      TestGraph test;
      const ValueId a = test.parameter("a", flags & 1 ? Shape{3, 2} : Shape{2, 3});
      const ValueId b = test.parameter("b", flags & 2 ? Shape{4, 3} : Shape{3, 4});
      const ValueId c = test.parameter("c", bias);
      checkGradients(test, {test.op("Gemm", {a, b, c},
                                    {{"alpha", 0.5f},
                                     {"beta", 2.0f},
                                     {"transA", int64_t{flags & 1}},
                                     {"transB", int64_t{flags >> 1}}})});
    }
  }
}

// How many Transposes differentiate something.
int64_t backwardTransposes(TestGraph& test, ValueId output) {
  const ValueId loss = test.op("ReduceSum", {output}, {{"keepdims", int64_t{0}}});
  const TrainingGraph training = trainAndRun(test, loss).training;
  int64_t found = 0;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n)
    found += training.forward_node[n].valid() && training.graph.nodes[n].is("Transpose") ? 1 : 0;
  return found;
}

TEST(Gradient, OfAProductWithATransposedMatrixMatchesDifferencesWithoutTransposing) {
  for (const char* product : {"MatMul", "Gemm"}) {
    for (const bool square : {false, true}) {
      const int64_t n = square ? 3 : 4;
      const auto right = [&](TestGraph& test) {
        const Shape shape = std::string_view(product) == "Gemm" ? Shape{5, 3} : Shape{2, 5, 3};
        return test.op(product,
                       {test.parameter("x", shape), test.op("Transpose", {test.parameter("w", {n, 3})})});
      };
      const auto left = [&](TestGraph& test) {
        return test.op(product,
                       {test.op("Transpose", {test.parameter("w", {3, n})}), test.parameter("x", {3, 5})});
      };
      TestGraph a, b, c, d;
      checkGradients(a, {right(a)});
      checkGradients(b, {left(b)});
      EXPECT_EQ(backwardTransposes(c, right(c)), 0) << product;
      EXPECT_EQ(backwardTransposes(d, left(d)), 0) << product;
    }
  }
}

TEST(Gradient, OfATransposedMatrixThatMoreThanOneProductReadsMatchesDifferences) {
  for (const int64_t n : {3, 4}) {
    TestGraph test;
    const ValueId w = test.op("Transpose", {test.parameter("w", {n, 3})});
    const ValueId v = test.op("Transpose", {test.parameter("v", {n, 3})});
    const ValueId x = test.parameter("x", {5, 3});
    const ValueId twice = test.op("MatMul", {x, test.op("Add", {w, v})});
    checkGradients(test, {twice, test.op("MatMul", {x, w}), v});
  }
}

TEST(Gradient, OfGemmWithoutBiasMatchesDifferences) {
  TestGraph test;
  const ValueId a = test.parameter("a", {2, 3});
  checkGradients(test, {test.op("Gemm", {a, test.parameter("b", {3, 4})})});
}

TEST(Gradient, OfReductionsMatchesDifferencesForAllAxes) {
  for (const char* op_type : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"}) {
    for (int keep = 0; keep < 2; ++keep) {
      for (const std::vector<int64_t>& axes :
           std::vector<std::vector<int64_t>>{{0}, {1}, {-1}, {0, 2}, {2, 1}, {0, 1, 2}}) {
        SCOPED_TRACE(std::string(op_type) + shapeToString(axes));
        TestGraph test;
        const ValueId x = test.parameter("x", {2, 3, 4});
        checkGradients(test, {test.op(op_type, {x, test.integers(axes)}, {{"keepdims", int64_t{keep}}})});
      }
      TestGraph test;
      checkGradients(test, {test.op(op_type, {test.parameter("x", {2, 3})}, {{"keepdims", int64_t{keep}}})});
    }
  }
}

// max(dim) and min(dim) of PyTorch's default exporter; amax shares.
TEST(Gradient, OfAnExtremeThatHasAPlaceGoesToTheFirst) {
  const Constant data = makeTensor({2, 3}, {4, 7, 7, 7, 1, 7});
  const auto slopes = [&](const char* op_type, const std::string& function, int64_t keep) {
    TestGraph test;
    const ValueId x = test.parameter("x", data);
    const ValueId y = test.op(op_type, {x, test.integers({-1})}, {{"keepdims", keep}});
    test.graph().nodes.back().metadata.emplace_back(
        "pkg.torch.onnx.fx_node", "%max_1 : [num_users=1] = call_function[target=torch.ops." + function +
                                      "](args = (%x, -1), kwargs = {})");
    return elementsOf(trainAndRun(test, test.weightedSum({y})).gradients.at("x"));
  };
  for (const int64_t keep : {0, 1}) {
    const std::vector<double> first = slopes("ReduceMax", "aten.max.dim", keep);
    const std::vector<double> shared = slopes("ReduceMax", "aten.amax.default", keep);
    EXPECT_EQ(first, (std::vector<double>{0, 2 * shared[1], 0, 2 * shared[3], 0, 0}));
    EXPECT_EQ(shared[1], shared[2]);
    EXPECT_EQ(slopes("ReduceMin", "aten.min.dim", keep)[4],
              slopes("ReduceMin", "aten.amin.default", keep)[4]);
  }
}

// Lines with no zero, one, and two.
TEST(Gradient, OfReduceProdMatchesDifferencesAlsoWithZeros) {
  const Constant data = makeTensor({3, 2, 2}, {1, -2, 0.5, 3, 0, 4, 2, -1, 0, 5, 0, 0});
  for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {-1}, {2, 1}, {}}) {
    for (int keep = 0; keep < 2; ++keep) {
      SCOPED_TRACE(shapeToString(axes));
      TestGraph test;
      std::vector<ValueId> inputs = {test.parameter("x", data)};
      if (!axes.empty()) inputs.push_back(test.integers(axes));
      checkGradients(test, {test.op("ReduceProd", inputs, {{"keepdims", int64_t{keep}}})});
    }
  }
  TestGraph same;
  checkGradients(
      same, {same.op("ReduceProd", {same.parameter("x", data)}, {{"noop_with_empty_axes", int64_t{1}}})});
}

TEST(Gradient, OfCumSumMatchesDifferencesInBothDirections) {
  for (int64_t axis : {0, 1, -1}) {
    for (int flags = 0; flags < 4; ++flags) {
      SCOPED_TRACE(flags);
      TestGraph test;
      const ValueId along = test.constant(makeConstant<int64_t>({}, {axis}));
      checkGradients(test, {test.op("CumSum", {test.parameter("x", {2, 3, 4}), along},
                                    {{"exclusive", int64_t{flags & 1}}, {"reverse", int64_t{flags >> 1}}})});
    }
  }
}

TEST(Gradient, OfAReductionThatDoesNothingPassesThrough) {
  TestGraph test;
  checkGradients(
      test, {test.op("ReduceSum", {test.parameter("x", {2, 3})}, {{"noop_with_empty_axes", int64_t{1}}})});
}

TEST(Gradient, OfShapeOperatorsMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2, 1, 6});
  const ValueId reshaped = test.op("Reshape", {x, test.integers({3, -1})});
  const ValueId flattened = test.op("Flatten", {x}, {{"axis", int64_t{2}}});
  const ValueId squeezed = test.op("Squeeze", {x, test.integers({1})});
  const ValueId unsqueezed = test.op("Unsqueeze", {x, test.integers({0, -1})});
  const ValueId permuted = test.op("Transpose", {x}, {{"perm", std::vector<int64_t>{2, 0, 1}}});
  const ValueId reversed = test.op("Transpose", {x});
  const ValueId expanded = test.op("Expand", {x, test.integers({3, 1, 4, 1})});
  const ValueId tiled = test.op("Tile", {x, test.integers({2, 3, 1})});
  checkGradients(test, {reshaped, flattened, squeezed, unsqueezed, permuted, reversed, expanded, tiled});
}

TEST(Gradient, OfSliceMatchesDifferencesForAllSteps) {
  struct Case {
    std::vector<int64_t> starts, ends, axes, steps;
  };
  const int64_t last = INT64_MAX;
  const std::vector<Case> cases = {{{1}, {3}, {0}, {1}},
                                   {{-2}, {last}, {1}, {1}},
                                   {{0, 1}, {2, 4}, {0, 1}, {1, 2}},
                                   {{-1}, {INT64_MIN}, {1}, {-1}},
                                   {{4, 0}, {0, last}, {1, 0}, {-2, 2}},
                                   {{0}, {last}, {0}, {1}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(shapeToString(c.starts) + shapeToString(c.steps));
    TestGraph test;
    const ValueId x = test.parameter("x", {4, 5, 2});
    checkGradients(test, {test.op("Slice", {x, test.integers(c.starts), test.integers(c.ends),
                                            test.integers(c.axes), test.integers(c.steps)})});
  }
  TestGraph test;
  const ValueId x = test.parameter("x", {4, 5});
  checkGradients(test, {test.op("Slice", {x, test.integers({1, 2}), test.integers({-1, 4})})});
}

// Each reader's part of an axis: side by side, with gaps, over each other, and of the other axis, too.
TEST(Gradient, OfPartsReadApartMatchesDifferences) {
  TestGraph test;
  const ValueId table = test.parameter("table", {7, 4});
  for (const ValueId x : {table, test.op("Tanh", {table})}) {
    const auto slice = [&](int64_t start, int64_t end, int64_t axis) {
      return test.op("Slice", {x, test.integers({start}), test.integers({end}), test.integers({axis})});
    };
    const auto element = [&](const Shape& shape, int64_t index, int64_t axis) {
      const ValueId at = test.constant(makeConstant<int64_t>(shape, {index}));
      return test.op("Gather", {x, at}, {{"axis", axis}});
    };
    SCOPED_TRACE(test.graph().value(x).name);
    checkGradients(test,
                   {slice(0, 2, 0), slice(2, 3, 0), slice(5, 7, 0), slice(1, 6, 0), slice(1, 3, 1),
                    element({}, 3, 0), element({1}, -1, 0), element({1, 1}, 0, 1), test.op("Exp", {x})});
  }
}

// Values are added while parts are joined; those that are there move, at another place for each size.
TEST(Gradient, OfPartsHasTheShapeOfTheWhole) {
  for (int more = 0; more < 40; ++more) {
    TestGraph test;
    const ValueId x = test.op("Tanh", {test.parameter("x", {2, 4})});
    const ValueId part = test.op("Slice", {x, test.integers({0}), test.integers({2}), test.integers({1})});
    ValueId whole = x;
    for (int i = 0; i < more; ++i) whole = test.op("Sin", {whole});
    const CheckedTraining checked = trainAndRun(test, test.weightedSum({part, whole}));
    const Graph& graph = checked.training.graph;
    for (const Node& node : graph.nodes) {
      if (!node.is("Sum")) continue;
      EXPECT_EQ(graph.shape(node.outputs[0]), graph.shape(node.inputs[0])) << more;
    }
  }
}

// Else time and memory of a recurrent layer are quadratic in its steps.
TEST(Gradient, OfStepsReadOneByOneIsPutTogetherOnce) {
  TestGraph test;
  const ValueId x = test.op("Tanh", {test.parameter("x", {6, 2})});
  std::vector<ValueId> steps;
  for (int64_t i = 0; i < 6; ++i) {
    const ValueId step = test.op("Gather", {x, test.constant(makeConstant<int64_t>({}, {i}))});
    steps.push_back(test.op("Exp", {step}));
  }
  const CheckedTraining checked = trainAndRun(test, test.weightedSum(steps));
  std::map<std::string, int> counts;
  for (const Node& node : checked.training.graph.nodes) ++counts[node.op_type];
  EXPECT_EQ(counts["Concat"], 1);
  EXPECT_EQ(counts["Pad"], 0);
  EXPECT_EQ(counts["GatherGrad"], 0);
}

// A recurrence of `steps` steps: the parts of the weight's gradient are products.
void checkRecurrence(int64_t rows, int64_t width, int steps) {
  TestGraph test;
  const ValueId w = test.op("Tanh", {test.parameter("w", {width, width})});
  ValueId h = test.op("Sin", {test.parameter("x", {rows, width})});
  for (int i = 0; i < steps; ++i) h = test.op("Tanh", {test.op("MatMul", {h, w})});
  checkGradients(test, {h});
}

TEST(Gradient, OfAWeightOfEveryStepMatchesDifferences) {
  checkRecurrence(1, 10, 5);
  checkRecurrence(9, 4, 3);
}

TEST(Gradient, OfAWeightOfEveryStepIsOneProductWhereRowsAreFew) {
  for (const int64_t rows : {1, 9}) {
    TestGraph test;
    const ValueId w = test.op("Tanh", {test.parameter("w", {16, 16})});
    ValueId h = test.op("Sin", {test.parameter("x", {rows, 16})});
    for (int i = 0; i < 5; ++i) h = test.op("Tanh", {test.op("MatMul", {h, w})});
    const CheckedTraining checked = trainAndRun(test, test.weightedSum({h}));
    int products = 0;
    for (const Node& node : checked.training.graph.nodes)
      products += node.is("Gemm") && node.intAttribute("transA", 0) != 0 ? 1 : 0;
    EXPECT_EQ(products, rows == 1 ? 1 : 5) << "copies of 9 rows are no less than the sum of five matrices";
  }
}

TEST(Gradient, OfSplitMatchesDifferencesAlsoWhenAPieceIsUnused) {
  TestGraph test;
  const std::vector<ValueId> pieces = test.ops("Split", {test.parameter("x", {2, 6})}, 3,
                                               {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}});
  checkGradients(test, {pieces[0], pieces[2]});
  TestGraph uneven;
  const std::vector<ValueId> parts =
      uneven.ops("Split", {uneven.parameter("x", {5, 2}), uneven.integers({1, 4})}, 2);
  checkGradients(uneven, {parts[0], parts[1]});
}

TEST(Gradient, OfConcatMatchesDifferencesInEveryInput) {
  TestGraph test;
  const ValueId a = test.parameter("a", {2, 1, 3});
  const ValueId b = test.parameter("b", {2, 4, 3});
  checkGradients(test, {test.op("Concat", {a, b, a}, {{"axis", int64_t{-2}}})});
}

TEST(Gradient, OfPadMatchesDifferencesAlsoForNegativePads) {
  TestGraph test;
  checkGradients(test, {test.op("Pad", {test.parameter("x", {3, 4}), test.integers({1, 0, 2, 3})})});
  TestGraph negative;
  checkGradients(negative,
                 {negative.op("Pad", {negative.parameter("x", {3, 4}), negative.integers({-1, 2, 1, -1})})});
  TestGraph one_axis;
  const ValueId value = one_axis.constant(makeTensor({}, {7}));
  checkGradients(one_axis, {one_axis.op("Pad", {one_axis.parameter("x", {3, 4}), one_axis.integers({1, 2}),
                                                value, one_axis.integers({1})})});
}

// Pads shorter and longer than the axis, negative ones, and those of some axes alone.
TEST(Gradient, OfPadWithCopiesMatchesDifferences) {
  for (const char* mode : {"edge", "reflect", "wrap"}) {
    SCOPED_TRACE(mode);
    const std::map<std::string, Attribute> attributes = {{"mode", std::string(mode)}};
    for (const std::vector<int64_t>& pads : std::vector<std::vector<int64_t>>{
             {1, 2, 2, 1}, {0, 3, 0, 0}, {2, -1, -1, 2}, {0, 5, 0, 7}, {0, 0, 0, 0}}) {
      SCOPED_TRACE(shapeToString(pads));
      TestGraph test;
      checkGradients(test, {test.op("Pad", {test.parameter("x", {3, 4}), test.integers(pads)}, attributes)});
    }
    TestGraph last;
    checkGradients(
        last,
        {last.op("Pad",
                 {last.parameter("x", {2, 3, 4}), last.integers({2, 1}), ValueId(), last.integers({-1})},
                 attributes)});
  }
}

TEST(Gradient, OfGatherMatchesDifferencesWithRepeatedAndNegativeIndices) {
  for (int64_t axis : {0, 1, -1}) {
    TestGraph test;
    const ValueId indices = test.constant(makeConstant<int64_t>({2, 3}, {0, 2, -1, 2, 1, 0}));
    checkGradients(test, {test.op("Gather", {test.parameter("x", {3, 4, 3}), indices}, {{"axis", axis}})});
  }
  TestGraph scalar;
  const ValueId index = scalar.constant(makeConstant<int64_t>({}, {1}));
  checkGradients(scalar, {scalar.op("Gather", {scalar.parameter("x", {3, 2}), index})});
}

TEST(Gradient, OfGatherWithIndicesOf32BitsMatchesDifferences) {
  TestGraph test;
  const ValueId indices = test.constant(makeConstant<int32_t>({2}, {2, 0}));
  checkGradients(test, {test.op("Gather", {test.parameter("x", {3, 2}), indices})});
}

TEST(Gradient, OfGatherElementsAndGatherNdMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3, 4});
  const ValueId elements = test.constant(makeConstant<int64_t>({2, 4}, {0, 2, 2, 1, 0, -1, 1, 1}));
  const ValueId places = test.constant(makeConstant<int64_t>({3, 2}, {0, 1, 2, 3, 0, 1}));
  checkGradients(test, {test.op("GatherElements", {x, elements}, {{"axis", int64_t{0}}}),
                        test.op("GatherND", {x, places})});
}

TEST(Gradient, OfTriluMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2, 3, 3});
  const ValueId lower = test.op("Trilu", {x}, {{"upper", int64_t{0}}});
  const ValueId upper = test.op("Trilu", {x, test.constant(makeConstant<int64_t>({}, {1}))});
  checkGradients(test, {lower, upper});
}

}  // namespace
}  // namespace pipeshard::testing
