// Models with a TrainingInfoProto: what is read of them, and what is refused. Files:
// training_info_files_test.cc.
#include "onnx_import/forms/training_info_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/format/reader.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> namesIn(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(graph.value(id).name);
  return names;
}

std::vector<std::string> trainedIn(const Graph& graph) { return namesIn(graph, trainableParameters(graph)); }

// ---- y = x * w, loss = sum(y): the gradient of w is the sum of x. The rest as each test says.

struct Info {
  std::string algorithm;    // nodes
  std::string updates;      // "w: w2, v: v2"
  std::string values = "";  // initializers of the algorithm: "float v = {0}"
  std::string inputs = "";  // of the algorithm
};

constexpr const char* kGradient =
    R"(d = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x"], y = "loss"> (w, x)
)";

void bind(const std::string& text,
          google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(", ", at), text.size()), colon = text.find(": ", at);
    auto* entry = entries.Add();
    entry->set_key(text.substr(at, colon - at));
    entry->set_value(text.substr(colon + 2, end - colon - 2));
    at = end + 2;
  }
}

onnx::ModelProto withInfos(
    const std::vector<Info>& infos,
    const std::string& model_nodes = "y = Mul(x, w)\nloss = ReduceSum<keepdims = 0>(y)") {
  onnx::ModelProto model =
      parseText(R"(<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
    main (float[n,4] x) => (float loss) <float[4] w = {1, 2, 3, 4}, float[4] u = {0, 0, 0, 0}> {)" +
                model_nodes + "}");
  for (const Info& info : infos) {
    auto& proto = *model.add_training_info();
    std::string outputs;
    bind(info.updates, *proto.mutable_update_binding());
    for (const auto& entry : proto.update_binding()) {
      if (entry.value() != "loss" && outputs.find(" " + entry.value()) == std::string::npos)
        outputs += (outputs.empty() ? "float[4] " : ", float[4] ") + entry.value();
    }
    const std::string text =
        "algorithm (" + info.inputs + ") => (" + outputs + ") <" + info.values + "> {" + info.algorithm + "}";
    const auto status = onnx::OnnxParser::Parse(*proto.mutable_algorithm(), text.c_str());
    EXPECT_TRUE(status.IsOK()) << status.ErrorMessage() << text;
    for (auto& output : *proto.mutable_algorithm()->mutable_output()) output.clear_type();
  }
  return model;
}

Graph infoGraph(const std::vector<Info>& infos, const std::string& model_nodes = "") {
  return parseModel(
      (model_nodes.empty() ? withInfos(infos) : withInfos(infos, model_nodes)).SerializeAsString(), "",
      "text");
}

std::string optimizerOfInfo(Graph graph) {
  const ReducedForm reduced = reduceForm(graph);
  return reduced.optimizer ? optimizerToString(reduced.optimizer->spec) : "none";
}

const std::string kRate = "float rate = {0.1}";
const std::string kSgd = std::string(kGradient) + "s = Mul(rate, d)\nw2 = Sub(w, s)";
constexpr const char* kPlainSgd = "sgd:lr=0.1,momentum=0,weight_decay=0,nesterov=0";

TEST(TrainingInfo, TakesTheGradientThatIsNamedAndNoOther) {
  EXPECT_EQ(optimizerOfInfo(infoGraph({{kSgd, "w: w2", kRate}})), kPlainSgd);
  const std::string half = std::string(kGradient) + "h = Mul(half, d)\ns = Mul(rate, h)\nw2 = Sub(w, s)";
  EXPECT_EQ(optimizerOfInfo(infoGraph({{half, "w: w2", kRate + ", float half = {0.5}"}})),
            "sgd:lr=0.05,momentum=0,weight_decay=0,nesterov=0")
      << "no other gradient with lr=0.1";
}

// A file whose update is that of Momentum, Adam, ... of ONNX.
Graph onnxsOptimizer(const std::string& call, const std::string& first_step) {
  return infoGraph({{std::string(kGradient) + call + "\nt2 = Add(t, one)", "w: w2, v: v2, h: h2, t: t2",
                     kRate + ", int64 t = {" + first_step +
                         "}, int64 one = {1}, float[4] v = {0, 0, 0, 0}, float[4] h = {0, 0, 0, 0}"}});
}

