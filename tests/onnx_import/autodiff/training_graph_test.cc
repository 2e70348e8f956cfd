// The structure of training graphs: phases, names, parts, prologue, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/training.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

TrainingGraph build(TestGraph& test, ValueId loss, const OptimizerSpec& optimizer = {},
                    const std::vector<ParameterGroup>& groups = {}) {
  ForwardGraph forward;
  forward.graph = test.graph();
  forward.loss = loss;
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  return buildTrainingGraph(std::move(forward), optimizer, groups);
}

ValueId sumOf(TestGraph& test, ValueId value) {
  return test.op("ReduceSum", {value}, {{"keepdims", int64_t{0}}});
}

// Phase of the node that makes a value.
Phase phaseOf(const TrainingGraph& training, const std::string& value) {
  const ValueId id = findValue(training.graph, value);
  EXPECT_TRUE(id.valid()) << value;
  const NodeId producer = computeUseDef(training.graph).producer.at(id.index());
  EXPECT_TRUE(producer.valid()) << value;
  return training.node_phase.at(producer.index());
}

struct Mlp {
  TestGraph test;
  ValueId loss;
  Mlp() {
    const ValueId x = test.input("x", randomTensor({4, 3}, 1));
    const ValueId hidden =
        test.op("Relu", {test.op("Gemm", {x, test.parameter("w1", {3, 5}), test.parameter("b1", {5})})});
    const ValueId y = test.op(
        "Add", {test.op("MatMul", {hidden, test.parameter("w2", {5, 2})}), test.parameter("b2", {2})});
    loss = sumOf(test, test.op("Mul", {y, y}));
  }
};

TEST(TrainingGraph, ComputesParameterGradientsInTheWeightPhaseAndActivationGradientsInTheInputPhase) {
  Mlp mlp;
  const TrainingGraph training = build(mlp.test, mlp.loss);
  for (const char* weight : {"w1_grad", "b1_grad", "w2_grad", "b2_grad"})
    EXPECT_EQ(phaseOf(training, weight), Phase::kBackwardWeight) << weight;
  for (const char* activation : {"Relu_grad", "Gemm_grad"})
    EXPECT_EQ(phaseOf(training, activation), Phase::kBackwardInput) << activation;
  EXPECT_EQ(phaseOf(training, "w1.updated"), Phase::kUpdate);
}

// Else a stage keeps the same numbers twice until the weight phase, and copies them.
TEST(TrainingGraph, GivesNoGradientToTheWeightPhaseAlsoAsAView) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({2, 4, 3}, 1));
  const ValueId hidden = test.op("Tanh", {test.op("Mul", {x, test.parameter("scale", {3})})});
  const ValueId y =
      test.op("Add", {test.op("MatMul", {hidden, test.parameter("w", {3, 5})}), test.parameter("b", {5})});
  const TrainingGraph training = build(test, sumOf(test, test.op("Mul", {y, y})));
  const std::vector<NodeId> producer = computeUseDef(training.graph).producer;
  const auto isMadeIn = [&](ValueId id, Phase phase) {
    return producer[id.index()].valid() && training.node_phase[producer[id.index()].index()] == phase;
  };
  std::set<ValueId> crossing, roots;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.node_phase[n] != Phase::kBackwardWeight) continue;
    for (const ValueId id : training.graph.nodes[n].inputs) {
      if (!id.valid() || !isMadeIn(id, Phase::kBackwardInput) || !crossing.insert(id).second) continue;
      ValueId root = id;
      while (producer[root.index()].valid() && isView(training.graph.node(producer[root.index()])))
        root = training.graph.node(producer[root.index()]).inputs[0];
      EXPECT_TRUE(roots.insert(root).second) << training.graph.value(id).name;
    }
  }
  EXPECT_FALSE(crossing.empty());
}

TEST(TrainingGraph, DoesNotDifferentiateTheBatchInput) {
  Mlp mlp;
  EXPECT_FALSE(findValue(build(mlp.test, mlp.loss).graph, "x_grad").valid());
}

