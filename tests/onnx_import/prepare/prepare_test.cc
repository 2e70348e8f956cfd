#include <algorithm>
#include <cstring>
#include <ctime>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/loss/needed_outputs.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::elementsOf;
using testing::errorOf;
using testing::graphFromText;

constexpr auto kBadModel = ErrorCode::kBadModel;

size_t count(const Graph& graph, std::string_view op) {
  size_t found = 0;
  for (const Node& node : graph.nodes) found += node.op_type == op ? 1 : 0;
  return found;
}

// PyTorch declares [] what it has not found.
TEST(Prepare, AShapeOfNoAxesIsFoundAnew) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,3] x, int64[4] t) => (float loss) <float losses, float twice> {
      losses = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t)
      twice = Add(losses, losses)
      loss = ReduceMean <keepdims = 0> (twice) })"),
                                   {});
  EXPECT_EQ(graph.shape(findValue(graph, "twice")), Shape{4});
}

TEST(Prepare, AKnownAxisOfAnOpenShapeIsAConstant) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,2] x, bool[4] kept) => (int64[1] y) {
      rows = Compress <axis = 0> (x, kept)  y = Shape <start = 1> (rows) })"),
                                   {});
  EXPECT_TRUE(graph.nodes.empty());
}

// As PyTorch writes an LSTM with proj_size, of which the file keeps nothing.
TEST(Prepare, ARecurrenceThatContradictsItselfIsNamed) {
  PrepareOptions options;
  options.supported = [](const Node& node) { return !node.is("LSTM"); };
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[6,2,5] x, float[1,12,5] w, float[1,12,3] r, float[1,2,3] h, float[1,2,8] c) => (y) {
      [cell] y = LSTM <hidden_size = 3> (x, w, r, , , h, c) })"),
                            options),
               ErrorCode::kBadModel, "'cell'",
               "initial_c has the shape [1,2,8], but R and X make it [1,2,3]");
}

// ONNX's inference reads behind its lists (found by fuzzing).
TEST(Prepare, AConvolutionHasWeightsOfItsInputsRank) {
  for (const char* weights : {"1,1,3,3,1", "1,1,3", "1"}) {
    for (const char* op : {"Conv", "ConvTranspose"}) {
      const std::string text = fmt::format(R"(<ir_version: 10, opset_import: ["" : 22]>
        g (float[1,1,7,5] x, float[{}] w) => (y) {{ y = {} <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w) }})",
                                           weights, op);
      const std::string found = fmt::format("its weights have {} axes", (std::strlen(weights) + 1) / 2);
      const char* said = found.c_str();
      EXPECT_ERROR(prepareModel(graphFromText(text), {}), kBadModel, said,
                   "but its input has 4; they are of one rank");
    }
  }
}

TEST(Prepare, ShapeArithmeticDisappears) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,6] x) => (float[a,b,c] y) {
      s = Shape(x)
      zero = Constant <value_int: int = 0> ()
      n = Gather(s, zero)
      axis = Constant <value_ints: ints = [0]> ()
      n1 = Unsqueeze(n, axis)
      rest = Constant <value_ints: ints = [2, 3]> ()
      shape = Concat <axis = 0> (n1, rest)
      y = Reshape(x, shape) })"),
                                   {{{"batch", 4}}, 1 << 20, {}});
  ASSERT_EQ(graph.nodes.size(), 1u);
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({4, 2, 3}));
  EXPECT_EQ(elementsOf(graph, "shape"), (std::vector<double>{4, 2, 3}));
  checkModel(graph);
}

TEST(Prepare, ChainsOfReshapesAreSolvedInOneWalk) {
  std::string text =
      R"(<ir_version: 10, opset_import: ["" : 18]> g (float[batch,8] x0) => (float[p,q] x100) {)";
  for (int i = 0; i < 100; ++i) {
    text += fmt::format(
        "s{0} = Shape(x{0}) t{0} = Mul(s{0}, s{0}) u{0} = Div(t{0}, s{0}) x{1} = Reshape(x{0}, u{0})\n", i,
        i + 1);
  }
  const Graph graph = prepareModel(graphFromText(text + "}"), {{{"batch", 3}}, 1 << 20, {}});
  EXPECT_EQ(graph.nodes.size(), 100u);
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({3, 8}));
}

