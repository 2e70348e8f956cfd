// What cannot be computed microbatch by microbatch is refused with the node's name and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "sharding/batch/time_axis.h"
#include "tests/sharding/batch/time_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const BuildModel& build) {
  Model model(2);
  const ValueId loss = build(model);
  try {
    splitTimeAxis(model.graph, {loss}, model.inputs, {1, 4});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    return error.what();
  }
  return "accepted";
}

ValueId hidden(Model& model) {
  return model.op("MatMul", {model.input("x", {model.batch, 6}), model.parameter("w", {6, 4})},
                  {model.batch, 4});
}

TEST(TimeAxisRefuses, SoftmaxOverTheBatch) {
  EXPECT_THAT(
      refusal([](Model& model) {
        return model.sumAll(model.op("Softmax", {hidden(model)}, {model.batch, 4}, {{"axis", int64_t{0}}}));
      }),
      AllOf(HasSubstr("node 'Softmax_output_node' (onnx::Softmax)"),
            HasSubstr("needs the whole of axis 0 of 'MatMul_output'")));
}

TEST(TimeAxisRefuses, NormalisationByTheMeanOfTheBatch) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId h = hidden(model);
                const ValueId mean =
                    model.op("ReduceMean", {h, model.integers({0})}, {4}, {{"keepdims", int64_t{0}}});
                return model.sumAll(model.op("Sub", {h, mean}, {model.batch, 4}));
              }),
              AllOf(HasSubstr("node 'Sub_output_node' (onnx::Sub)"),
                    HasSubstr("for every example it needs 'ReduceMean_output'")));
}

TEST(TimeAxisRefuses, NonlinearFunctionOfASum) {
  EXPECT_THAT(
      refusal([](Model& model) { return model.op("Exp", {model.sumAll(hidden(model))}, {}); }),
      AllOf(HasSubstr("node 'Exp_output_node' (onnx::Exp)"), HasSubstr("not linear in 'ReduceSum_output'")));
}

// A prologue may not multiply a count by a weight: the weight's gradient would be lost.
TEST(TimeAxisRefuses, ATotalOverAWeightOfOneElement) {
  const auto lossOver = [](const char* name, const Metadata& metadata) {
    return [=](Model& model) {
      const ValueId scale = model.builder.addConstant(name, makeScalar(DataType::kFloat64, 0.5));
      model.graph.value(scale).metadata = metadata;
      const ValueId w = model.builder.addConstant("dense.weight",
                                                  makeConstant<double>({6, 4}, std::vector<double>(24, 0.1)));
      const ValueId h = model.op("MatMul", {model.input("x", {model.batch, 6}), w}, {model.batch, 4});
      const ValueId count = model.sumAll(model.input("mask", {model.batch}));
      return model.op("Div", {model.sumAll(h), model.op("Mul", {count, scale}, {})}, {});
    };
  };
  EXPECT_THAT(refusal(lossOver("head.scale", {})), HasSubstr("depends on parameters"));
  EXPECT_THAT(refusal(lossOver("factor", {{kTrainedMark, "yes"}})), HasSubstr("depends on parameters"));
  EXPECT_EQ(refusal(lossOver("factor", {})), "accepted");
  EXPECT_EQ(refusal(lossOver("head.scale", {{kTrainedMark, "no"}})), "accepted");
}

TEST(TimeAxisRefuses, AMeanOverClassWeightsThatAreTrained) {
  EXPECT_THAT(refusal([](Model& model) {
                return model.op("SoftmaxCrossEntropyLoss",
                                {hidden(model), model.labels("labels", {model.batch}, 4),
                                 model.parameter("classes", {4})},
                                {}, {{"reduction", std::string("mean")}});
              }),
              HasSubstr("depends on parameters"));
}

TEST(TimeAxisRefuses, ProductOfTwoSums) {
  EXPECT_THAT(
      refusal([](Model& model) {
        const ValueId sum = model.sumAll(hidden(model));
        return model.op("Mul", {sum, sum}, {});
      }),
      AllOf(HasSubstr("node 'Mul_output_node' (onnx::Mul)"), HasSubstr("not linear in 'ReduceSum_output'")));
}

