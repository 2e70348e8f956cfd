// What --loss and --optimizer say, which weights are trained, and the change of precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"
#include "ir/graph/weight_role.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"
#include "onnx_import/loss/loss.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename F>
std::string usageError(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(LossOption, ParsesItsForms) {
  EXPECT_TRUE(parseLoss("").isModelOutput());
  EXPECT_EQ(parseLoss("loss:0").terms[0].prediction, "loss:0");
  const LossTerm cross_entropy = parseLoss("cross-entropy:logits,labels").terms[0];
  EXPECT_EQ(cross_entropy.kind, LossTerm::Kind::kCrossEntropy);
  EXPECT_EQ(cross_entropy.prediction, "logits");
  EXPECT_EQ(cross_entropy.target, "labels");
  for (const char* text : {"mse:y,target", "loss:0", "bce-with-logits:y,t", "cross-entropy:y,t,smoothing=0.1",
                           "cross-entropy:y,t,smoothing=0.1,axis=1", "nll:y,t,axis=-1",
                           "cross-entropy:y,labels+0.4*cross-entropy:aux,labels",
                           "main_loss+0.01*router_loss", "mse", "0.5*mse+l1"}) {
    EXPECT_EQ(lossToString(parseLoss(text)), text);
  }
  EXPECT_TRUE(parseLoss("none").isNone());
  EXPECT_EQ(lossToString(parseLoss("none")), "none");
  const LossSpec sum = parseLoss("a+0.5*mse:y,t");
  ASSERT_EQ(sum.terms.size(), 2u);
  EXPECT_EQ(sum.terms[1].weight, 0.5);
  EXPECT_FALSE(sum.isModelOutput());
}

TEST(LossOption, ShowsTheFormsForEverythingElse) {
  for (const char* text : {"cross-entropy:logits", "mse:", "mse:a,b,c", "hinge:a,b", "mse:,b", "a+", "x*a",
                           "mse:a,b,smoothing=0.1", "cross-entropy:a,b,smoothing=2",
                           "cross-entropy:a,b,axis=x", "mse:a,b,axis=1", "cross-entropy:a,b,axis=1,axis=2"}) {
    EXPECT_THAT(usageError([&] { parseLoss(text); }), HasSubstr("cross-entropy:LOGITS,LABELS")) << text;
  }
}

TEST(OptimizerOption, ParsesKeysAndPrintsACanonicalForm) {
  const OptimizerSpec spec = parseOptimizer("adamw:lr=3e-4,beta2=0.95");
  EXPECT_EQ(spec.kind, OptimizerSpec::Kind::kAdamW);
  EXPECT_EQ(spec.learning_rate, 3e-4);
  EXPECT_EQ(spec.beta1, 0.9);
  EXPECT_EQ(spec.beta2, 0.95);
  EXPECT_EQ(spec.weight_decay, 0.01);
  for (const char* text : {"sgd", "sgd:momentum=0.9,nesterov=1", "adam:eps=1e-6", "adamw"}) {
    const std::string canonical = optimizerToString(parseOptimizer(text));
    EXPECT_EQ(optimizerToString(parseOptimizer(canonical)), canonical);
  }
}

TEST(OptimizerOption, NamesTheWrongKeyAndTheAllowedOnes) {
  const std::string message = usageError([] { parseOptimizer("sgd:beta1=0.9"); });
  EXPECT_THAT(message, HasSubstr("beta1"));
  EXPECT_THAT(message, HasSubstr("lr, momentum, weight_decay, nesterov"));
  EXPECT_THAT(usageError([] { parseOptimizer("sgd:lr=0.1,lr=0.2"); }), HasSubstr("'lr' is given twice"));
  for (const char* text : {"adan", "sgd:lr", "sgd:lr=x", "adam:beta1=1", "sgd:lr=-1", "sgd:nesterov=1",
                           "sgd:momentum=0.9,nesterov=2"}) {
    usageError([&] { parseOptimizer(text); });
  }
}

// A graph as read: symbolic batch, float outputs of the given shapes.
struct Model {
  Graph graph;
  GraphBuilder builder{graph};

  Model() { graph.opset_imports[""] = 18; }
  ValueId output(const std::string& name, Shape shape, DataType type = DataType::kFloat32) {
    const ValueId id = builder.addValue(name, type, shape);
    graph.value(id).symbols.resize(shape.size());
    if (!shape.empty() && shape[0] == kUnknownSize) graph.value(id).symbols[0] = "batch";
    graph.outputs.push_back(id);
    builder.addNode("", "Identity", {input("input_of_" + name, shape, type)}, {id});
    return id;
  }
  ValueId input(const std::string& name, Shape shape, DataType type) {
    const ValueId id = builder.addValue(name, type, std::move(shape));
    graph.inputs.push_back(id);
    return id;
  }
};

TEST(Loss, IsTheOnlyScalarOutput) {
  Model model;
  model.output("logits", {kUnknownSize, 10});
  const ValueId loss = model.output("loss", {});
  EXPECT_EQ(attachLoss(model.graph, {}), loss);
}

TEST(Loss, AnOutputMayHaveTheNameOfAKind) {
  Model model;
  const ValueId mse = model.output("mse", {});
  model.output("l1", {});
  EXPECT_EQ(attachLoss(model.graph, parseLoss("mse")), mse);
  EXPECT_THAT(usageError([&] { attachLoss(model.graph, parseLoss("nll")); }),
              AllOf(HasSubstr("no output 'nll' (the kind is --loss nll:PREDICTION,TARGET)"),
                    HasSubstr("--loss mse\n  --loss l1")));
}

TEST(Loss, ListsPasteableOptionsWhenItIsAmbiguous) {
  Model model;
  model.output("logits", {kUnknownSize, 10});
  const std::string none = usageError([&] { attachLoss(model.graph, {}); });
  EXPECT_THAT(none, HasSubstr("--loss cross-entropy:logits,labels"));
  EXPECT_THAT(none, HasSubstr("--loss mse:logits,target"));
  model.output("a", {});
  model.output("b", {});
  const std::string several = usageError([&] { attachLoss(model.graph, {}); });
  EXPECT_THAT(several, HasSubstr("--loss a\n"));
  EXPECT_THAT(several, HasSubstr("--loss b"));
  EXPECT_THAT(usageError([&] { attachLoss(model.graph, parseLoss("c")); }), HasSubstr("no output 'c'"));
}

TEST(Loss, CannotBeMadeOfAModelWithoutFloatingPointOutputs) {
  Model model;
  model.output("ids", {kUnknownSize, 10}, DataType::kInt64);
  try {
    attachLoss(model.graph, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_THAT(error.message(), HasSubstr("outputs: ids (int64)"));
  }
}

TEST(Loss, OfCrossEntropyMakesLabelsWithTheLogitsSymbols) {
  Model model;
  model.output("logits", {kUnknownSize, 10});
  const ValueId loss = attachLoss(model.graph, parseLoss("cross-entropy:logits,labels"));
  verifyGraph(model.graph);
  const Value& labels = model.graph.value(findValue(model.graph, "labels"));
  EXPECT_EQ(labels.data_type, DataType::kInt64);
  EXPECT_EQ(*labels.shape, Shape{kUnknownSize});
  EXPECT_EQ(labels.symbols, std::vector<std::string>{"batch"});
  EXPECT_EQ(model.graph.nodes.back().op_type, "SoftmaxCrossEntropyLoss");
  EXPECT_EQ(model.graph.nodes.back().intAttribute("ignore_index", 0), -100);
  EXPECT_EQ(model.graph.outputs.back(), loss);
}

TEST(Loss, OfCrossEntropyFlattensWhenTheClassAxisIsLast) {
  Model model;
  model.output("logits", {kUnknownSize, 16, 256});
  attachLoss(model.graph, parseLoss("cross-entropy:logits,labels"));
  verifyGraph(model.graph);
  const Node& loss = model.graph.nodes.back();
  EXPECT_EQ(*model.graph.value(loss.inputs[0]).shape, (Shape{-1, 256}));
  EXPECT_EQ(*model.graph.value(findValue(model.graph, "labels")).shape, (Shape{kUnknownSize, 16}));
}

TEST(Loss, OfCrossEntropyTransposesWhenTheNumberOfClassesIsUnknown) {
  Model model;
  model.output("logits", {kUnknownSize, 16, kUnknownSize});
  attachLoss(model.graph, parseLoss("cross-entropy:logits,labels"));
  EXPECT_EQ(model.graph.nodes[model.graph.nodes.size() - 2].intsAttribute("perm"),
            (std::vector<int64_t>{0, 2, 1}));
}

TEST(Loss, OfCrossEntropyTakesLabelsThatPutTheClassesSecond) {
  Model model;
  model.output("scores", {kUnknownSize, 10, 7});
  model.input("labels", {kUnknownSize, 7}, DataType::kInt64);
  attachLoss(model.graph, parseLoss("cross-entropy:scores,labels"));
  EXPECT_EQ(model.graph.nodes.back().inputs[0], findValue(model.graph, "scores"));
}

// The shape of the labels that the loss makes, and what it says of them.
std::pair<Shape, std::vector<std::string>> labelsMadeFor(Shape scores, const std::string& option = "") {
  Model model;
  model.output("scores", std::move(scores));
  std::vector<std::string> notes;
  attachLoss(model.graph, parseLoss("cross-entropy:scores,labels" + option), &notes);
  verifyGraph(model.graph);
  return {*model.graph.value(findValue(model.graph, "labels")).shape, notes};
}

TEST(Loss, OfCrossEntropyHasTheClassesOfImagesSecondAndOfTokensLast) {
  const auto [rows, said_of_rows] = labelsMadeFor({kUnknownSize, 10});
  EXPECT_EQ(rows, Shape{kUnknownSize});
  EXPECT_THAT(said_of_rows, IsEmpty());
  const auto [tokens, said_of_tokens] = labelsMadeFor({kUnknownSize, 16, 10});
  EXPECT_EQ(tokens, (Shape{kUnknownSize, 16}));
  EXPECT_THAT(
      said_of_tokens,
      ElementsAre("--loss cross-entropy:scores,labels: the classes are taken to be axis 2 of 'scores' "
                  "[batch,16,10], so that 'labels' is [batch,16]; with axis=1 they are axis 1, and "
                  "it is [batch,10]"));
  const auto [images, said_of_images] = labelsMadeFor({kUnknownSize, 8, 8, 8});
  EXPECT_EQ(images, (Shape{kUnknownSize, 8, 8}));
  EXPECT_THAT(said_of_images, ElementsAre(HasSubstr("to be axis 1 of 'scores' [batch,8,8,8]")));
}

TEST(Loss, OfCrossEntropyTakesTheAxisOfTheClasses) {
  for (const char* option : {",axis=1", ",axis=-2,smoothing=0.1"}) {
    const auto [labels, notes] = labelsMadeFor({kUnknownSize, 16, 10}, option);
    EXPECT_EQ(labels, (Shape{kUnknownSize, 10})) << option;
    EXPECT_THAT(notes, IsEmpty());
  }
  EXPECT_EQ(labelsMadeFor({kUnknownSize, 5, 8, 16}, ",axis=3").first, (Shape{kUnknownSize, 5, 8}));
  Model model;
  model.output("scores", {kUnknownSize, 7, 7});
  model.input("labels", {kUnknownSize, 7}, DataType::kInt64);
  attachLoss(model.graph, parseLoss("cross-entropy:scores,labels,axis=1"));
  EXPECT_EQ(model.graph.nodes.back().inputs[0], findValue(model.graph, "scores"));
  EXPECT_THAT(usageError([&] {
                labelsMadeFor({kUnknownSize, 16, 10}, ",axis=3");
              }),
              HasSubstr("'scores' [batch,16,10] has no axis 3; its axes are 0 to 2"));
}

// Of square images all axes would fit.
TEST(Loss, OfSeveralCrossEntropiesReadsLabelsAlike) {
  Model model;
  model.output("y", {kUnknownSize, 8, 8, 8});
  model.output("aux", {kUnknownSize, 8, 8, 8});
  attachLoss(model.graph, parseLoss("cross-entropy:y,labels+0.4*cross-entropy:aux,labels"));
  for (const Node& node : model.graph.nodes) EXPECT_FALSE(node.is("Reshape") || node.is("Transpose"));
}

TEST(Loss, OfCrossEntropyRefusesLabelsThatDoNotFit) {
  Model model;
  model.output("scores", {kUnknownSize, 10, 7});
  model.input("labels", {kUnknownSize, 8}, DataType::kInt64);
  model.input("floats", {kUnknownSize, 10}, DataType::kFloat32);
  EXPECT_THAT(usageError([&] { attachLoss(model.graph, parseLoss("cross-entropy:scores,labels")); }),
              HasSubstr("do not fit"));
  EXPECT_THAT(usageError([&] { attachLoss(model.graph, parseLoss("cross-entropy:scores,floats")); }),
              HasSubstr("no integer tensor"));
  EXPECT_THAT(usageError([&] { attachLoss(model.graph, parseLoss("cross-entropy:nothing,labels")); }),
              HasSubstr("outputs are scores"));
}

TEST(Loss, OfMeanSquaredErrorMakesATargetOfThePredictionsShape) {
  Model model;
  model.output("y", {kUnknownSize, 3});
  attachLoss(model.graph, parseLoss("mse:y,target"));
  verifyGraph(model.graph);
  EXPECT_EQ(*model.graph.value(findValue(model.graph, "target")).shape, (Shape{kUnknownSize, 3}));
  EXPECT_EQ(model.graph.nodes.back().op_type, "ReduceMean");
}

TEST(Parameters, AreThoseThatTheExporterMarks) {
  Model model;
  const ValueId weight = model.builder.addConstant("weight", makeConstant<float>({2}, {1, 2}));
  model.builder.addConstant("buffer", makeConstant<float>({2}, {1, 2}));
  model.graph.value(weight).metadata = {{"pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"}};
  EXPECT_EQ(trainableParameters(model.graph), std::vector<ValueId>{weight});
}

TEST(Parameters, WithoutMarksAreTheWeightsOfTheArithmetic) {
  Model model;
  const ValueId x = model.input("x", {2}, DataType::kFloat32);
  const auto read = [&](std::string_view op_type, ValueId constant) {
    model.builder.addNode("", op_type, {x, constant}, {model.builder.addValue("y", DataType::kFloat32, {2})});
    return constant;
  };
  const ValueId weight = read("Mul", model.builder.addConstant("weight", makeConstant<float>({2}, {1, 2})));
  read("Max", model.builder.addConstant("limit", makeConstant<float>({2}, {1, 2})));
  read("Pow", model.builder.addConstant("exponent", makeConstant<float>({2}, {1, 2})));
  read("Add", model.builder.addConstant("mask", makeConstant<float>({2}, {0, -3.4e38f})));
  read("Mul", model.builder.addConstant("scalar", makeConstant<float>({}, {2})));
  read("Add", model.builder.addConstant("integers", makeConstant<int64_t>({2}, {1, 2})));
  EXPECT_EQ(trainableParameters(model.graph), std::vector<ValueId>{weight});
}

// Nodes that read weights, in a graph without marks.
struct Unmarked : Model {
  ValueId x = input("x", {2, 2}, DataType::kFloat32);
  ValueId weight(const std::string& name, Shape shape, const std::vector<float>& elements,
                 std::string_view op_type) {
    const ValueId id = builder.addConstant(name, makeConstant<float>(std::move(shape), elements));
    builder.addNode("", op_type, {x, id}, {builder.addValue("y", DataType::kFloat32, {2, 2})});
    return id;
  }
  std::vector<std::string> trained() const {
    std::vector<std::string> names;
    for (ValueId id : trainableParameters(graph)) names.push_back(graph.value(id).name);
    return names;
  }
};

TEST(Parameters, OfOneElementAreTrainedByPlaceOrName) {
  Unmarked model;
  model.weight("fc.bias", {1}, {0.5f}, "Add");
  model.weight("temperature", {}, {2}, "Div");
  model.weight("blocks.3.layer_scale", {1}, {0.1f}, "Mul");
  model.weight("model/dense/BiasAdd/ReadVariableOp:0", {1}, {0}, "Add");
  model.weight("onnx::MatMul_20", {1, 1}, {3}, "MatMul");
  model.weight("slope_of_act", {1}, {0.25f}, "PRelu");
  const std::vector<std::string> expected = model.trained();
  EXPECT_EQ(expected.size(), 6u);
  model.weight("onnx::Mul_12", {}, {0.125f}, "Mul");           // 1/sqrt(d)
  model.weight("/gelu/Constant_output_0", {}, {0.5f}, "Mul");  // of a Gelu
  model.weight("norm.eps", {1}, {1e-5f}, "Add");
  model.weight("val_3", {}, {1.702f}, "Mul");
  model.weight("scale", {}, {0.125f}, "Mul");
  model.weight("fc.weight", {}, {2}, "Pow");  // no place for a weight
  const ValueId folded = model.weight("decoder.scale", {}, {8}, "Mul");
  markFolded(model.graph.value(folded));
  EXPECT_EQ(model.trained(), expected);
  EXPECT_THAT(
      parameterNotes(model.graph, ValueId()),
      ::testing::ElementsAre(HasSubstr("taken for constants, not trained: onnx::Mul_12, "),
                             HasSubstr("trained although they have one element: fc.bias, temperature, ")));
}

TEST(Parameters, WithLargeNumbersAreWeightsAllTheSame) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Unmarked model;
  model.weight("embedding", {2, 2}, {20000, -3, 5, 0.5f}, "MatMul");
  model.weight("offsets", {2}, {20000, 0.5f}, "Add");
  model.weight("diverged", {2}, {nan, 1}, "Mul");
  const std::vector<std::string> expected = model.trained();
  EXPECT_EQ(expected, (std::vector<std::string>{"embedding", "offsets", "diverged"}));
  model.weight("bert", {2}, {0, -10001}, "Add");
  model.weight("alibi", {2}, {-0.5f, -infinity}, "Add");
  model.weight("attn.causal_mask", {2}, {0, 1}, "Mul");
  model.weight("rotary.inv_freq", {2, 1}, {1, 0.1f}, "MatMul");
  EXPECT_EQ(model.trained(), expected);
}

TEST(Parameters, AreWhatTheUserSays) {
  Unmarked model;
  model.weight("body.weight", {2}, {1, 2}, "Mul");
  model.weight("head.weight", {2}, {1, 2}, "Mul");
  model.weight("scale", {}, {2}, "Mul");
  overrideParameters(model.graph, {"^head", "^scale$"}, {"."});
  EXPECT_EQ(model.trained(), (std::vector<std::string>{"head.weight", "scale"}));
  EXPECT_THAT(parameterNotes(model.graph, ValueId()),
              ::testing::ElementsAre("not trained (--freeze, or no gradient in the file): body.weight"));
  EXPECT_EQ(trainedSummary(model.graph, ValueId()), "trains 3 of 5 parameters in 2 tensors");
  EXPECT_THAT(usageError([&] { overrideParameters(model.graph, {}, {"tail"}); }),
              HasSubstr("--freeze 'tail' is found in no"));
  EXPECT_THAT(usageError([&] { overrideParameters(model.graph, {"("}, {}); }),
              HasSubstr("--train '(' is no regular expression"));
}

TEST(Parameters, OfSeveralNamesAreMeantByEach) {
  Unmarked model;
  const ValueId head = model.weight("head.weight", {2}, {1, 2}, "Mul");
  model.weight("body.weight", {2}, {1, 2}, "Mul");
  Value& tied = model.graph.value(head);
  for (const char* name : {"words.weight", "shared.weight", "words.weight", "head.weight"})
    addOtherName(tied, name);
  EXPECT_EQ(otherNames(tied), (std::vector<std::string>{"words.weight", "shared.weight"}));
  EXPECT_EQ(allNames(tied), "head.weight (also words.weight, shared.weight)");
  EXPECT_THAT(usageError([&] { overrideParameters(model.graph, {}, {"tail"}); }),
              HasSubstr("such names are head.weight (also words.weight, shared.weight), body.weight"));
  overrideParameters(model.graph, {}, {"^shared"});
  EXPECT_EQ(model.trained(), std::vector<std::string>{"body.weight"});
  overrideParameters(model.graph, {"^words.weight$"}, {"."});
  EXPECT_EQ(model.trained(), std::vector<std::string>{"head.weight"});
  EXPECT_THAT(groupNotes(model.graph, {parseParameterGroup("^shared:lr_scale=0.5")}),
              ::testing::ElementsAre("group '^shared': 1 parameter, lr_scale=0.5"));
  EXPECT_THAT(usageError([&] { groupNotes(model.graph, {parseParameterGroup("tail:lr_scale=0.5")}); }),
              HasSubstr("such names are head.weight (also words.weight, shared.weight)"));
}

TEST(Parameters, ThatTheLossDoesNotDependOnAreNotCounted) {
  Unmarked model;
  model.weight("body.weight", {2}, {1, 2}, "Mul");
  const ValueId loss = model.graph.nodes.back().outputs[0];
  model.weight("other.weight", {3}, {1, 2, 3}, "Mul");
  EXPECT_EQ(trainedSummary(model.graph, loss), "trains 2 of 5 parameters in 1 tensors");
  EXPECT_THAT(
      parameterNotes(model.graph, loss),
      ::testing::ElementsAre(HasSubstr("no gradient of the loss reaches these parameters, which stay as "
                                       "they are: other.weight")));
  EXPECT_EQ(trainedSummary(model.graph, ValueId()), "trains 5 of 5 parameters in 2 tensors");
}

// Only the choice depends on the first product.
TEST(Parameters, ThatNoGradientReachesAreNotCounted) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x, float[2,3] t) => (float loss)
      <float[3,3] gate = {1,2,3,4,5,6,7,8,9}, float[3,2] head = {1,2,3,4,5,6}> {
      scores = MatMul(x, gate)
      chosen = Greater(scores, t)
      number = Cast <to = 1> (chosen)
      y = MatMul(number, head)
      loss = ReduceMean <keepdims = 0> (y) })");
  const ValueId loss = findValue(graph, "loss");
  EXPECT_EQ(trainedSummary(graph, loss), "trains 6 of 15 parameters in 1 tensors");
  EXPECT_THAT(parameterNotes(graph, loss),
              ::testing::Contains("no gradient of the loss reaches these parameters, which stay as they are: "
                                  "gate"));
  EXPECT_EQ(constantParameters(graph, loss), std::vector<ValueId>{findValue(graph, "gate")});
  EXPECT_THAT(constantParameters(graph, ValueId()), ::testing::IsEmpty());
}