TEST(Prepare, AGemmThatDoesNotFitIsRefused) {
  const auto gemm = [](const std::string& b, const std::string& c) {
    prepareModel(graphFromText("<ir_version: 10, opset_import: [\"\" : 18]> g (float[2,4] a, float" + b +
                               " b, float" + c + " c) => (float[2,3] y) { y = Gemm(a, b, c) }"),
                 {});
  };
  gemm("[4,3]", "[3]");
  gemm("[4,3]", "[2,1]");
  EXPECT_ERROR(gemm("[5,3]", "[3]"), kBadModel, "onnx::Gemm", "[2,4] and [5,3] cannot be multiplied");
  EXPECT_ERROR(gemm("[4,3]", "[7]"), kBadModel, "onnx::Gemm", "'c' [7], does not fit its output [2,3]");
}

TEST(Prepare, AnOpsetThatIsNotKnownIsRefused) {
  EXPECT_ERROR(prepareModel(graphFromText("<ir_version: 10, opset_import: [\"\" : 99]> g (float[2] x) => "
                                          "(float[2] y) { y = Relu(x) }"),
                            {}),
               kBadModel, "opset 99", "export it with opset_version=");
}

TEST(Prepare, ADecidedBranchTakesTheIfsPlace) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[a,b] y) {
      n = Size(x)
      six = Constant <value_int: int = 6> ()
      c = Equal(n, six)
      h = Neg(x)
      y = If (c) <then_branch = yes () => (float[a,b] p) { t = Relu(h)  p = Abs(t) },
                  else_branch = no () => (float[a,b] q) { q = Transpose(h) }> })"),
                                   {});
  EXPECT_EQ(count(graph, "If"), 0u);
  EXPECT_EQ(count(graph, "Abs"), 1u);
  EXPECT_EQ(graph.value(graph.outputs[0]).name, "y");
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({2, 3}));
  checkModel(graph);
}

TEST(Prepare, AnUndecidedIfKeepsWhatItsBranchesRead) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x, bool c) => (float[2] y) {
      h = Neg(x)
      same = Identity(h)
      y = If (c) <then_branch = yes () => (float[2] p) { p = Relu(same) }, else_branch = no () => (float[2] q) { q = Abs(same) }> })"),
                                   {});
  EXPECT_EQ(count(graph, "If"), 1u);
  EXPECT_EQ(count(graph, "Neg"), 1u);
  EXPECT_TRUE(findValue(graph, "same").valid());
  checkModel(graph);
}

TEST(Prepare, IdentitiesAndInferenceDropoutGoButOutputsKeepTheirNames) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y, float[2] same) {
      a = Relu(x)
      b = Identity(a)
      c = Dropout(b)
      d = Cast <to = 1> (c)
      e = Neg(d)
      y = Identity(e)
      same = Identity(x) })"),
                                   {});
  EXPECT_EQ(count(graph, "Dropout"), 0u);
  EXPECT_EQ(count(graph, "Cast"), 0u);
  EXPECT_EQ(count(graph, "Identity"), 1u);  // x -> same: both names are fixed
  EXPECT_EQ(graph.value(graph.outputs[0]).name, "y");
  EXPECT_EQ(graph.nodes[1].op_type, "Neg");
  EXPECT_EQ(graph.nodes[1].outputs[0], graph.outputs[0]);
  checkModel(graph);
}

TEST(Prepare, ACastLikeOfAKnownTypeReadsItsInputAlone) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x, double[7] like) => (double[2] y) { a = Relu(x)  y = CastLike(a, like) })"),
                                   {});
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[1].op_type, "Cast");
  EXPECT_EQ(graph.nodes[1].inputs.size(), 1u);
  EXPECT_EQ(graph.dataType(graph.outputs[0]), DataType::kFloat64);
  checkModel(graph);
}