TEST(TrainingGraph, NamesBackwardNodesAfterTheForwardNodeAndKeepsItsMetadata) {
  Mlp mlp;
  mlp.test.graph().nodes[0].name = "layer";
  mlp.test.graph().nodes[0].metadata = {{"namespace", "blocks.0"}};
  const TrainingGraph training = build(mlp.test, mlp.loss);
  int found = 0;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const Node& node = training.graph.nodes[n];
    if (!training.forward_node[n].valid() || training.graph.node(training.forward_node[n]).name != "layer")
      continue;
    ++found;
    EXPECT_TRUE(node.name.starts_with("layer_grad/")) << node.name;
    EXPECT_EQ(node.metadata, (Metadata{{"namespace", "blocks.0"}}));
  }
  EXPECT_EQ(found, 2) << "dW and the bias";
}

TEST(TrainingGraph, KeepsTheContributionsToAParameterApart) {
  TestGraph test;
  const ValueId table = test.parameter("table", {4, 3});
  const ValueId indices = test.input("indices", makeConstant<int64_t>({2}, {1, 3}));
  const ValueId embedded = test.op("Gather", {table, indices});
  const ValueId scores = test.op("MatMul", {embedded, test.op("Transpose", {table})});
  const ValueId loss = sumOf(test, test.op("Tanh", {scores}));
  const TrainingGraph training = build(test, loss);
  ASSERT_EQ(training.parameters.size(), 1u);
  ASSERT_EQ(training.parameters[0].gradient_parts.size(), 2u);
  for (ValueId part : training.parameters[0].gradient_parts) {
    EXPECT_EQ(phaseOf(training, training.graph.value(part).name), Phase::kBackwardWeight);
  }
  EXPECT_TRUE(findValue(training.graph, "table_grad.0").valid());
  checkLossGradients(test, loss);
}

TEST(TrainingGraph, SumsTheContributionsToAnActivationInOneNodeOfItsFirstReader) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({2, 3}, 1));
  const ValueId h = test.op("Mul", {x, test.parameter("w", {3})});
  const ValueId loss =
      sumOf(test, test.op("Sum", {test.op("Tanh", {h}), test.op("Exp", {h}), test.op("Sin", {h})}));
  const TrainingGraph training = build(test, loss);
  int sums = 0;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (!training.graph.nodes[n].is("Sum") || !training.forward_node[n].valid()) continue;
    ++sums;
    EXPECT_EQ(training.graph.nodes[n].inputs.size(), 3u);
    EXPECT_EQ(training.graph.value(training.graph.nodes[n].outputs[0]).name, "Mul_grad");
    EXPECT_EQ(training.graph.node(training.forward_node[n]).op_type, "Tanh");
  }
  EXPECT_EQ(sums, 1);
  checkLossGradients(test, loss);
}

TEST(TrainingGraph, GivesAPartOfItsOwnToEveryUseOfAParameter) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({2, 3}, 1));
  const ValueId a = test.parameter("a", {2, 3});
  const ValueId b = test.parameter("b", {2, 3});
  const ValueId sum = test.op("Add", {test.op("Add", {test.op("Add", {x, a}), b}), a});
  const ValueId loss = sumOf(test, test.op("Tanh", {sum}));
  const TrainingGraph training = build(test, loss);
  std::vector<ValueId> parts;
  for (const Parameter& parameter : training.parameters) {
    parts.insert(parts.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  }
  EXPECT_EQ(parts.size(), 3u);
  EXPECT_EQ(std::set<ValueId>(parts.begin(), parts.end()).size(), 3u);
  for (ValueId part : parts)
    EXPECT_EQ(phaseOf(training, training.graph.value(part).name), Phase::kBackwardWeight);
  checkLossGradients(test, loss);
}

// Its value is an initializer in memory, but no constant: the next step has another.
TEST(TrainingGraph, ReadsAWeightOfOneElementWhereAGradientNeedsIt) {
  TestGraph test;
  const ValueId h = test.op("Mul", {test.input("x", randomTensor({4, 3}, 1)), test.parameter("w1", {1})});
  const ValueId factor = test.parameter("w2", {1});
  test.graph().initializers[factor] = makeConstant<double>({1}, {0.8});
  const TrainingGraph training = build(test, sumOf(test, test.op("Mul", {h, factor})));
  const UseDef uses = computeUseDef(training.graph);
  bool reads = false;
  for (NodeId reader : uses.consumers.at(findValue(training.graph, "w2").index())) {
    const Phase phase = training.node_phase.at(reader.index());
    reads = reads || phase == Phase::kBackwardInput || phase == Phase::kBackwardWeight;
  }
  EXPECT_TRUE(reads);
}