// What is computed of a frozen weight has its name, and counts once (GroupNorm writes its scale in several
// shapes).
TEST(Parameters, ThatAreFrozenAreNamedAsInTheFile) {
  Graph raw = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,2] y)
      <float[3] scale = {1,2,3}, float[3,2] head = {1,2,3,4,5,6}, int64[2] row = {1,3}> {
      wide = Reshape(scale, row)
      twice = Add(wide, wide)
      a = Mul(x, wide)
      b = Mul(a, twice)
      y = MatMul(b, head) })");
  overrideParameters(raw, {}, {"^scale$"});
  PrepareOptions options;
  options.fold_limit_bytes = 1 << 20;
  const Graph graph = prepareModel(raw, options);
  EXPECT_EQ(trainedSummary(graph, ValueId()), "trains 6 of 9 parameters in 1 tensors");
  EXPECT_THAT(parameterNotes(graph, ValueId()),
              ::testing::ElementsAre("not trained (--freeze, or no gradient in the file): scale"));
}

// Neither the codes of a weight nor its scales are parameters, whether they are folded or not.
TEST(Parameters, AreNotTheNumbersOfAQuantizedWeight) {
  for (const int64_t fold_limit : {0, 1 << 20}) {
    const Graph raw = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[2,3] x) => (y)
        <int8[3,4] codes = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] scales = {1,2,3,4},
         float[4,2] head = {1,2,3,4,5,6,7,8}> {
        weight = DequantizeLinear <axis = 1> (codes, scales)
        h = MatMul(x, weight)
        y = MatMul(h, head) })");
    EXPECT_EQ(quantizedNote(raw), "quantized weights, not trained: codes (int8 [3,4])");
    PrepareOptions options;
    options.fold_limit_bytes = fold_limit;
    options.supported = [](const Node& node) { return !node.is("DequantizeLinear"); };
    const Graph graph = prepareModel(raw, options);
    EXPECT_EQ(trainedSummary(graph, ValueId()), "trains 8 of 8 parameters in 1 tensors") << fold_limit;
  }
  EXPECT_EQ(quantizedNote(Graph()), "");
}