TEST(Prepare, ASequenceOfPartsIsASplit) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,9] x) => (float[2,3] y, float[2,3] last)
      <int64 size = {3}, int64 zero = {0}, int64 two = {2}, int64 minus = {-1}> {
      parts = SplitToSequence <axis = 1> (x, size)
      a = SequenceAt(parts, zero)
      b = SequenceAt(parts, two)
      y = Add(a, b)
      last = SequenceAt(parts, minus) })"),
                                   {});
  EXPECT_EQ(count(graph, "SplitToSequence") + count(graph, "SequenceAt"), 0u);
  ASSERT_EQ(count(graph, "Split"), 1u);
  const Node& split = graph.nodes[0];
  ASSERT_EQ(split.outputs.size(), 3u);
  EXPECT_EQ(split.intAttribute("axis", 0), 1);
  EXPECT_EQ(elementsOf(graph, graph.value(split.inputs[1]).name), (std::vector<double>{3, 3, 3}));
  const auto add =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.is("Add"); });
  EXPECT_EQ(add->inputs, (std::vector<ValueId>{split.outputs[0], split.outputs[2]}));
  EXPECT_EQ(graph.value(graph.outputs[1]).name, "last");
  checkModel(graph);
}

TEST(Prepare, ASequenceThatIsReadAtAnUnknownPlaceIsNamed) {
  const Error error = errorOf([] {
    prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,9] x, int64 place) => (float[2,a] y) <int64 size = {3}> {
      parts = SplitToSequence <axis = 1> (x, size)
      y = SequenceAt(parts, place) })"),
                 {});
  });
  EXPECT_EQ(error.code(), kBadModel);
  EXPECT_NE(error.message().find("no dense tensor"), std::string::npos) << error.message();
}

TEST(Prepare, PartsThatDoNotMakeUpTheAxisAreRefused) {
  for (const char* sizes : {"4, 4", "12, -3"}) {
    const Error error = errorOf([&] {
      prepareModel(graphFromText(fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,9] x) => (float[2,a] y) <int64[2] sizes = {{{}}}, int64 zero = {{0}}> {{
      parts = SplitToSequence <axis = 1> (x, sizes)
      y = SequenceAt(parts, zero) }})",
                                             sizes)),
                   {});
    });
    EXPECT_EQ(error.code(), kBadModel) << error.message();
  }
}

// indices [2,3,2]: (row, column) of each row, as masks of a batch are written.
TEST(Prepare, TheSamePlacesOfEveryRowAreAGather) {
  const auto prepared = [](const char* indices) {
    return prepareModel(graphFromText(fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,5] x) => (float[2,3] y) <int64[2,3,2] i = {{{}}}> {{ y = GatherND(x, i) }})",
                                                  indices)),
                        {});
  };
  const Graph graph = prepared("0,4, 0,0, 0,2,  1,4, 1,0, 1,2");
  ASSERT_EQ(count(graph, "Gather"), 1u);
  EXPECT_EQ(graph.nodes[0].intAttribute("axis", 0), 1);
  EXPECT_EQ(elementsOf(graph, graph.value(graph.nodes[0].inputs[1]).name), (std::vector<double>{4, 0, 2}));
  EXPECT_EQ(graph.shape(graph.outputs[0]), (Shape{2, 3}));
  checkModel(graph);
  EXPECT_EQ(count(prepared("0,4, 0,0, 0,2,  1,4, 1,1, 1,2"), "GatherND"), 1u);  // another place in row 1
  EXPECT_EQ(count(prepared("1,4, 1,0, 1,2,  0,4, 0,0, 0,2"), "GatherND"), 1u);  // the rows in another order
}