TEST(TrainingInfo, OfOnnxsMomentumIsOursWithBeta1) {
  const auto momentum = [](const std::string& beta) {
    return infoGraph(
        {{std::string(kGradient) + R"(w2, v2 = ai.onnx.preview.training.Momentum
        <alpha = 0.9, beta = )" +
              beta + R"(, norm_coefficient = 0.0, mode = "standard"> (rate, t, w, d, v)
        t2 = Add(t, one))",
          "w: w2, v: v2, t: t2", kRate + ", int64 t = {0}, int64 one = {1}, float[4] v = {0, 0, 0, 0}"}});
  };
  EXPECT_EQ(optimizerOfInfo(momentum("1.0")), "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_ERROR(optimizerOfInfo(momentum("0.1")), ErrorCode::kBadModel, "the update of 'w'",
               "Momentum (ai.onnx.preview.training) weighs gradients by 0.1 from the second step on",
               "--optimizer sgd:lr=0.1,momentum=0.9,weight_decay=0");
}

TEST(TrainingInfo, OfOnnxsAdamIsOursWithoutEpsilonFromStep1) {
  const auto adam = [](const std::string& epsilon) {
    return "w2, v2, h2 = ai.onnx.preview.training.Adam <alpha = 0.8, beta = 0.99, epsilon = " + epsilon +
           "> (rate, t, w, d, v, h)";
  };
  EXPECT_EQ(optimizerOfInfo(onnxsOptimizer(adam("0.0"), "1")),
            "adam:lr=0.1,beta1=0.8,beta2=0.99,eps=0,weight_decay=0");
  EXPECT_ERROR(optimizerOfInfo(onnxsOptimizer(adam("0.0"), "0")), ErrorCode::kBadModel, "the update of 'w'",
               "its step 't' starts at 0, but it is adam:lr=0.1,beta1=0.8,beta2=0.99,eps=0",
               "only from 1 on");
  EXPECT_ERROR(optimizerOfInfo(onnxsOptimizer(adam("1e-06"), "0")), ErrorCode::kBadModel, "the update of 'w'",
               "its result is another",
               "Adam (ai.onnx.preview.training) adds epsilon before it corrects the moments",
               "--optimizer adam:lr=0.1,beta1=0.8,beta2=0.99,eps=1e-06,weight_decay=0 is near to it");
}

TEST(TrainingInfo, OfOnnxsAdagradIsRefused) {
  const Graph graph = infoGraph(
      {{std::string(kGradient) + R"(
      w2, v2 = ai.onnx.preview.training.Adagrad <epsilon = 1e-6> (rate, t, w, d, v)
      t2 = Add(t, one))",
        "w: w2, v: v2, t: t2", kRate + ", int64 t = {0}, int64 one = {1}, float[4] v = {0, 0, 0, 0}"}});
  EXPECT_ERROR(optimizerOfInfo(graph), ErrorCode::kBadModel, "the update of 'w'",
               "Adagrad (ai.onnx.preview.training) is none of pipeshard's optimizers");
}

TEST(TrainingInfo, WithAClippedGradientIsRefused) {
  const auto clipped = [](const std::string& clip) {
    return infoGraph({{std::string(kGradient) + clip + "\ns = Mul(rate, c)\nw2 = Sub(w, s)", "w: w2",
                       kRate + ", float low = {-5}, float high = {5}"}});
  };
  EXPECT_ERROR(optimizerOfInfo(clipped("c = Clip(d, low, high)")), ErrorCode::kBadModel, "the update of 'w'",
               "the gradient is clipped");
  EXPECT_ERROR(optimizerOfInfo(clipped("a = Min(d, high)\nc = Max(a, low)")), ErrorCode::kBadModel,
               "the update of 'w'", "is not p - lr * (g + decay * p)");
  EXPECT_ERROR(optimizerOfInfo(clipped("size = ReduceL2<keepdims = 0>(d)\nc = Div(d, size)")),
               ErrorCode::kBadModel, "the update of 'w'");
}

constexpr const char* kBoth = "y = Mul(x, w)\nz = Add(y, u)\nloss = ReduceSum<keepdims = 0>(z)";
constexpr const char* kBothGradients =
    R"(d, e = ai.onnx.preview.training.Gradient <xs = ["w", "u"], zs = ["x"], y = "loss"> (w, u, x)
)";

TEST(TrainingInfo, WithGradientsThatDependOnEachOtherIsRefused) {
  const std::string update = std::string(kBothGradients) + R"(
      a = ReduceSumSquare<keepdims = 0>(d)
      b = ReduceSumSquare<keepdims = 0>(e)
      sum = Add(a, b)
      size = Sqrt(sum)
      c = Div(d, size)
      s = Mul(rate, c)
      w2 = Sub(w, s))";
  EXPECT_ERROR(optimizerOfInfo(infoGraph({{update, "w: w2", kRate}}, kBoth)), ErrorCode::kBadModel,
               "the update of 'w'",
               "it reads 'e', the gradient of another weight (clipped by the norm of all?)");
}