TEST(TimeAxisRefuses, IntegerPlusASumThatDependsOnParameters) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId large = model.op("Greater", {hidden(model), model.number(0)}, {model.batch, 4},
                                               {}, DataType::kBool);
                const ValueId ones =
                    model.op("Cast", {large}, {model.batch, 4}, {{"to", int64_t{7}}}, DataType::kInt64);
                const ValueId count = model.sumAll(ones, DataType::kInt64);
                const ValueId more = model.op("Add", {count, model.constant(makeScalar(DataType::kInt64, 1))},
                                              {}, {}, DataType::kInt64);
                return model.op("Cast", {more}, {}, {{"to", int64_t{11}}});
              }),
              AllOf(HasSubstr("node 'Add_output_node' (onnx::Add)"), HasSubstr("not linear in")));
}

TEST(TimeAxisRefuses, EveryExampleAgainstEveryOther) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId h = hidden(model);
                const ValueId turned = model.op("Transpose", {h}, {4, model.batch});
                return model.sumAll(model.op("MatMul", {h, turned}, {model.batch, model.batch}));
              }),
              AllOf(HasSubstr("MatMul"),
                    HasSubstr("every example of 'MatMul_output' with every example of 'Transpose_output'")));
}

TEST(TimeAxisRefuses, ReshapeThatMakesTheBatchMinor) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId turned = model.op("Transpose", {hidden(model)}, {4, model.batch});
                return model.sumAll(model.op("Reshape", {turned, model.integers({-1})}, {4 * model.batch}));
              }),
              AllOf(HasSubstr("node 'Reshape_output_node' (onnx::Reshape)"),
                    HasSubstr("not one block after the other along axis 0")));
}

TEST(TimeAxisRefuses, MaximumOverTheBatch) {
  EXPECT_THAT(refusal([](Model& model) {
                return model.op("ReduceMax", {hidden(model)}, {}, {{"keepdims", int64_t{0}}});
              }),
              AllOf(HasSubstr("ReduceMax"), HasSubstr("takes the maximum over the batch")));
}

TEST(TimeAxisRefuses, WeightsPerExample) {
  EXPECT_THAT(
      refusal([](Model& model) {
        return model.sumAll(
            model.op("Mul", {hidden(model), model.parameter("per_example", {2, 1})}, {model.batch, 4}));
      }),
      AllOf(
          HasSubstr("Mul"),
          HasSubstr("'per_example' does not depend on the batch, but has 2 different entries along axis 0")));
}

// Of 2 rows of a batch of 4. tf2onnx writes 1000000000 where nothing is cut off.
TEST(TimeAxisRefuses, SliceOfTheBatch) {
  const auto upTo = [](int64_t end) {
    return refusal([end](Model& model) {
      const ValueId slice =
          model.op("Slice", {hidden(model), model.integers({0}), model.integers({end}), model.integers({0})},
                   {model.batch, 4});
      return model.sumAll(slice);
    });
  };
  for (const int64_t end : {2, 4, 8})  // the whole batch has 8 rows
    EXPECT_THAT(upTo(end), AllOf(HasSubstr("Slice"), HasSubstr("needs the whole of axis 0"))) << end;
  for (const int64_t end : {int64_t{9}, int64_t{1'000'000'000}, int64_t{INT64_MAX}})
    EXPECT_EQ(upTo(end), "accepted") << end;
}

TEST(TimeAxisRefuses, OperatorWithoutARule) {
  EXPECT_THAT(refusal([](Model& model) {
                return model.sumAll(model.op("NonZeroThing", {hidden(model)}, {model.batch, 4}));
              }),
              AllOf(HasSubstr("NonZeroThing"), HasSubstr("no sharding rule")));
}

TEST(TimeAxisRefuses, CountThatNeedsAnotherTotal) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId y = model.input("y", {model.batch, 4});
                const ValueId centered = model.op("Sub", {y, model.meanAll(y)}, {model.batch, 4});
                const ValueId spread = model.sumAll(model.op("Mul", {centered, centered}, {model.batch, 4}));
                return model.op("Div", {model.sumAll(hidden(model)), spread}, {});
              }),
              AllOf(HasSubstr("Div"), HasSubstr("on another such sum")));
}

TEST(TimeAxisRefuses, LossPerExample) {
  EXPECT_THAT(refusal([](Model& model) { return hidden(model); }),
              HasSubstr("still has one value per example"));
}