TEST(Prepare, TrainingDropoutStays) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y) <float ratio = {0.5}, bool training = {1}> { a = Dropout(x, ratio, training)  y = Relu(a) })"),
                                   {});
  EXPECT_EQ(count(graph, "Dropout"), 1u);
}

TEST(Prepare, WeightsThatMayBeTrainedAreNotFolded) {
  const char* const text = R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,2] y) <float[2,3] w = {1,2,3,4,5,6}, float half = {0.5}> {
      t = Transpose(w)  s = Mul(half, half)  m = MatMul(x, t)  y = Mul(m, s) })";
  Graph graph = prepareModel(graphFromText(text), {});
  EXPECT_EQ(count(graph, "Transpose"), 1u);
  EXPECT_EQ(elementsOf(graph, "s"), (std::vector<double>{0.25}));
  // Where the exporter marks its parameters, the others are constants.
  graph = graphFromText(text);
  const auto mark = [&](const char* name, const char* kind) {
    graph.value(findValue(graph, name)).metadata = {
        {"pkg.torch.export.graph_signature.InputSpec.kind", kind}};
  };
  mark("half", "PARAMETER");
  mark("w", "BUFFER");
  graph = prepareModel(graph, {});
  EXPECT_EQ(count(graph, "Transpose"), 0u);
  EXPECT_EQ(count(graph, "Mul"), 2u);
  EXPECT_EQ(elementsOf(graph, "t"), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  const Metadata& metadata = graph.value(findValue(graph, "t")).metadata;
  EXPECT_EQ(metadata, (Metadata{{"pipeshard.constant", "made"}}));  // of a buffer alone
}

TEST(Prepare, WhatIsFoldedFromAFrozenWeightIsFrozen) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,2] x) => (float[4,2] y) <float[2,2] w = {1, 2, 3, 4}> {
      t = Transpose(w)
      r = Neg(t)
      y = MatMul(x, r) })");
  graph.value(findValue(graph, "w")).metadata.emplace_back(kTrainedMark, "no");  // --freeze
  const Graph prepared = prepareModel(std::move(graph), {});
  const ValueId folded = findValue(prepared, "r");
  ASSERT_TRUE(folded.valid());
  ASSERT_NE(prepared.constant(folded), nullptr);
  EXPECT_EQ(trainedByUser(prepared.value(folded)), std::optional(false));
}

// The first state of a recurrence, which a product reads as a layer reads its weight.
TEST(Prepare, WhatIsMadeOfAShapeAloneIsNoWeight) {
  const Graph prepared = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[3,2] x) => (float[2,2] y) <int64[2] sizes = {2, 3}, float[3,2] w = {1, 2, 3, 4, 5, 6}> {
      zeros = ConstantOfShape(sizes)
      state = Neg(zeros)
      recurrent = MatMul(state, w)
      other = MatMul(state, x)
      y = Add(recurrent, other) })"),
                                      {});
  const ValueId state = findValue(prepared, "state");
  ASSERT_NE(prepared.constant(state), nullptr);
  EXPECT_EQ(initializerRoles(prepared)[state.index()], InitializerRole::kConstant);
  EXPECT_EQ(initializerRoles(prepared)[findValue(prepared, "w").index()], InitializerRole::kParameter);
}

TEST(Prepare, ConstantsAboveTheLimitStayNodes) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[300] x) => (float[300] y) <int64[1] big = {300}, int64[1] small = {1}> {
      a = ConstantOfShape(big)  b = ConstantOfShape(small)  c = Add(x, a)  y = Add(c, b) })"),
                                   {{}, 1000, {}});
  EXPECT_EQ(count(graph, "ConstantOfShape"), 1u);
  EXPECT_EQ(elementsOf(graph, "b"), (std::vector<double>{0}));
}