TEST(TrainingInfo, TrainsWhatIsSetAndHasAGradient) {
  Graph graph =
      infoGraph({{std::string(kBothGradients) + "s = Mul(rate, d)\nw2 = Sub(w, s)", "w: w2", kRate}}, kBoth);
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(optimizerToString(reduced.optimizer->spec), kPlainSgd);
  EXPECT_THAT(trainedIn(graph), ElementsAre("w"));
  EXPECT_THAT(reduced.notes, ElementsAre("has a gradient in the file, but no update: not trained: u"));
  EXPECT_ERROR(optimizerOfInfo(infoGraph({{kSgd + "\nu2 = Mul(u, rate)", "w: w2, u: u2", kRate}}, kBoth)),
               ErrorCode::kBadModel, "the update of 'u'", "no Gradient operator differentiates by it");
}

TEST(TrainingInfo, MayHaveItsLearningRateAsAnInput) {
  Graph graph = infoGraph({{kSgd, "w: w2", "", "float rate"}});
  EXPECT_EQ(reduceForm(graph).optimizer->learning_rate, "rate");
  EXPECT_THAT(namesIn(graph, graph.inputs), ElementsAre("x"));
  const std::string slower = kSgd + "\nrate2 = Mul(rate, slow)";
  EXPECT_ERROR(optimizerOfInfo(infoGraph({{slower, "w: w2, rate: rate2", kRate + ", float slow = {0.99}"}})),
               ErrorCode::kBadModel, "the update of 'w'",
               "its learning rate 'rate' changes from step to step");
}

TEST(TrainingInfo, StatesAreTheBindingsAndStartAtZero) {
  const std::string update = std::string(kGradient) + R"(
      k = Mul(v, momentum)
      v2 = Add(k, d)
      s = Mul(rate, v2)
      w2 = Sub(w, s))";
  const auto with = [&](const std::string& updates, const std::string& start) {
    return infoGraph({{update, updates, kRate + ", float momentum = {0.9}, float[4] v = {" + start + "}"}});
  };
  EXPECT_EQ(optimizerOfInfo(with("w: w2, v: v2", "0, 0, 0, 0")),
            "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  Graph started = with("w: w2, v: v2", "0, 1, 0, 0");
  EXPECT_THAT(reduceForm(started).notes,
              ElementsAre("states of the optimizer start at 0, not with their content in the file: v"));
  EXPECT_ERROR(optimizerOfInfo(with("w: w2", "0, 0, 0, 0")), ErrorCode::kBadModel, "the update of 'w'",
               "it reads 'v' float32[4]");
}

TEST(TrainingInfo, OfAnotherOptimizerGivesWayToAGivenOne) {
  Graph graph = onnxsOptimizer("w2, v2, h2 = ai.onnx.preview.training.Adam(rate, t, w, d, v, h)", "0");
  const ReducedForm reduced = reduceForm(graph, {.loss = "", .optimizer_given = true});
  EXPECT_FALSE(reduced.optimizer.has_value());
  EXPECT_THAT(reduced.notes, ElementsAre(HasSubstr("(--optimizer takes its place)")));
  EXPECT_THAT(reduced.found.why, HasSubstr("by an update that is not taken"));
  EXPECT_THAT(namesIn(graph, graph.inputs), ElementsAre("x"));
  EXPECT_THAT(namesIn(graph, graph.outputs), ElementsAre("loss"));
  EXPECT_THAT(trainedIn(graph), ElementsAre("w"));
}

TEST(TrainingInfo, WithABackwardPassOfItsOwnIsAJointGraph) {
  Graph graph = infoGraph({{"d = ReduceSum<keepdims = 0>(x, rows)\ns = Mul(rate, d)\nw2 = Sub(w, s)", "w: w2",
                            kRate + ", int64[1] rows = {0}"}});
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(reduced.found.form, ModelForm::kTrainingInfo);
  EXPECT_EQ(optimizerToString(reduced.optimizer->spec), kPlainSgd);
  EXPECT_THAT(namesIn(graph, graph.outputs), ElementsAre("loss", "d"));
  const ImportedBackward backward = takeBackward(graph);
  ASSERT_EQ(backward.gradients.size(), 1u);
  EXPECT_EQ(backward.gradients[0].parameter, "w");
}