TEST(Precision, ChangesValuesConstantsAndTypeAttributes) {
  Model model;
  const ValueId x = model.input("x", {2}, DataType::kFloat32);
  const ValueId constant = model.builder.addConstant("c", makeConstant<float>({2}, {0.1f, 2}));
  const ValueId weight = model.builder.addValue("w", DataType::kFloat32, {2});
  model.graph.initializers[weight] = WeightReference{"w.bin", 0, 8};
  const auto add = [&](std::string_view op_type, std::vector<ValueId> inputs,
                       std::map<std::string, Attribute> attributes) {
    return model.builder.addNode("", op_type, std::move(inputs),
                                 {model.builder.addValue("y", DataType::kFloat32, {2})},
                                 std::move(attributes));
  };
  const NodeId cast = add("Cast", {x}, {{"to", int64_t{1}}});
  const NodeId other_cast = add("Cast", {x}, {{"to", int64_t{7}}});
  const NodeId fill = add("ConstantOfShape", {x}, {});
  const NodeId number = add("Constant", {}, {{"value_float", 0.5f}});
  const NodeId norm = add("LayerNormalization", {x, weight}, {});
  const PrecisionChange change = setPrecision(model.graph, DataType::kFloat64);
  EXPECT_EQ(change.source_types, (std::map<std::string, DataType>{{"w", DataType::kFloat32}}));
  for (const Value& value : model.graph.values) EXPECT_EQ(value.data_type, DataType::kFloat64) << value.name;
  EXPECT_EQ(numericElements(*model.graph.constant(constant)), (std::vector<double>{0.1f, 2}));
  EXPECT_EQ(model.graph.node(cast).intAttribute("to", 0), 11);
  EXPECT_EQ(model.graph.node(other_cast).intAttribute("to", 0), 7);
  EXPECT_EQ(std::get<Constant>(model.graph.node(fill).attributes.at("value")).data_type, DataType::kFloat64);
  EXPECT_EQ(std::get<Constant>(model.graph.node(number).attributes.at("value")),
            makeConstant<double>({}, {0.5}));
  EXPECT_EQ(model.graph.node(norm).intAttribute("stash_type", 0), 11);
}

TEST(Precision, OfFloat32ChangesNothing) {
  Model model;
  model.output("y", {2});
  const std::string before = printGraph(model.graph);
  EXPECT_TRUE(setPrecision(model.graph, DataType::kFloat32).source_types.empty());
  EXPECT_EQ(printGraph(model.graph), before);
  EXPECT_THROW(setPrecision(model.graph, DataType::kInt32), Error);
}

}  // namespace
}  // namespace pipeshard