TEST(TrainingGraph, LeavesAParameterWithoutGradientAlone) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3});
  const ValueId steps = test.op("Floor", {test.parameter("unreached", {3})});
  const TrainingGraph training = build(test, sumOf(test, test.op("Mul", {x, steps})));
  ASSERT_EQ(training.parameters.size(), 2u);
  EXPECT_EQ(training.parameters[0].gradient_parts.size(), 1u);
  EXPECT_TRUE(training.parameters[1].gradient_parts.empty());
  EXPECT_FALSE(findValue(training.graph, "unreached.gradient").valid());
}

TEST(TrainingGraph, PutsWhatTotalsNeedFirst) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({2, 3}, 1));
  const ValueId kept = test.op("Abs", {x});
  const ValueId part = sumOf(test, test.op("Neg", {x}));
  const ValueId total = test.builder().addValue("total", DataType::kFloat64, {});
  test.graph().inputs.push_back(total);
  const ValueId loss = test.op("Div", {sumOf(test, test.op("Mul", {kept, test.parameter("w", {3})})), total});
  ForwardGraph forward{test.graph(), loss, {{x, 0}}, {{part, total}}, 2};
  const TrainingGraph training = buildTrainingGraph(std::move(forward), {});
  EXPECT_EQ(phaseOf(training, "Abs"), Phase::kForward);
  EXPECT_EQ(phaseOf(training, "Neg"), Phase::kPrologue);
  EXPECT_TRUE(training.graph.nodes.front().is("Neg"));
  EXPECT_EQ(phaseOf(training, training.graph.value(training.totals.at(0).part).name), Phase::kPrologue);
  EXPECT_EQ(training.graph.value(training.totals.at(0).total).name, "total");
}

TEST(TrainingGraph, DropsForwardNodesThatTheLossDoesNotNeed) {
  Mlp mlp;
  mlp.test.graph().outputs = {mlp.test.op("Exp", {mlp.loss}), mlp.loss};
  EXPECT_FALSE(findValue(build(mlp.test, mlp.loss).graph, "Exp").valid());
}

TEST(TrainingGraph, HasTheRolesOfEveryOptimizer) {
  const auto built = [](std::string_view text) {
    Mlp mlp;
    return build(mlp.test, mlp.loss, parseOptimizer(text));
  };
  const TrainingGraph sgd = built("sgd:lr=0.1");
  EXPECT_TRUE(sgd.parameters[0].states.empty());
  EXPECT_FALSE(sgd.step.valid());
  const TrainingGraph momentum = built("sgd:lr=0.1,momentum=0.9");
  EXPECT_EQ(momentum.parameters[0].states.at(0).name, "momentum");
  EXPECT_TRUE(findValue(momentum.graph, "w1.momentum.updated").valid());
  const TrainingGraph adam = built("adamw");
  EXPECT_EQ(adam.parameters[0].states.size(), 2u);
  EXPECT_TRUE(findValue(adam.graph, "w1.first_moment.updated").valid());
  ASSERT_TRUE(adam.step.valid());
  EXPECT_EQ(adam.graph.dataType(adam.step), DataType::kInt64);
}

TEST(TrainingGraph, CountsStepsWhereTheLearningRateChanges) {
  Mlp mlp;
  const TrainingGraph training =
      build(mlp.test, mlp.loss, parseOptimizer("sgd:lr=0.1,schedule=linear,warmup=3,steps=10"));
  ASSERT_TRUE(training.step.valid());
  const Node& update = training.graph.nodes.back();
  EXPECT_EQ(update.op_type, "SGD");
  EXPECT_EQ(update.overload, "linear");
  EXPECT_EQ(update.stringAttribute("schedule", ""), "linear");
  ASSERT_EQ(update.inputs.size(),
            9u);  // Param, Grad, Step, LearningRate, WeightDecay and four of the schedule
  EXPECT_EQ(update.inputs[2], training.step);
  EXPECT_EQ(numericElements(*training.graph.constant(update.inputs[5])), std::vector<double>{3});
}

