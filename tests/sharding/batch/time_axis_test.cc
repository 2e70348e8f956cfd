// The sum over microbatches of the rewritten loss is the loss of the whole batch.
#include "sharding/batch/time_axis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/graph/graph_print.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "tests/sharding/batch/time_model.h"

namespace pipeshard::testing {
namespace {

using Attributes = std::map<std::string, Attribute>;
const Attributes kMeanIgnoring = {{"reduction", std::string("mean")}, {"ignore_index", int64_t{-100}}};

void expectEqualLosses(const BuildModel& build, bool compare) {
  for (int64_t count : {1, 2, 3, 4, 5, 8}) {
    for (uint64_t seed : {1, 2, 3}) {
      const Losses losses = compareLosses(build, count, seed, false, compare);
      EXPECT_TRUE(std::isfinite(losses.whole));
      EXPECT_NEAR(losses.parts, losses.whole, 1e-12 * std::max(1.0, std::abs(losses.whole)))
          << count << " microbatches, seed " << seed;
    }
  }
}

void expectEqualLosses(const BuildModel& build) {
  expectEqualLosses(build, false);
  expectEqualLosses(build, true);
}

ValueId dense(Model& model, ValueId x, Shape rows, const std::string& name, int64_t in, int64_t out) {
  rows.push_back(out);
  const ValueId product = model.op("MatMul", {x, model.parameter(name + ".weight", {in, out})}, rows);
  return model.op("Add", {product, model.parameter(name + ".bias", {out})}, rows);
}

// logits [batch*5, 7] of tokens [batch, 5, 6]
ValueId tokenLogits(Model& model) {
  const ValueId x = model.input("x", {model.batch, 5, 6});
  const ValueId hidden =
      model.op("Tanh", {dense(model, x, {model.batch, 5}, "hidden", 6, 6)}, {model.batch, 5, 6});
  const ValueId flat = model.op("Reshape", {hidden, model.integers({-1, 6})}, {model.batch * 5, 6});
  return dense(model, flat, {model.batch * 5}, "head", 6, 7);
}

ValueId flatLabels(Model& model) {
  const ValueId labels = model.labels("labels", {model.batch, 5}, 7);
  return model.op("Reshape", {labels, model.integers({-1})}, {model.batch * 5}, {}, DataType::kInt64);
}

ValueId lossNode(Model& model, const std::string& type, std::vector<ValueId> inputs,
                 const Attributes& attributes) {
  return model.op(type, std::move(inputs), {}, attributes);
}

TEST(TimeAxis, MeanSquaredErrorOfGemmLayers) {
  expectEqualLosses([](Model& model) {
    const ValueId x = model.input("x", {model.batch, 6});
    const ValueId y = model.input("y", {model.batch, 3});
    const ValueId w1 = model.parameter("w1", {5, 6});
    const ValueId b1 = model.parameter("b1", {5});
    const ValueId h =
        model.op("Relu", {model.op("Gemm", {x, w1, b1}, {model.batch, 5}, {{"transB", int64_t{1}}})},
                 {model.batch, 5});
    const ValueId p = model.op("Gemm", {h, model.parameter("w2", {5, 3})}, {model.batch, 3});
    const ValueId d = model.op("Sub", {p, y}, {model.batch, 3});
    return model.meanAll(model.op("Mul", {d, d}, {model.batch, 3}));
  });
}

TEST(TimeAxis, MeanCrossEntropyCountsLabelsThatAreNotIgnored) {
  expectEqualLosses([](Model& model) {
    return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model)}, kMeanIgnoring);
  });
}

TEST(TimeAxis, MeanCrossEntropyWeighsLabels) {
  expectEqualLosses([](Model& model) {
    const ValueId weights = model.constant(makeConstant<double>({7}, {0.5, 1, 2, 0.1, 1, 3, 0.7}));
    return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model), weights},
                    kMeanIgnoring);
  });
}

// A buffer of a file without marks looks like a parameter.
ValueId lossWeighedByABuffer(Model& model) {
  const ValueId weights = model.parameter("class_weights", {7});
  model.constants = {weights};
  return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model), weights},
                  kMeanIgnoring);
}

TEST(TimeAxis, MeanCrossEntropyWeighsLabelsByWhatNoStepChanges) { expectEqualLosses(lossWeighedByABuffer); }