TEST(Prepare, OperatorsWithoutSupportAreReplacedByTheirOnnxBodies) {
  PrepareOptions options;
  options.supported = [](const Node& node) {
    return node.op_type != "LayerNormalization" && node.op_type != "SoftmaxCrossEntropyLoss" &&
           node.op_type != "LogSoftmax";
  };
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,8] x, int64[4] labels) => (float loss) <float[8] scale = {1,1,1,1,1,1,1,1}> {
      n = LayerNormalization <axis = -1> (x, scale)
      loss = SoftmaxCrossEntropyLoss <reduction = "mean"> (n, labels) })"),
                                   options);
  EXPECT_EQ(count(graph, "LayerNormalization") + count(graph, "SoftmaxCrossEntropyLoss") +
                count(graph, "LogSoftmax"),
            0u);
  EXPECT_EQ(count(graph, "Sqrt"), 1u);
  EXPECT_GE(count(graph, "Exp"), 1u);
  EXPECT_EQ(graph.shape(graph.outputs[0]), Shape({}));
  checkModel(graph);
}

// Its body uses HardSigmoid, whose own is written for a later opset than HardSwish is of.
TEST(Prepare, BodiesOfBodiesMayBeOfLaterOpsets) {
  const auto supported = [](const Node& node) { return !node.is("HardSwish") && !node.is("HardSigmoid"); };
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 20]>
    g (float[2,3] x) => (float[2,3] y) { y = HardSwish(x) })"),
                                   {{}, 1 << 20, supported});
  EXPECT_EQ(count(graph, "HardSwish") + count(graph, "HardSigmoid"), 0u);
  EXPECT_EQ(graph.shape(graph.outputs[0]), (Shape{2, 3}));
  checkModel(graph);
}

TEST(Prepare, UnsupportedOperatorsWithoutABodyStay) {
  PrepareOptions options;
  options.supported = [](const Node&) { return false; };
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4,8] x) => (float[4,8] y) { y = Sin(x) })"),
                                   options);
  EXPECT_EQ(count(graph, "Sin"), 1u);
}

TEST(Prepare, AnInputWithADefaultTakesIt) {
  onnx::ModelProto model = testing::parseText(R"(<ir_version: 3, opset_import: ["" : 9]>
    g (float[2,3] x, float[2,3] w) => (float[2,3] y) { y = Add(x, w) })");
  *model.mutable_graph()->add_initializer() = testing::floatTensor("w", {2, 3}, {1, 2, 3, 4, 5, 6});
  const Graph graph = prepareModel(parseModel(model.SerializeAsString(), "", "old"), {});
  ASSERT_EQ(graph.inputs.size(), 1u);
  EXPECT_EQ(graph.value(graph.inputs[0]).name, "x");
  checkModel(graph);
}

TEST(Prepare, AnUnknownOperatorIsNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "com.example" : 1]>
    g (float[2] x) => (float[2] z) { y = com.example.Mystery(x)  z = Relu(y) })"),
                            {}),
               kBadModel, "com.example::Mystery", "neither in ONNX");
  EXPECT_ERROR(
      prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "com.microsoft.nchwc" : 1]>
    g (float[2] x) => (float[2] z) { y = com.microsoft.nchwc.ReorderInput(x)  z = Relu(y) })"),
                   {}),
      kBadModel, "com.microsoft.nchwc::ReorderInput", "ORT_ENABLE_EXTENDED");
}

TEST(Prepare, ADataDependentShapeIsNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[4] x, bool[4] keep) => (float[n] y) { y = Compress(x, keep) })"),
                            {}),
               kBadModel, "Compress", "'y'", "depends on data", "(loss * mask).sum() / mask.sum()");
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (bool[4] keep) => (int64[1,n] y) { y = NonZero(keep) })"),
                            {}),
               kBadModel, "NonZero", "'y'", "labels of -100");
}

TEST(Prepare, AContradictingShapeIsNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,4] y) { y = Relu(x) })"),
                            {}),
               kBadModel, "Relu", "'y'", "[2,4]", "[2,3]");
}

TEST(Prepare, InputsThatDoNotFitAreNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul(x, w) })"),
                            {}),
               kBadModel, "MatMul");
}