TEST(TrainingInfo, KeepsRunningStatistics) {
  const std::string nodes = R"(
      y, mean2, var2 = BatchNormalization<training_mode = 1>(x, w, u, mean, var)
      loss = ReduceSum<keepdims = 0>(y))";
  onnx::ModelProto model = withInfos({{kSgd, "w: w2, mean: mean2, var: var2", kRate}}, nodes);
  *model.mutable_graph()->add_initializer() = floatTensor("mean", {4}, {0, 0, 0, 0});
  *model.mutable_graph()->add_initializer() = floatTensor("var", {4}, {1, 1, 1, 1});
  model.mutable_training_info(0)->mutable_algorithm()->mutable_output()->DeleteSubrange(1, 2);
  Graph graph = parseModel(model.SerializeAsString(), "", "text");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(optimizerToString(reduced.optimizer->spec), kPlainSgd);
  EXPECT_THAT(reduced.notes, IsEmpty());
  EXPECT_THAT(trainedIn(graph), ElementsAre("w"));
}

TEST(TrainingInfo, TrainsAWeightOfOneElement) {
  const std::string update = R"(
      d = ai.onnx.preview.training.Gradient <xs = ["scale"], zs = ["x"], y = "loss"> (scale, x)
      k = Mul(v, momentum)
      v2 = Add(k, d)
      s = Mul(rate, v2)
      scale2 = Sub(scale, s))";
  onnx::ModelProto model =
      withInfos({{update, "scale: scale2, v: v2", kRate + ", float momentum = {0.9}, float v = {0}"}},
                "y = Mul(x, w)\nz = Mul(y, scale)\nloss = ReduceSum<keepdims = 0>(z)");
  *model.mutable_graph()->add_initializer() = floatTensor("scale", {}, {2});
  Graph graph = parseModel(model.SerializeAsString(), "", "text");
  EXPECT_EQ(optimizerToString(reduceForm(graph).optimizer->spec),
            "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_THAT(trainedIn(graph), ElementsAre("scale"));
}