TEST(TrainingGraph, GivesGroupsTheirNumbersAndTheLastOnesWin) {
  Mlp mlp;
  const TrainingGraph training =
      build(mlp.test, mlp.loss, parseOptimizer("sgd:lr=0.5,weight_decay=0.125"),
            {parseParameterGroup("^b:weight_decay=0"), parseParameterGroup("2:lr_scale=0.5"),
             parseParameterGroup("b2:weight_decay=2"), parseParameterGroup("w2:lr_scale=0.25")});
  std::map<std::string, std::pair<double, double>> numbers;  // learning rate, decay
  for (const Node& node : training.graph.nodes) {
    if (node.op_type != "SGD") continue;
    const auto number = [&](size_t i) {
      return numericElements(*training.graph.constant(node.inputs.at(i))).at(0);
    };
    numbers[training.graph.value(node.inputs[0]).name] = {number(2), number(3)};
  }
  EXPECT_EQ(numbers, (std::map<std::string, std::pair<double, double>>{
                         {"w1", {0.5, 0.125}}, {"b1", {0.5, 0}}, {"w2", {0.125, 0.125}}, {"b2", {0.25, 2}}}));
}

TEST(TrainingGraph, GivesGroupsTheRateOfAdamWUnderMuon) {
  Mlp mlp;
  const TrainingGraph training = build(
      mlp.test, mlp.loss, parseOptimizer("muon:lr=0.5,adamw_lr=0.25,schedule=linear,steps=10,final=0.125"),
      {parseParameterGroup("^b1:lr_scale=0.5"), parseParameterGroup("^b2:lr=0.75"),
       parseParameterGroup("^w2:muon=0,lr_scale=0.125")});
  std::map<std::string, std::pair<double, double>> rates;  // the highest, the last
  for (const Node& node : training.graph.nodes) {
    if (node.op_type != "AdamW") continue;
    // Param, Grad, two states, Step, five hyperparameters, Warmup, StartFactor, Steps, FinalRate
    ASSERT_EQ(node.inputs.size(), 14U);
    const auto number = [&](size_t i) {
      return numericElements(*training.graph.constant(node.inputs.at(i))).at(0);
    };
    rates[training.graph.value(node.inputs[0]).name] = {number(5), number(13)};
  }
  EXPECT_EQ(rates, (std::map<std::string, std::pair<double, double>>{
                       {"b1", {0.125, 0.03125}}, {"b2", {0.75, 0.1875}}, {"w2", {0.03125, 0.0078125}}}));
}

TEST(TrainingGraph, GivesGroupsThatGoByAnotherNameTheirNumbers) {
  Mlp mlp;
  ForwardGraph forward;
  forward.graph = mlp.test.graph();
  forward.loss = mlp.loss;
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  addOtherName(forward.graph.value(findValue(forward.graph, "w1")), "words.weight");
  const TrainingGraph training = buildTrainingGraph(std::move(forward), parseOptimizer("sgd:lr=0.5"),
                                                    {parseParameterGroup("^words:lr_scale=0.5")});
  std::map<std::string, double> rates;
  for (const Node& node : training.graph.nodes) {
    if (node.op_type != "SGD") continue;
    rates[training.graph.value(node.inputs[0]).name] =
        numericElements(*training.graph.constant(node.inputs.at(2))).at(0);
  }
  EXPECT_EQ(rates, (std::map<std::string, double>{{"w1", 0.25}, {"b1", 0.5}, {"w2", 0.5}, {"b2", 0.5}}));
}

TEST(TrainingGraph, NamesTheOperatorWithoutGradientRule) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3});
  const ValueId loss = sumOf(test, test.op("ReduceL1", {x}));
  try {
    build(test, loss);
    FAIL() << "ReduceL1 has no rule";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr("onnx::ReduceL1"));
    EXPECT_THAT(error.what(), HasSubstr("no gradient rule"));
  }
}

TEST(TrainingGraph, RefusesTensorsWithoutElements) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 0}, {0, 3}}) {
    TestGraph test;
    const ValueId x = test.input("x", randomTensor({4, rows}, 1));
    const ValueId y = test.op("MatMul", {x, test.parameter("w", {rows, columns})});
    try {
      build(test, sumOf(test, y));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadModel);
      EXPECT_THAT(error.what(), HasSubstr("the parameter 'w' "));
      EXPECT_THAT(error.what(), HasSubstr("has no elements"));
    }
  }
}