TEST(Prepare, TooManyInputsOfAnOperatorAreNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,3] y) { y = Relu(x, x) })"),
                            {}),
               kBadModel, "Relu");
}

TEST(Prepare, AnIndexOutsideOfItsAxisIsNamed) {
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,3] y) <int64 i = {5}> { s = Shape(x)  n = Gather(s, i)  y = Expand(x, n) })"),
                            {}),
               kBadModel, "Gather", "index 5", "size 2");
}

TEST(Prepare, AHugeConstantIsNotComputed) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float x) => (float[n] y) <int64[1] n = {1000000000}> { a = ConstantOfShape(n)  y = Add(a, x) })"),
                                   {});
  EXPECT_EQ(count(graph, "ConstantOfShape"), 1u);
}

TEST(Prepare, AShapeThatInferenceMakesTooLargeIsRefused) {
  const Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float x) => (float[n] y) <int64[1] n = {1099511627776}> { a = ConstantOfShape(n)  y = Add(a, x) })");
  try {
    prepareModel(graph, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
    EXPECT_NE(error.message().find("1099511627776"), std::string::npos) << error.message();
  }
}

TEST(Prepare, TheExamplesAreStaticAndValid) {
  for (const char* name : {"mlp.onnx", "gpt2.onnx"}) {
    Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + name);
    PrepareOptions options;
    options.dimensions = defaultDimensions(graph);
    const std::clock_t start = std::clock();
    graph = prepareModel(std::move(graph), options);
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC) << name;
    for (const Value& value : graph.values)
      EXPECT_TRUE(value.shape && isStatic(*value.shape)) << name << " " << value.name;
    EXPECT_TRUE(findValue(graph, "loss").valid());
    checkModel(graph);
  }
}

TEST(Prepare, AThousandBlocksTakeLessThanASecond) {
  std::string text =
      R"(<ir_version: 10, opset_import: ["" : 18]> g (float[batch,64] h0) => (float[batch,64] h300) <int64[2] view = {-1, 64}> {)";
  for (int i = 0; i < 300; ++i) {
    text += fmt::format(
        "a{0} = Relu(h{0}) b{0} = Reshape(a{0}, view) c{0} = MatMul(b{0}, w) d{0} = Softmax(c{0}) h{1} = "
        "Add(d{0}, h{0})\n",
        i, i + 1);
  }
  onnx::ModelProto model = testing::parseText(text + "}");
  *model.mutable_graph()->add_initializer() =
      testing::floatTensor("w", {64, 64}, std::vector<float>(64 * 64, 0.5f));
  const std::clock_t start = std::clock();
  const Graph graph =
      prepareModel(parseModel(model.SerializeAsString(), "", "m"), {{{"batch", 8}}, 1 << 20, {}});
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
  EXPECT_EQ(graph.nodes.size(), 1500u);
}

// As skl2onnx writes a classifier: its labels are made by operators of another domain.
TEST(Prepare, OutputsOfUnknownOperatorsAreLeftOutBesideTheLoss) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    g (float[2,4] x) => (int64[2,4] label, float[2,4] y) {
      y = Relu(x)  scaled = ai.onnx.ml.Scaler(y)  label = Cast<to = 7>(scaled) })");
  EXPECT_ERROR(prepareModel(graph, {}), kBadModel, "operator ai.onnx.ml::Scaler is not supported");
  EXPECT_EQ(leaveOutUnknownOutputs(graph, findValue(graph, "y")),
            std::vector<std::string>{"label (ai.onnx.ml::Scaler)"});
  EXPECT_EQ(prepareModel(graph, {}).nodes.size(), 1u);
  graph.outputs = {findValue(graph, "label")};
  EXPECT_ERROR(leaveOutUnknownOutputs(graph, ValueId()), kBadModel,
               "every output needs an operator that is not supported: label (ai.onnx.ml::Scaler)");
}

}  // namespace
}  // namespace pipeshard