TEST(TimeAxis, WhatAPrologueReadsIsNoParameterAnyMore) {
  Model model(2);
  const ValueId loss = lossWeighedByABuffer(model);
  const ValueId unread = model.parameter("unread", {7});
  model.constants.push_back(unread);
  const ValueId weights = model.constants.front();
  const TimeAxisResult time = splitTimeAxis(model.graph, {loss, {}, model.constants}, model.inputs, {1, 4});
  EXPECT_EQ(time.totals.size(), 1u);
  const std::vector<InitializerRole> roles = initializerRoles(model.graph);
  EXPECT_EQ(roles[weights.index()], InitializerRole::kFrozen);
  EXPECT_EQ(roles[unread.index()], InitializerRole::kParameter);
}

TEST(TimeAxis, MeanCrossEntropyWithoutIgnoredLabelsNeedsNoTotal) {
  const BuildModel build = [](Model& model) {
    const ValueId labels =
        model.op("Clip", {flatLabels(model), model.constant(makeScalar(DataType::kInt64, 0))},
                 {model.batch * 5}, {}, DataType::kInt64);
    return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), labels},
                    {{"reduction", std::string("mean")}});
  };
  expectEqualLosses(build);
  Model model(4);
  const ValueId loss = build(model);
  EXPECT_TRUE(splitTimeAxis(model.graph, {loss}, model.inputs, {1, 2}).totals.empty());
}

TEST(TimeAxis, NegativeLogLikelihoodOfLogSoftmax) {
  expectEqualLosses([](Model& model) {
    const ValueId log = model.op("LogSoftmax", {tokenLogits(model)}, {model.batch * 5, 7});
    return lossNode(model, "NegativeLogLikelihoodLoss", {log, flatLabels(model)}, kMeanIgnoring);
  });
}

TEST(TimeAxis, LabelsShiftedByPadAndSlice) {
  expectEqualLosses([](Model& model) {
    const ValueId labels = model.labels("labels", {model.batch, 5}, 7);
    const ValueId padded = model.op(
        "Pad", {labels, model.integers({0, 0, 0, 1}), model.constant(makeScalar(DataType::kInt64, -100))},
        {model.batch, 6}, {}, DataType::kInt64);
    const ValueId shifted =
        model.op("Slice", {padded, model.integers({1}), model.integers({INT64_MAX}), model.integers({1})},
                 {model.batch, 5}, {}, DataType::kInt64);
    const ValueId flat =
        model.op("Reshape", {shifted, model.integers({-1})}, {model.batch * 5}, {}, DataType::kInt64);
    return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flat}, kMeanIgnoring);
  });
}

// -sum(where(mask, log p[label], 0)) / sum(mask), as exporters decompose it; the count stays an integer.
ValueId decomposedLoss(Model& model, const std::function<ValueId(Model&, ValueId)>& denominator) {
  const int64_t rows = model.batch * 5;
  const ValueId labels = flatLabels(model);
  const ValueId log = model.op("LogSoftmax", {tokenLogits(model)}, {rows, 7});
  const ValueId ignored = model.op("Equal", {labels, model.constant(makeScalar(DataType::kInt64, -100))},
                                   {rows}, {}, DataType::kBool);
  const ValueId mask = model.op("Not", {ignored}, {rows}, {}, DataType::kBool);
  const ValueId safe = model.op("Where", {mask, labels, model.constant(makeScalar(DataType::kInt64, 0))},
                                {rows}, {}, DataType::kInt64);
  const ValueId column = model.op("Unsqueeze", {safe, model.integers({1})}, {rows, 1}, {}, DataType::kInt64);
  const ValueId picked = model.op("GatherElements", {log, column}, {rows, 1}, {{"axis", int64_t{1}}});
  const ValueId flat = model.op("Squeeze", {picked, model.integers({1})}, {rows});
  const ValueId kept = model.op("Where", {mask, model.op("Neg", {flat}, {rows}), model.number(0)}, {rows});
  const ValueId ones = model.op("Cast", {mask}, {rows}, {{"to", int64_t{7}}}, DataType::kInt64);
  return model.op("Div", {model.sumAll(kept), denominator(model, model.sumAll(ones, DataType::kInt64))}, {});
}

