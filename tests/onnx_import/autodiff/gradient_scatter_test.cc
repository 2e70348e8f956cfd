// Elements taken from places and put to places: GatherND by batches, TopK, ScatterElements, ScatterND.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

using Reals = std::vector<double>;
const char* const kReductions[] = {"add", "mul", "max", "min"};

std::map<std::string, Attribute> reducing(const std::string& reduction) { return {{"reduction", reduction}}; }

TEST(Gradient, OfGatherNdByBatchesMatchesDifferences) {
  struct Case {
    Shape data, indices;
    std::vector<int64_t> elements;
    int64_t batch_dims;
  };
  const std::vector<Case> cases = {{{2, 3, 4}, {2, 2, 1}, {0, -1, 1, 1}, 1},
                                   {{2, 3, 4}, {2, 1}, {2, -3}, 1},
                                   {{2, 3, 4}, {2, 3, 2}, {0, 1, -1, 3, 0, 1, 2, -4, -3, 0, 1, 2}, 1},
                                   {{2, 1, 3, 4}, {2, 1, 2}, {1, -1, -2, 3}, 2},
                                   {{2, 2, 3, 2}, {2, 2, 2, 1}, {0, 1, 2, 2, -1, 0, -3, 1}, 2}};
  for (const Case& tested : cases) {
    SCOPED_TRACE(shapeToString(tested.data) + shapeToString(tested.indices));
    TestGraph test;
    const ValueId indices = test.constant(makeConstant<int64_t>(tested.indices, tested.elements));
    checkGradients(test, {test.op("GatherND", {test.parameter("x", tested.data), indices},
                                  {{"batch_dims", tested.batch_dims}})});
  }
}

TEST(Gradient, OfTopKMatchesDifferences) {
  for (int64_t axis : {0, 1, -1}) {
    for (int64_t largest : {0, 1}) {
      TestGraph test;
      const std::vector<ValueId> best = test.ops("TopK", {test.parameter("x", {3, 4, 5}), test.integers({2})},
                                                 2, {{"axis", axis}, {"largest", largest}});
      checkGradients(test, {best[0]});
    }
  }
}

// The places are distinct: others have no defined content.
TEST(Gradient, OfScatterElementsMatchesDifferencesInDataAndUpdates) {
  for (int64_t axis : {0, 1, -2}) {
    const Constant places = axis == 1 ? makeConstant<int64_t>({2, 3}, {0, 3, -2, 1, -1, 2})
                                      : makeConstant<int64_t>({2, 3}, {0, 1, -1, 2, -3, 1});
    TestGraph test;
    const ValueId x = test.parameter("x", {3, 4});
    const ValueId updates = test.parameter("u", {2, 3});
    checkGradients(test, {test.op("ScatterElements", {x, test.constant(places), updates}, {{"axis", axis}})});
  }
}

TEST(Gradient, OfScatterElementsThatCombinesMatchesDifferences) {
  for (const char* reduction : kReductions) {
    SCOPED_TRACE(reduction);
    TestGraph test;
    const ValueId places = test.constant(makeConstant<int32_t>({2, 3}, {0, 1, -1, 0, 1, 1}));
    checkGradients(
        test, {test.op("ScatterElements", {test.parameter("x", {3, 4}), places, test.parameter("u", {2, 3})},
                       reducing(reduction))});
  }
}

TEST(Gradient, OfScatterNdMatchesDifferencesInDataAndUpdates) {
  TestGraph rows;
  const ValueId row = rows.constant(makeConstant<int64_t>({2, 1}, {2, -4}));
  checkGradients(rows,
                 {rows.op("ScatterND", {rows.parameter("x", {4, 3}), row, rows.parameter("u", {2, 3})})});
  TestGraph places;
  const ValueId place = places.constant(makeConstant<int64_t>({1, 2, 2}, {2, -1, 0, 1}));
  checkGradients(
      places,
      {places.op("ScatterND", {places.parameter("x", {4, 3, 2}), place, places.parameter("u", {1, 2, 2})})});
}

TEST(Gradient, OfScatterNdThatCombinesMatchesDifferences) {
  for (const char* reduction : kReductions) {
    SCOPED_TRACE(reduction);
    TestGraph test;
    const ValueId rows = test.constant(makeConstant<int64_t>({3, 1}, {2, -2, 0}));
    checkGradients(test,
                   {test.op("ScatterND", {test.parameter("x", {4, 3}), rows, test.parameter("u", {3, 3})},
                            reducing(reduction))});
  }
}

// Products with no zero, a zero in the data, in an update, in both, and in two updates.
TEST(Gradient, OfAScatteredProductWithZerosMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({5}, {2, 0, 3, 0, -1}));
  const ValueId updates = test.parameter("u", makeTensor({9}, {3, 4, -2, 0, 5, 0, 7, 0, 0}));
  const ValueId places = test.constant(makeConstant<int64_t>({9}, {0, 1, 1, 2, 2, 3, 3, 4, 4}));
  checkGradients(test, {test.op("ScatterElements", {x, places, updates}, reducing("mul"))});
}

TEST(Gradient, OfAScatteredMaximumIsSharedBetweenEqualOnes) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({3}, {1, 2, 5}));
  const ValueId updates = test.parameter("u", makeTensor({4}, {1, 3, 3, 4}));
  const ValueId places = test.constant(makeConstant<int64_t>({4}, {0, 1, 1, 2}));
  const ValueId y = test.op("ScatterElements", {x, places, updates}, reducing("max"));
  const CheckedTraining checked = trainAndRun(test, test.op("ReduceSum", {y}, {{"keepdims", int64_t{0}}}));
  EXPECT_EQ(elementsOf(checked.gradients.at("x")), (Reals{0.5, 0, 1}));
  EXPECT_EQ(elementsOf(checked.gradients.at("u")), (Reals{0.5, 0.5, 0.5, 0}));
}

TEST(Gradient, OfAReductionThatScatterDoesNotKnowIsRefused) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3});
  const ValueId places = test.constant(makeConstant<int64_t>({1}, {0}));
  const ValueId y = test.op("ScatterElements", {x, places, test.parameter("u", {1})});
  const ValueId loss = test.weightedSum({y});
  for (Node& node : test.graph().nodes) {
    if (node.is("ScatterElements")) node.attributes["reduction"] = std::string("median");
  }
  try {
    trainAndRun(test, loss);
    FAIL() << "nobody refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("reduction 'median'"));
  }
}

}  // namespace
}  // namespace pipeshard::testing