TEST(TrainingInfo, MayListItsStatesAsInputsToo) {
  const std::string update =
      std::string(kGradient) + "k = Mul(u, momentum)\nu2 = Add(k, d)\ns = Mul(rate, u2)\nw2 = Sub(w, s)";
  onnx::ModelProto model = withInfos({{update, "w: w2, u: u2", kRate + ", float momentum = {0.9}"}});
  auto* listed = model.mutable_graph()->add_input();
  *listed = model.graph().input(0);
  listed->set_name("u");
  listed->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim()->DeleteSubrange(0, 1);
  Graph graph = parseModel(model.SerializeAsString(), "", "text");
  EXPECT_EQ(optimizerToString(reduceForm(graph).optimizer->spec),
            "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_THAT(namesIn(graph, graph.inputs), ElementsAre("x"));
}

TEST(TrainingInfo, MayHaveStatesInFiles) {
  const ModelFolder folder;
  folder.write("states.bin", std::string(16, '\0'));
  onnx::ModelProto model = withInfos(
      {{std::string(kGradient) + "k = Mul(v, momentum)\nv2 = Add(k, d)\ns = Mul(rate, v2)\nw2 = Sub(w, s)",
        "w: w2, v: v2", kRate + ", float momentum = {0.9}, float[4] v = {0, 0, 0, 0}"}});
  auto& state = *model.mutable_training_info(0)->mutable_algorithm()->mutable_initializer(2);
  ASSERT_EQ(state.name(), "v");
  state.clear_float_data();
  state.clear_raw_data();
  state.set_data_location(onnx::TensorProto::EXTERNAL);
  auto* location = state.add_external_data();
  location->set_key("location");
  location->set_value("states.bin");
  Graph graph = readModel(folder.write("model.onnx", model));
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(optimizerToString(reduced.optimizer->spec), "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_THAT(reduced.notes, ElementsAre(HasSubstr("states of the optimizer start at 0")));
}

TEST(TrainingInfo, GivesWayToALossThatIsAskedFor) {
  Graph graph = infoGraph({{kSgd, "w: w2", kRate}});
  EXPECT_THAT(reduceForm(graph, {.loss = "y"}).notes,
              ElementsAre("the file's gradients are of 'loss'; --loss takes 'y' in its place"));
}

TEST(TrainingInfo, WithoutAnAlgorithmIsAForwardPass) {
  onnx::ModelProto model = withInfos({});
  model.add_training_info();
  Graph graph = parseModel(model.SerializeAsString(), "", "text");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(reduced.found.form, ModelForm::kForwardWithLoss);
  EXPECT_THAT(reduced.notes, ElementsAre(HasSubstr("TrainingInfoProto has no algorithm")));
}

void expectRefusal(const std::vector<Info>& infos, const std::string& message,
                   const std::string& model_nodes = "") {
  EXPECT_ERROR(reduceForm(*std::make_unique<Graph>(infoGraph(infos, model_nodes))), ErrorCode::kBadModel,
               message);
}

std::string gradientOf(const std::string& xs, const std::string& y, const std::string& inputs) {
  return "d = ai.onnx.preview.training.Gradient <xs = [\"" + xs + "\"], y = \"" + y + "\"> (" + inputs +
         ")\n";
}

TEST(TrainingInfo, WhatIsNoStepOfOursIsRefusedByName) {
  const std::string step = "s = Mul(rate, d)\nw2 = Sub(w, s)";
  expectRefusal({{gradientOf("w", "loss", "u") + step, "w: w2", kRate}},
                "TrainingInfoProto 0: node '' (ai.onnx.preview.training::Gradient): it differentiates at 'u' "
                "in the place of 'w'");
  expectRefusal({{gradientOf("w", "y", "w") + step, "w: w2", kRate}}, "trains with a loss of one number");
  expectRefusal({{gradientOf("w", "loss\", zs = [\"y\"], more = \"", "w, y") + step, "w: w2", kRate}},
                "it holds 'y', which follows from 'w'");
  expectRefusal(
      {{gradientOf("w", "size", "w") + "size = ReduceSum<keepdims = 0>(d)\n" + step, "w: w2", kRate}},
      "'size' depends on its own gradient by 'w': gradients of gradients are not supported");
  expectRefusal({{kSgd + "\nother = ReduceSum<keepdims = 0>(w)\n"
                         "e = ai.onnx.preview.training.Gradient <xs = [\"u\"], y = \"other\"> (u)",
                  "w: w2", kRate}},
                "it differentiates 'other', another one 'loss': pipeshard trains with one loss");
  expectRefusal(
      {{"d, e = ai.onnx.preview.training.Gradient <xs = [\"w\", \"w\"], y = \"loss\"> (w, w)\n" + step,
        "w: w2", kRate}},
      "'w' has a gradient already");
  expectRefusal({{gradientOf("w", "loss", "w, x") + step, "w: w2", kRate}},
                "2 inputs and 1 outputs, but 1 xs");
}

TEST(TrainingInfo, StepsThatNeedChangedWeightsAreRefused) {
  const std::string second =
      "e = ai.onnx.preview.training.Gradient <xs = [\"u\"], y = \"loss\"> (u)\ns = Mul(rate, e)\nu2 = Sub(u, "
      "s)";
  expectRefusal({{kSgd, "w: w2", kRate}, {second, "u: u2", kRate}},
                "TrainingInfoProto 1: it needs 'loss' once more, after the step before has changed 'w'",
                kBoth);
}

TEST(TrainingInfo, BindingsOfWhatIsNotThereAreRefused) {
  expectRefusal({{kSgd, "w: w2, y: w2", kRate}}, "update_binding sets 'y', which is no initializer");
  expectRefusal({{kSgd, "w: w2, q: w2", kRate}}, "update_binding names 'q', which is neither");
  expectRefusal({{kSgd, "w: w2, w: w2", kRate}}, "update_binding sets 'w' twice");
  expectRefusal({{kSgd + "\ny = Neg(d)", "w: w2", kRate}},
                "the algorithm defines 'y', which the model defines already");
  expectRefusal({{"w2 = Mul(w, rate)", "w: w2", kRate}}, "sets no weight by a gradient of 'loss'");
  expectRefusal({{kSgd + "\nmore = Mul(w, q)", "w: w2", kRate}},
                "TrainingInfoProto 0: node '' (onnx::Mul) reads 'q', which nothing defines");
  onnx::ModelProto no_loss = withInfos({{"w2 = Mul(w, rate)", "w: w2", kRate}}, "loss = Mul(x, w)");
  no_loss.mutable_graph()->mutable_output(0)->clear_type();
  EXPECT_ERROR(optimizerOfInfo(parseModel(no_loss.SerializeAsString(), "", "text")), ErrorCode::kBadModel,
               "neither a Gradient operator nor a loss");
  onnx::ModelProto model = withInfos({{kSgd, "w: w2", kRate}});
  bind("nobody: w2", *model.mutable_training_info(0)->mutable_initialization_binding());
  EXPECT_ERROR(optimizerOfInfo(parseModel(model.SerializeAsString(), "", "text")), ErrorCode::kBadModel,
               "initialization_binding sets 'nobody', which is no initializer");
  model.mutable_training_info(0)->mutable_initialization_binding(0)->set_key("w");
  EXPECT_ERROR(optimizerOfInfo(parseModel(model.SerializeAsString(), "", "text")), ErrorCode::kBadModel,
               "initialization_binding sets 'w' to 'w2', which `initialization` does not make");
}

}  // namespace
}  // namespace pipeshard::testing