ValueId toReal(Model& model, ValueId value) { return model.op("Cast", {value}, {}, {{"to", int64_t{11}}}); }

TEST(TimeAxis, DecomposedMaskedMean) {
  expectEqualLosses([](Model& model) {
    return decomposedLoss(model, [](Model& m, ValueId count) { return toReal(m, count); });
  });
}

TEST(TimeAxis, NonlinearFunctionsOfTheCountUseItsTotal) {
  expectEqualLosses([](Model& model) {
    return decomposedLoss(model, [](Model& m, ValueId count) {
      const ValueId shifted = m.op("Add", {toReal(m, count), m.number(1e-3)}, {});
      return m.op("Sqrt", {m.op("Max", {shifted, m.number(2)}, {})}, {});
    });
  });
}

TEST(TimeAxis, LabelsThatAreAllIgnoredGiveNaN) {
  const BuildModel build = [](Model& model) {
    return lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model)}, kMeanIgnoring);
  };
  const Losses losses = compareLosses(build, 4, 1, true);
  EXPECT_TRUE(std::isnan(losses.whole));
  EXPECT_TRUE(std::isnan(losses.parts));
}

TEST(TimeAxis, SharesWhatDoesNotDependOnTheBatch) {
  expectEqualLosses([](Model& model) {
    const ValueId x = model.input("x", {model.batch, 6});
    const ValueId w = model.parameter("w", {6, 3});
    const ValueId loss =
        model.sumAll(model.op("Exp", {model.op("MatMul", {x, w}, {model.batch, 3})}, {model.batch, 3}));
    const ValueId decay =
        model.op("Mul", {model.sumAll(model.op("Mul", {w, w}, {6, 3})), model.number(0.01)}, {});
    return model.op("Sub", {decay, model.op("Neg", {loss}, {})}, {});
  });
}