TEST(TrainingGraph, RefusesABiasOfTwoAxes) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({1, 2, 4, 4}, 1));
  const ValueId y = test.op("Conv", {x, test.parameter("w", {3, 2, 1, 1}), test.parameter("b", {3, 1})});
  try {
    build(test, sumOf(test, y));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr("its bias has shape [3,1]; it must be [3]"));
  }
}

TEST(TrainingGraph, AllowsAnOperatorWithoutGradientRuleBesideThePath) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({3}, 1));
  const ValueId norm = test.op("ReduceL1", {x});
  EXPECT_NO_THROW(build(test, sumOf(test, test.op("Mul", {norm, test.parameter("w", {3})}))));
}

TEST(TrainingGraph, RefusesALossThatDependsOnNoParameter) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({3}, 1));
  test.parameter("w", {3});
  try {
    build(test, sumOf(test, x));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("depends on no parameter"));
  }
}

TEST(TrainingGraph, RefusesRandomDropout) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3});
  const ValueId ratio = test.constant(makeTensor({}, {0.5}));
  const ValueId training_mode = test.constant(makeScalar(DataType::kBool, 1));
  const ValueId loss = sumOf(test, test.op("Dropout", {x, ratio, training_mode}));
  EXPECT_THROW(build(test, loss), Error);
}

TEST(TrainingGraph, RefusesParametersOfOtherTypes) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2});
  const ValueId loss = sumOf(test, test.op("Exp", {x}));
  for (Value& value : test.graph().values) value.data_type = DataType::kFloat16;
  try {
    build(test, loss);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("float16"));
  }
}

// A product gives float32, whatever the weight is cast from: only halves are summed in more.
TEST(TrainingGraph, GradientsOfAWeightInFloat64AreOfTheTypeThatIsRead) {
  TestGraph test;
  const ValueId x = test.input("x", randomTensor({4, 3}, 1)), w = test.parameter("w", {3, 5});
  const ValueId narrow = test.op("Cast", {w}, {{"to", int64_t{1}}});
  const ValueId y = test.op("MatMul", {test.op("Cast", {x}, {{"to", int64_t{1}}}), narrow});
  const TrainingGraph training = build(test, sumOf(test, test.op("Mul", {y, y})));
  for (const Node& node : training.graph.nodes) {
    if (!node.is("MatMul") && !node.is("Gemm")) continue;
    EXPECT_EQ(training.graph.dataType(node.outputs[0]), DataType::kFloat32) << node.name;
  }
}

TEST(Parameters, AreNoSparseTensors) {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId sparse = builder.addValue("net.3.weight", DataType::kFloat32, {2, 2});
  builder.addNode("", "Constant", {}, {sparse}, {{"sparse_value", OpaqueAttribute{}}});
  try {
    refuseQuantizedOrSparse(graph, {"."});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.what(), HasSubstr("sparse_value): net.3.weight: they cannot be trained"));
  }
}

TEST(Parameters, AreNoneOfAFileThatOnnxRuntimeHasQuantized) {
  for (const std::string op_type : {"QLinearAdd", "QGemm", "MatMulNBits"}) {
    Graph graph;
    GraphBuilder builder(graph);
    const ValueId x = builder.addValue("x", DataType::kUint8, {2});
    builder.addNode("com.microsoft", op_type, {x}, {builder.addValue("y", DataType::kUint8, {2})});
    try {
      refuseQuantizedOrSparse(graph, {});
      FAIL() << op_type;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadModel);
      EXPECT_THAT(error.what(), HasSubstr("the file is quantised (" + op_type + ")"));
    }
    EXPECT_NO_THROW(refuseQuantizedOrSparse(graph, {"."})) << op_type;
  }
}

TEST(TrainingGraph, RefusesAnOpsetThatIsTooOld) {
  Mlp mlp;
  mlp.test.graph().opset_imports[""] = 13;
  EXPECT_THROW(build(mlp.test, mlp.loss), Error);
}

}  // namespace
}  // namespace pipeshard::testing