TEST(TimeAxisRefuses, LossWithoutTheBatch) {
  EXPECT_THAT(refusal([](Model& model) {
                return model.sumAll(model.parameter("w", {6, 4}));
              }),
              HasSubstr("does not depend on"));
}

TEST(TimeAxisRefuses, LabelsThatAreNotCut) {
  EXPECT_THAT(refusal([](Model& model) {
                const ValueId labels = model.constant(makeConstant<int64_t>({2}, {1, 1}));
                return model.op("SoftmaxCrossEntropyLoss", {hidden(model), labels}, {},
                                {{"reduction", std::string("mean")}, {"ignore_index", int64_t{-100}}});
              }),
              HasSubstr("are not cut with the batch"));
}

std::string comparedRefusal(const BuildModel& build, int64_t microbatch) {
  Model model(microbatch);
  Model whole(8);
  const ValueId loss = build(model);
  build(whole);
  try {
    splitTimeAxis(model.graph, {loss}, model.inputs, {microbatch, 8, &whole.graph, 8});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TimeAxisRefuses, ConstantsThatNumberTheExamples) {
  const BuildModel build = [](Model& model) {
    std::vector<double> numbers;
    for (int64_t i = 0; i < model.batch; ++i) numbers.push_back(static_cast<double>(i));
    return model.sumAll(
        model.op("Mul", {hidden(model), model.constant(makeConstant<double>({model.batch, 1}, numbers))},
                 {model.batch, 4}));
  };
  EXPECT_THAT(comparedRefusal(build, 1), HasSubstr("is a constant of shape [8,1] for the whole batch"));
  EXPECT_THAT(comparedRefusal(build, 4), HasSubstr("is a constant of shape [8,1] for the whole batch"));
}

// h[arange(batch), i], with the numbers in an index beside others.
TEST(TimeAxisRefuses, RowNumbersAsAnIndex) {
  const BuildModel build = [](Model& model) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < model.batch; ++i) rows.insert(rows.end(), {i, i});
    const ValueId row_numbers = model.constant(makeConstant<int64_t>({model.batch, 2}, rows));
    const ValueId index = model.op("Add", {model.labels("i", {model.batch, 2}, 4), row_numbers},
                                   {model.batch, 2}, {}, DataType::kInt64);
    const ValueId numbers = model.op("Cast", {index}, {model.batch, 2}, {{"to", int64_t{11}}});
    return model.op("Add", {model.sumAll(numbers), model.sumAll(hidden(model))}, {});
  };
  EXPECT_THAT(comparedRefusal(build, 2),
              AllOf(HasSubstr("numbers the examples of the batch"), HasSubstr("torch.take_along_dim")));
}

TEST(TimeAxisRefuses, ReshapeOfABatchOfOneIntoALongerRow) {
  const BuildModel build = [](Model& model) {
    const ValueId row = model.op("Reshape", {hidden(model), model.integers({1, -1})}, {1, model.batch * 4});
    return model.sumAll(model.op("Softmax", {row}, {1, model.batch * 4}));
  };
  EXPECT_THAT(comparedRefusal(build, 1), HasSubstr("needs the whole of axis 1"));
  EXPECT_THAT(comparedRefusal(build, 2), HasSubstr("needs the whole of axis 1"));
}

// x[0] = 0, which preparation takes for all of x where there is one row. The zeros are alike in every row.
TEST(TimeAxisRefuses, AWriteOfOneRowThatIsTheWholeOfOne) {
  const BuildModel build = [](Model& model) {
    const ValueId zeros = model.op("Expand", {model.number(0), model.integers({1, 4})}, {1, 4});
    const ValueId x = hidden(model);
    const ValueId written = model.builder.addValue("written", DataType::kFloat64, {model.batch, 4});
    if (model.batch == 1) {
      model.builder.addNode("", "Identity", {zeros}, {written});
    } else {
      const ValueId first = model.constant(makeConstant<int64_t>({1, 1}, {0}));
      model.builder.addNode("", "ScatterND", {x, first, zeros}, {written});
    }
    return model.sumAll(model.op("Mul", {written, x}, {model.batch, 4}));
  };
  EXPECT_THAT(comparedRefusal(build, 1), AllOf(HasSubstr("ScatterND"), HasSubstr("by their numbers")));
}

}  // namespace
}  // namespace pipeshard::testing
