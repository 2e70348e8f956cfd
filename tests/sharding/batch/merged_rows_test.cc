// Rows merged behind another axis, [L, N, E] -> [L*N, E]: the batch is whole there, but can be cut.
#include "sharding/batch/merged_rows.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/sharding/batch/time_model.h"

namespace pipeshard::testing {
namespace {

constexpr int64_t kLength = 5;

// Turned as planning does it: by another batch.
BuildModel turned(const BuildModel& build, int expected) {
  return [build, expected](Model& model) {
    const ValueId loss = build(model);
    Model other(model.batch + 1);
    build(other);
    model.graph.outputs = {loss};
    EXPECT_TRUE(mayMergeRows(model.graph, model.batch));
    EXPECT_EQ(mergeRowsFirst(model.graph, model.batch, other.graph, other.batch), expected);
    verifyGraph(model.graph);
    return loss;
  };
}

void expectEqual(const BuildModel& build) {
  for (const int64_t count : {1, 2, 3, 4, 7}) {
    const Losses losses = compareLosses(build, count, 7, false, true);
    EXPECT_TRUE(std::isfinite(losses.whole));
    EXPECT_NEAR(losses.parts, losses.whole, 1e-12 * std::max(1.0, std::abs(losses.whole))) << count;
  }
}

// relu(x W) of [L, N, 6] by way of [L*N, 6].
ValueId flatProduct(Model& model, ValueId x) {
  const int64_t rows = kLength * model.batch;
  const ValueId flat = model.op("Reshape", {x, model.integers({rows, 6})}, {rows, 6});
  const ValueId product =
      model.op("Gemm", {flat, model.parameter("w", {6, 4}), model.parameter("b", {4})}, {rows, 4});
  const ValueId active = model.op("Relu", {product}, {rows, 4});
  return model.op("Reshape", {active, model.integers({kLength, model.batch, 4})}, {kLength, model.batch, 4});
}

TEST(MergedRows, AProductOfAllRows) {
  const BuildModel build = [](Model& model) {
    const ValueId x = model.input("x", {kLength, model.batch, 6}, 1);
    const ValueId y = flatProduct(model, x);
    return model.meanAll(model.op("Mul", {y, y}, {kLength, model.batch, 4}));
  };
  EXPECT_THROW(compareLosses(build, 2, 7, false, true), Error);
  expectEqual(turned(build, 2));
}

// Scores and labels are flattened alike: the mean over all of them knows no order.
TEST(MergedRows, ScoresAndLabelsThatMeetInTheLoss) {
  expectEqual(turned(
      [](Model& model) {
        const int64_t rows = kLength * model.batch;
        const ValueId x = model.input("x", {kLength, model.batch, 6}, 1);
        const ValueId labels = model.input("labels", {kLength, model.batch}, 1);
        const ValueId flat = model.op("Reshape", {x, model.integers({rows, 6})}, {rows, 6});
        const ValueId scores = model.op("MatMul", {flat, model.parameter("w", {6, 1})}, {rows, 1});
        const ValueId column = model.op("Reshape", {labels, model.integers({rows, 1})}, {rows, 1});
        const ValueId difference = model.op("Sub", {scores, column}, {rows, 1});
        return model.meanAll(model.op("Mul", {difference, difference}, {rows, 1}));
      },
      2));
}

// [L, N*H, d] -> [L*N, H*d]: the batch shares its axis with the heads.
TEST(MergedRows, HeadsBehindTheRows) {
  expectEqual(turned(
      [](Model& model) {
        const int64_t rows = kLength * model.batch;
        const ValueId x = model.input("x", {kLength, model.batch * 3, 2}, 1);
        const ValueId flat = model.op("Reshape", {x, model.integers({rows, 6})}, {rows, 6});
        const ValueId y = model.op("MatMul", {flat, model.parameter("w", {6, 4})}, {rows, 4});
        const ValueId z =
            model.op("Reshape", {y, model.integers({kLength, model.batch, 4})}, {kLength, model.batch, 4});
        return model.meanAll(model.op("Mul", {z, z}, {kLength, model.batch, 4}));
      },
      2));
}

// A softmax over all rows needs them as they are; nothing is turned then.
TEST(MergedRows, AnOperatorThatNeedsTheirOrderIsLeftAlone) {
  Model model(4), other(5);
  for (Model* each : {&model, &other}) {
    const int64_t rows = kLength * each->batch;
    const ValueId x = each->input("x", {kLength, each->batch, 6}, 1);
    const ValueId flat = each->op("Reshape", {x, each->integers({rows, 6})}, {rows, 6});
    const ValueId y = each->op("CumSum", {flat, each->integers({0})}, {rows, 6});
    each->graph.outputs = {each->meanAll(y)};
  }
  const size_t nodes = model.graph.nodes.size();
  EXPECT_EQ(mergeRowsFirst(model.graph, 4, other.graph, other.batch), 0);
  EXPECT_EQ(model.graph.nodes.size(), nodes);
}

}  // namespace
}  // namespace pipeshard::testing