TEST(TimeAxis, AttentionWithMaskAndPositions) {
  expectEqualLosses([](Model& model) {
    const int64_t b = model.batch;
    const ValueId tokens = model.labels("tokens", {b, 4}, 9);
    const ValueId known = model.op("Abs", {tokens}, {b, 4}, {}, DataType::kInt64);
    const ValueId row = model.op("Mod", {known, model.constant(makeScalar(DataType::kInt64, 9))}, {b, 4}, {},
                                 DataType::kInt64);
    const ValueId embedded = model.op("Gather", {model.parameter("embedding", {9, 6}), row}, {b, 4, 6});
    const ValueId x = model.op("Add", {embedded, model.parameter("positions", {1, 4, 6})}, {b, 4, 6});
    const ValueId normal = model.op(
        "LayerNormalization", {x, model.parameter("scale", {6}), model.parameter("shift", {6})}, {b, 4, 6});
    const ValueId flat = model.op("Reshape", {normal, model.integers({-1, 6})}, {b * 4, 6});
    const ValueId projected = dense(model, flat, {b * 4}, "q", 6, 6);
    const ValueId heads = model.op("Reshape", {projected, model.integers({-1, 4, 2, 3})}, {b, 4, 2, 3});
    const ValueId q =
        model.op("Transpose", {heads}, {b, 2, 4, 3}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    const ValueId k =
        model.op("Transpose", {heads}, {b, 2, 3, 4}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
    const ValueId scores = model.op("MatMul", {q, k}, {b, 2, 4, 4});
    Constant mask = makeConstant<uint8_t>({1, 1, 4, 4}, {1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1});
    mask.data_type = DataType::kBool;
    const ValueId masked =
        model.op("Where", {model.constant(mask), scores, model.number(-1e30)}, {b, 2, 4, 4});
    const ValueId mixed = model.op("MatMul", {model.op("Softmax", {masked}, {b, 2, 4, 4}), q}, {b, 2, 4, 3});
    const ValueId back =
        model.op("Transpose", {mixed}, {b, 4, 2, 3}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    const ValueId merged = model.op("Reshape", {back, model.integers({b, 4, 6})}, {b, 4, 6});
    return model.meanAll(model.op("Mul", {merged, merged}, {b, 4, 6}));
  });
}

TEST(TimeAxis, ExpandedTokenIsCutWithTheBatch) {
  expectEqualLosses([](Model& model) {
    const int64_t b = model.batch;
    const ValueId x = model.input("x", {b, 3, 2});
    const ValueId token =
        model.op("Expand", {model.parameter("token", {1, 1, 2}), model.integers({b, 1, 2})}, {b, 1, 2});
    const ValueId joined = model.op("Concat", {token, x}, {b, 4, 2}, {{"axis", int64_t{1}}});
    return model.meanAll(model.op("Tanh", {joined}, {b, 4, 2}));
  });
}

TEST(TimeAxis, BatchThatIsNotTheFirstAxis) {
  expectEqualLosses([](Model& model) {
    const ValueId x = model.input("x", {5, model.batch, 4}, 1);
    const ValueId y = dense(model, x, {5, model.batch}, "dense", 4, 3);
    const ValueId per_example =
        model.op("ReduceMean", {y, model.integers({0, 2})}, {model.batch}, {{"keepdims", int64_t{0}}});
    return model.sumAll(model.op("Mul", {per_example, per_example}, {model.batch}));
  });
}

// As preparation folds Size(x): the graph of a microbatch holds the microbatch's number.
TEST(TimeAxis, SizesThatWereFoldedAreTakenFromTheWholeBatch) {
  const BuildModel build = [](Model& model) {
    const ValueId h = dense(model, model.input("x", {model.batch, 6}), {model.batch}, "dense", 6, 3);
    const ValueId count = model.number(static_cast<double>(model.batch * 3));
    return model.op("Div", {model.sumAll(model.op("Exp", {h}, {model.batch, 3})), count}, {});
  };
  expectEqualLosses(build, true);
  const Losses unaware = compareLosses(build, 4, 1);
  EXPECT_NEAR(unaware.parts, 4 * unaware.whole, 1e-9 * unaware.parts) << "this is what the comparison is for";
}

// What is known of the folded size is known of the whole batch's too: it is no parameter, whatever it is
// called.
TEST(TimeAxis, ASizeOfTheWholeBatchKeepsTheMarkOfAFoldedConstant) {
  const auto build = [](Model& model) {
    const ValueId h = dense(model, model.input("x", {model.batch, 6}), {model.batch}, "dense", 6, 3);
    const ValueId count = model.number(static_cast<double>(model.batch * 3));
    markFolded(model.graph.value(count));
    return model.op("Div", {model.sumAll(model.op("Exp", {h}, {model.batch, 3})), count}, {});
  };
  Model part(2);
  const ValueId loss = build(part);
  Model whole(8);
  build(whole);
  splitTimeAxis(part.graph, {loss}, part.inputs, {2, 8, &whole.graph, 8});
  const Value& taken = part.graph.value(part.graph.nodes.back().inputs[1]);
  EXPECT_TRUE(taken.name.ends_with(".whole")) << taken.name;
  EXPECT_EQ(taken.metadata, (Metadata{{"pipeshard.constant", "folded"}}));
}

TEST(TimeAxis, OnesOfTheBatchSizeAreCutWithIt) {
  expectEqualLosses(
      [](Model& model) {
        const ValueId h = dense(model, model.input("x", {model.batch, 6}), {model.batch}, "dense", 6, 3);
        const Shape rows = {model.batch, 1};
        const ValueId ones = model.constant(makeConstant<double>(rows, std::vector<double>(model.batch, 1)));
        return model.op(
            "Div", {model.sumAll(h), model.sumAll(model.op("Mul", {ones, model.number(0.5)}, rows))}, {});
      },
      true);
}

// [1,16] -> [1,1,16] with the batch in the second place: only the whole batch's shapes tell.
TEST(TimeAxis, BatchOfOneGoesWhereTheWholeBatchHasIt) {
  expectEqualLosses(
      [](Model& model) {
        const ValueId h = dense(model, model.input("x", {model.batch, 6}), {model.batch}, "dense", 6, 3);
        const ValueId shaped =
            model.op("Reshape", {h, model.integers({1, model.batch, 3})}, {1, model.batch, 3});
        const ValueId soft = model.op("Softmax", {shaped}, {1, model.batch, 3}, {{"axis", int64_t{0}}});
        const ValueId squeezed =
            model.op("Squeeze", {model.op("Add", {soft, shaped}, {1, model.batch, 3}), model.integers({0})},
                     {model.batch, 3});
        return model.meanAll(model.op("Exp", {squeezed}, {model.batch, 3}));
      },
      true);
}

// [8,6] -> [4,2,6] -> [8,6], with a mean over the two rows of each group: parts are of 4, 2 and 1 groups.
TEST(TimeAxis, RowsThatMeetInGroupsOfTwoStayTogether) {
  const BuildModel build = [](Model& model) {
    const int64_t groups = model.batch / 2;
    const ValueId h = dense(model, model.input("x", {model.batch, 6}), {model.batch}, "dense", 6, 3);
    const ValueId grouped = model.op("Reshape", {h, model.integers({-1, 6})}, {groups, 6});
    const ValueId soft = model.op("Softmax", {grouped}, {groups, 6}, {{"axis", int64_t{1}}});
    const ValueId rows = model.op("Reshape", {soft, model.integers({-1, 3})}, {model.batch, 3});
    return model.meanAll(model.op("Exp", {model.op("Add", {rows, h}, {model.batch, 3})}, {model.batch, 3}));
  };
  for (const int64_t parts : {1, 2, 4}) {
    const Losses losses = compareLosses(build, parts, 7, false, true);
    EXPECT_NEAR(losses.parts, losses.whole, 1e-12 * std::abs(losses.whole)) << parts;
  }
}

TEST(TimeAxis, ReshapeThatOnlyAddsAnAxisKeepsTheBatch) {
  Model model(2);
  const ValueId shaped =
      model.op("Reshape", {model.input("x", {2, 6}), model.integers({1, 2, 6})}, {1, 2, 6});
  const ValueId loss = model.sumAll(model.op("Mul", {shaped, model.parameter("w", {6})}, {1, 2, 6}));
  const TimeAxisResult time = splitTimeAxis(model.graph, {loss}, model.inputs, {1, 4});
  EXPECT_EQ(time.kinds.at(shaped.index()).axis, 1);
}

TEST(TimeAxis, KindsSayHowPartsMakeTheWhole) {
  Model model(2);
  const ValueId x = model.input("x", {2, 6});
  const ValueId w = model.parameter("w", {6, 3});
  const ValueId product = model.op("MatMul", {x, w}, {2, 3});
  const ValueId turned = model.op("Transpose", {product}, {3, 2});
  const ValueId loss = model.sumAll(turned);
  const TimeAxisResult time = splitTimeAxis(model.graph, {loss}, model.inputs, {1, 4});
  const auto kind = [&](ValueId id) { return time.kinds.at(id.index()).kind; };
  EXPECT_EQ(kind(w), TimeKind::Kind::kInvariant);
  EXPECT_EQ(kind(product), TimeKind::Kind::kSplit);
  EXPECT_EQ(time.kinds.at(product.index()).axis, 0);
  EXPECT_EQ(time.kinds.at(turned.index()).axis, 1);
  EXPECT_EQ(kind(loss), TimeKind::Kind::kSum);
}

TEST(TimeAxis, OneMicrobatchIsLeftAlone) {
  Model model(8);
  const ValueId loss =
      lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model)}, kMeanIgnoring);
  const std::string before = printGraph(model.graph);
  const TimeAxisResult time = splitTimeAxis(model.graph, {loss}, model.inputs, {1, 1});
  EXPECT_EQ(printGraph(model.graph), before);
  EXPECT_TRUE(time.totals.empty());
  EXPECT_EQ(time.loss, loss);
}

// ir/graph/training_graph.h: a forward node reads no node of the prologue.
TEST(TimeAxis, PrologueSharesNoNodeWithTheForwardPass) {
  Model model(2);
  const ValueId loss =
      lossNode(model, "SoftmaxCrossEntropyLoss", {tokenLogits(model), flatLabels(model)}, kMeanIgnoring);
  const TimeAxisResult time = splitTimeAxis(model.graph, {loss}, model.inputs, {1, 4});
  ASSERT_EQ(time.totals.size(), 1u);
  EXPECT_EQ(time.kinds.size(), model.graph.values.size());
  const std::vector<bool> prologue = ancestorsOf(model.graph, {time.totals[0].part});
  const std::vector<bool> forward = ancestorsOf(model.graph, {time.loss});
  for (size_t n = 0; n < prologue.size(); ++n)
    EXPECT_FALSE(prologue[n] && forward[n]) << describeNode(model.graph.nodes[n]);
}

}  // namespace
}  // namespace pipeshard::testing
