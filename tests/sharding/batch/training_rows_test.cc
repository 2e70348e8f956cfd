// The same training step at several numbers of rows, on small steps made by hand.
#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "sharding/batch/training_family.h"
#include "sharding/batch/training_rows.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Forward nodes alone: loss = ReduceSum(what the test adds).
class StepBuilder {
 public:
  explicit StepBuilder(int64_t rows) : rows_(rows) {
    training_.graph.opset_imports = {{"", 20}};
    x_ = builder_.addValue("x", DataType::kFloat32, {rows, 16, 8});
    training_.graph.inputs = {x_};
    training_.inputs = {{x_, 0}};
  }

  int64_t rows() const { return rows_; }
  ValueId x() const { return x_; }
  ValueId integers(const std::vector<int64_t>& numbers) {
    return builder_.addConstant("numbers", makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }
  ValueId floats(Shape shape, const std::vector<float>& numbers) {
    return builder_.addConstant("floats", makeConstant(std::move(shape), numbers));
  }
  ValueId node(const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& name,
               Shape shape) {
    const ValueId output = builder_.addValue(name, DataType::kFloat32, std::move(shape));
    builder_.addNode("", op_type, inputs, {output});
    training_.node_phase.push_back(Phase::kForward);
    training_.forward_node.emplace_back();
    return output;
  }
  TrainingGraph finish(ValueId last) {
    training_.loss = node("ReduceSum", {last}, "loss", {});
    training_.graph.outputs = {training_.loss};
    verifyTrainingGraph(training_);
    return training_;
  }

 private:
  const int64_t rows_;
  TrainingGraph training_;
  GraphBuilder builder_{training_.graph};
  ValueId x_;
};

// Reshape to [rows*16, 8], as an exporter folds it.
TrainingGraph reshaped(int64_t rows) {
  StepBuilder step(rows);
  return step.finish(step.node("Reshape", {step.x(), step.integers({rows * 16, 8})}, "flat", {rows * 16, 8}));
}

const Constant& constantOf(const TrainingGraph& training, size_t node, size_t input) {
  return *training.graph.constant(training.graph.nodes[node].inputs[input]);
}

template <typename Function>
void expectRefusal(const Function& function, const std::string& message) {
  try {
    function();
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(TrainingOfRows, AdaptsShapesAndTheTargetOfAReshape) {
  const TrainingGraph one = trainingOfRows({reshaped(2), 2}, {reshaped(3), 3}, 1);
  EXPECT_EQ(one.graph.shape(one.inputs[0].value), (Shape{1, 16, 8}));
  EXPECT_EQ(one.graph.shape(one.graph.nodes[0].outputs[0]), (Shape{16, 8}));
  EXPECT_THAT(integerElements(constantOf(one, 0, 1)), ElementsAre(16, 8));
  EXPECT_EQ(one.graph.shape(one.loss), Shape{});
}

TEST(TrainingOfRows, GivesWhatTheMakerGivesAtAnySmallerSize) {
  for (int64_t rows = 2; rows < 6; ++rows) {
    const TrainingGraph derived = trainingOfRows({reshaped(6), 6}, {reshaped(8), 8}, rows);
    const TrainingGraph made = reshaped(rows);
    for (size_t v = 0; v < made.graph.values.size(); ++v) {
      if (made.graph.initializers.contains(ValueId(v))) continue;
      EXPECT_EQ(derived.graph.shape(ValueId(v)), made.graph.shape(ValueId(v)))
          << made.graph.values[v].name << " at " << rows;
    }
    EXPECT_EQ(constantOf(derived, 0, 1), constantOf(made, 0, 1)) << rows;
  }
}

// At two rows the batch happens to be as large as another axis: one constant serves both uses.
TrainingGraph sharingAnInteger(int64_t rows) {
  StepBuilder step(rows);
  const ValueId batch = step.integers({rows, 128});
  const ValueId pair = rows == 2 ? batch : step.integers({2, 128});
  const ValueId small = step.floats({256}, std::vector<float>(256, 0.5F));
  const ValueId flat = step.node("Reshape", {step.x(), batch}, "flat", {rows, 128});
  const ValueId fixed =
      step.node("ReduceSum", {step.node("Reshape", {small, pair}, "fixed", {2, 128})}, "fixed_sum", {});
  return step.finish(step.node("Mul", {flat, fixed}, "scaled", {rows, 128}));
}

TEST(TrainingOfRows, AnIntegerThatTwoNodesShareChangesOnlyWhereItIsTheBatch) {
  const TrainingGraph one = trainingOfRows({sharingAnInteger(2), 2}, {sharingAnInteger(3), 3}, 1);
  EXPECT_THAT(integerElements(constantOf(one, 0, 1)), ElementsAre(1, 128));
  EXPECT_THAT(integerElements(constantOf(one, 1, 1)), ElementsAre(2, 128));
}

// loss = sum(x) * rows/8: the share of a batch of 8.
TrainingGraph shared(int64_t rows) {
  StepBuilder step(rows);
  const ValueId sum = step.node("ReduceSum", {step.x()}, "sum", {});
  return step.finish(step.node("Mul", {sum, step.floats({}, {static_cast<float>(rows) / 8})}, "share", {}));
}

TEST(TrainingOfRows, TheShareOfTheBatchFollowsTheRows) {
  const TrainingGraph one = trainingOfRows({shared(4), 4}, {shared(5), 5}, 1);
  EXPECT_THAT(numericElements(constantOf(one, 1, 1)), ElementsAre(0.125));
}

// loss = sum(x) * number, as the gradient of a mean of `rows` numbers is multiplied by 1 / rows.
TrainingGraph multiplied(int64_t rows, float number) {
  StepBuilder step(rows);
  const ValueId sum = step.node("ReduceSum", {step.x()}, "sum", {});
  return step.finish(step.node("Mul", {sum, step.floats({}, {number})}, "product", {}));
}

TEST(TrainingOfRows, TheDivisorOfAMeanIsThatOfTheRows) {
  const auto mean = [](int64_t rows) { return multiplied(rows, 1 / static_cast<float>(rows * 4)); };
  for (const int64_t longer : {3, 4}) {
    const TrainingGraph one = trainingOfRows({mean(2), 2}, {mean(longer), longer}, 1);
    EXPECT_THAT(numericElements(constantOf(one, 1, 1)), ElementsAre(0.25)) << longer;
  }
}

TEST(TrainingOfRows, ANumberThatDiffersByRoundingStays) {
  const TrainingGraph one =
      trainingOfRows({multiplied(2, 0.33333333F), 2}, {multiplied(3, 0.3333334F), 3}, 1);
  EXPECT_EQ(constantOf(one, 1, 1), makeConstant({}, std::vector<float>{0.33333333F}));
}

TEST(TrainingOfRows, RefusesANumberThatFollowsTheRowsInAnotherWay) {
  expectRefusal(
      [&] {
        trainingOfRows({multiplied(2, 0.625F), 2}, {multiplied(3, 0.5F), 3}, 1);
      },
      "reads the number 0.5, not 0.625");
}

// A mask per example, with the batch on axis 1.
TrainingGraph masked(int64_t rows) {
  StepBuilder step(rows);
  std::vector<float> numbers;
  for (int outer = 0; outer < 2; ++outer)
    numbers.insert(numbers.end(), static_cast<size_t>(rows), outer == 0 ? 0.25F : 0.75F);
  const ValueId mask = step.floats({2, rows, 1}, numbers);
  return step.finish(step.node("ReduceSum", {mask, step.integers({0})}, "first", {1, rows, 1}));
}

TEST(TrainingOfRows, AGrowingConstantKeepsOneExampleOfEachBlock) {
  const TrainingGraph one = trainingOfRows({masked(2), 2}, {masked(3), 3}, 1);
  EXPECT_EQ(constantOf(one, 0, 0).shape, (Shape{2, 1, 1}));
  EXPECT_THAT(numericElements(constantOf(one, 0, 0)), ElementsAre(0.25, 0.75));
  EXPECT_THAT(integerElements(constantOf(one, 0, 1)), ElementsAre(0));
}

TEST(TrainingOfRows, RefusesAConstantThatIsNoSize) {
  const auto flagged = [](bool flag) {
    StepBuilder step(2);
    TrainingGraph training = step.finish(step.node("Relu", {step.x()}, "h", {2, 16, 8}));
    GraphBuilder builder(training.graph);
    training.graph.nodes[0].inputs.push_back(
        builder.addConstant("flag", Constant{DataType::kBool, {}, {std::byte{flag}}}));
    return training;
  };
  expectRefusal(
      [&] {
        trainingOfRows({flagged(false), 2}, {flagged(true), 3}, 1);
      },
      "reads another constant");
}

TEST(MatchValues, PutsValuesInTheirPlacesWhateverTheirNumbers) {
  const TrainingGraph base = sharingAnInteger(2);
  const TrainingGraph other = sharingAnInteger(3);  // has one constant more
  const std::vector<ValueId> match = matchValues({base, 2}, {other, 3});
  ASSERT_EQ(match.size(), base.graph.values.size());
  for (const char* name : {"x", "flat", "fixed", "scaled", "loss"}) {
    const ValueId matched = match[findValue(base.graph, name).index()];
    ASSERT_TRUE(matched.valid()) << name;
    EXPECT_EQ(other.graph.value(matched).name, name);
  }
}

TEST(MatchValues, RefusesOtherNodes) {
  const TrainingGraph base = reshaped(2);
  const auto refuse = [&](const std::function<void(TrainingGraph&)>& change, const std::string& message) {
    TrainingGraph other = reshaped(3);
    change(other);
    expectRefusal([&] { matchValues({base, 2}, {other, 3}); }, message);
  };
  const std::string start = "the model for 3 examples has another form than for 2: ";
  refuse([](TrainingGraph& t) { t.graph.nodes.pop_back(); }, start + "1 nodes, not 2");
  refuse([](TrainingGraph& t) { t.graph.nodes[0].op_type = "Flatten"; },
         start + "node '' (onnx::Flatten) in the place of");
  refuse([](TrainingGraph& t) { t.graph.nodes[0].domain = "other"; }, "in the place of");
  refuse([](TrainingGraph& t) { t.graph.nodes[1].inputs.emplace_back(); }, "in the place of");
  refuse([](TrainingGraph& t) { t.graph.nodes[1].outputs.emplace_back(); }, "in the place of");
  refuse([](TrainingGraph& t) { t.node_phase[0] = Phase::kPrologue; }, "in the place of");
  refuse([](TrainingGraph& t) { t.forward_node[0] = NodeId(0); }, "in the place of");
  refuse([](TrainingGraph& t) { t.graph.nodes[1].inputs[0] = t.inputs[0].value; }, "reads other values");
}

TEST(TrainingFamily, AsksTheMakerOncePerSizeAndNeverForOneRow) {
  std::vector<int64_t> asked;
  const TrainingFamily family(5, 2, [&](int64_t rows) {
    asked.push_back(rows);
    return reshaped(rows);
  });
  EXPECT_EQ(family.largestMicrobatch(), 3);
  EXPECT_EQ(family.microbatch(0), (Rows{0, 2}));
  EXPECT_EQ(family.microbatch(1), (Rows{2, 3}));
  EXPECT_EQ(family.base().graph.shape(family.base().inputs[0].value), (Shape{3, 16, 8}));
  EXPECT_EQ(family.at(1).graph.shape(family.at(1).inputs[0].value), (Shape{1, 16, 8}));
  EXPECT_EQ(family.at(2).graph.shape(family.at(2).inputs[0].value), (Shape{2, 16, 8}));
  EXPECT_EQ(&family.at(2), &family.at(2));
  std::sort(asked.begin(), asked.end());
  EXPECT_THAT(asked, ElementsAre(2, 3, 4));
}

// The share of the whole batch is 1: nothing is multiplied by it.
TEST(TrainingFamily, LearnsWhatOneRowIsFromAnotherSizeThanTheBatch) {
  std::vector<int64_t> asked;
  const TrainingFamily family(3, 2, [&](int64_t rows) {
    asked.push_back(rows);
    return reshaped(rows);
  });
  EXPECT_EQ(family.at(1).graph.shape(family.at(1).inputs[0].value), (Shape{1, 16, 8}));
  EXPECT_THAT(asked, ::testing::UnorderedElementsAre(2, 4));
}

TEST(TrainingFamily, FindsTheCounterpartOfAValue) {
  const TrainingFamily family(4, 1, sharingAnInteger);
  for (int64_t rows : {1, 2, 3, 4}) {
    for (const char* name : {"x", "flat", "fixed", "loss"}) {
      const ValueId counterpart = family.valueAt(rows, findValue(family.base().graph, name));
      EXPECT_EQ(family.at(rows).graph.value(counterpart).name, name) << rows;
    }
  }
  EXPECT_FALSE(family.valueAt(2, ValueId()).valid());
}

TEST(TrainingFamily, MicrobatchesOfOneRowAreWhatTheMakerMakes) {
  std::vector<int64_t> asked;
  const TrainingFamily family(3, 3, [&](int64_t rows) {
    asked.push_back(rows);
    return reshaped(rows);
  });
  EXPECT_EQ(&family.base(), &family.at(1));
  EXPECT_THAT(asked, ElementsAre(1));
}

TEST(TrainingFamily, OfOneGraphHasOneRowPerMicrobatch) {
  TrainingGraph only = reshaped(2);
  only.microbatches = 3;
  const TrainingFamily family(only);
  EXPECT_EQ(family.batch(), 3);
  EXPECT_EQ(family.microbatch(2), (Rows{2, 1}));
  EXPECT_EQ(family.base().graph.shape(family.base().inputs[0].value), (Shape{2, 16, 8}));
}

TEST(TrainingFamily, RefusesAModelOfAnotherFormAtAnotherSize) {
  const TrainingFamily family(5, 2, [](int64_t rows) {
    if (rows == 3) return reshaped(rows);
    StepBuilder step(rows);
    return step.finish(step.node("Flatten", {step.x()}, "flat", {rows * 16, 8}));
  });
  expectRefusal([&] { family.at(2); }, "the model for 2 examples has another form than for 3");
}

}  // namespace
}  // namespace pipeshard
