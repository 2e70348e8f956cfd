// Files of tf2onnx, by its names.
#include "onnx_import/exporter/converter_traps.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/module_mode.h"
#include "onnx_import/exporter/module_parameters.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ConvertedFile : public ::testing::Test {
 protected:
  ConvertedFile() : builder_(graph_) {
    graph_.opset_imports = {{"", 18}};
    graph_.producer_name = "tf2onnx";
  }
  ValueId weight(const std::string& name, const Shape& shape, const std::vector<float>& elements) {
    return builder_.addConstant(name, makeConstant<float>(shape, elements));
  }
  ValueId value(const std::string& name) { return builder_.addValue(name, DataType::kFloat32, {}); }
  void node(const std::string& name, const std::string& op_type, std::vector<ValueId> inputs) {
    graph_.node(builder_.addNode("", op_type, std::move(inputs), {value(name + ":0")})).name = name;
  }

  Graph graph_;
  GraphBuilder builder_;
};

TEST_F(ConvertedFile, FoldedBatchNormalizationsAreNamed) {
  node("m/bn/batchnorm/mul_1", "Mul", {value("x"), weight("m/bn/batchnorm/mul:0", {2}, {1, 2})});
  node("m/bn/batchnorm/add_1", "Add", {value("h"), weight("const_fold_opt__7", {2}, {1, 2})});
  node("Conv__8", "Conv", {value("i"), weight("m/conv/merged_input:0", {2, 1, 1, 1}, {1, 2})});
  node("m/dense/MatMul", "MatMul", {value("j"), weight("m/dense/ReadVariableOp:0", {2, 1}, {1, 2})});
  EXPECT_THAT(foldedNormalizations(graph_),
              ElementsAre("'m/bn/batchnorm/mul:0'", "'const_fold_opt__7'", "'m/conv/merged_input:0'"));
  EXPECT_THAT(converterTraps(graph_), Contains(HasSubstr("folded into 'm/bn/batchnorm/mul:0'")));
  EXPECT_ERROR(setTrainingMode(graph_), ErrorCode::kConfiguration,
               "tf2onnx has folded the batch normalisations of this file into 'm/bn/batchnorm/mul:0'");
  graph_.producer_name = "pytorch";
  EXPECT_THAT(foldedNormalizations(graph_), IsEmpty());
  EXPECT_THAT(converterTraps(graph_), IsEmpty());
}

// In pieces: the layer's own tensors are there.
TEST_F(ConvertedFile, ANormalizationInPiecesIsNotFolded) {
  node("m/bn/batchnorm/mul", "Mul", {value("r"), weight("m/bn/batchnorm/mul/ReadVariableOp:0", {2}, {1, 2})});
  node("m/conv/merge", "Conv", {value("i"), weight("const_fold_opt__8", {2, 1, 1, 1}, {1, 2})});
  EXPECT_THAT(foldedNormalizations(graph_), IsEmpty());
  setTrainingMode(graph_);
}

TEST_F(ConvertedFile, WhatTheConverterLeavesOutIsSaid) {
  EXPECT_THAT(converterTraps(graph_),
              ElementsAre(AllOf(HasSubstr("leaves out zero biases"), HasSubstr("trainable=False"))));
}

TEST_F(ConvertedFile, ATensorOfSeveralLayersIsNamed) {
  const ValueId kernel = weight("m/dense/ReadVariableOp:0", {2, 2}, {1, 2, 3, 4});
  node("m/dense/MatMul", "MatMul", {value("x"), kernel});
  node("m/dense/Tensordot/MatMul", "MatMul", {value("h"), kernel});
  EXPECT_THAT(converterTraps(graph_), Not(Contains(HasSubstr("one tensor for several layers"))));
  node("m/dense_1/MatMul", "MatMul", {value("i"), kernel});
  EXPECT_THAT(converterTraps(graph_), Contains(HasSubstr("'m/dense/ReadVariableOp:0' (m/dense, m/dense_1)")));
}

// extract_model keeps the nodes' traces, onnxslim their names.
TEST_F(ConvertedFile, AFileWhoseMarksAToolHasTakenAwayIsTold) {
  graph_.producer_name = "pytorch";
  const ValueId w = weight("fc.weight", {2, 2}, {1, 2, 3, 4});
  node("node_linear", "MatMul", {value("x"), w});
  EXPECT_THAT(converterTraps(graph_), ElementsAre(HasSubstr("has taken the exporter's marks out")));
  setExportedKind(graph_.value(w), "PARAMETER");
  EXPECT_THAT(converterTraps(graph_), IsEmpty());
  graph_.value(w).metadata.clear();
  graph_.nodes[0].name = "/fc/MatMul";
  EXPECT_THAT(converterTraps(graph_), IsEmpty());
  graph_.producer_name = "onnx.utils.extract_model";
  graph_.nodes[0].metadata = {{"pkg.torch.onnx.stack_trace", "File \"m.py\""}};
  EXPECT_THAT(converterTraps(graph_), ElementsAre(HasSubstr("has taken the exporter's marks out")));
}

TEST_F(ConvertedFile, WeightsThatMayBeBuffersAreNamed) {
  graph_.producer_name = "pytorch";
  const ValueId image = value("image");
  graph_.inputs = {image};
  node("/Sub", "Sub", {image, weight("mean", {1, 3, 1, 1}, {1, 2, 3})});
  node("/Div", "Div", {findValue(graph_, "/Sub:0"), weight("std", {1, 3, 1, 1}, {1, 2, 3})});
  node("/Conv", "Conv", {findValue(graph_, "/Div:0"), weight("blur.kernel", {3, 1, 1, 1}, {1, 1, 1})});
  graph_.nodes.back().attributes["group"] = int64_t{3};
  node("/Mul", "Mul", {findValue(graph_, "/Conv:0"), weight("scale", {1, 3, 1, 1}, {1, 2, 3})});
  const ValueId pe = weight("body.pe", {1, 3, 1, 1}, {1, 2, 3});
  node("/Add", "Add", {findValue(graph_, "/Mul:0"), pe});
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(mean|std|blur.kernel|body.pe)$'"));
  graph_.value(pe).metadata = {{kTrainedMark, "yes"}};
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(mean|std|blur.kernel)$'"));
  setExportedKind(graph_.value(findValue(graph_, "scale")), "PARAMETER");
  EXPECT_EQ(likelyBuffers(graph_), "");
}

// An image without its batch.
TEST_F(ConvertedFile, ANormalizationBehindAViewIsSeen) {
  graph_.producer_name = "pytorch";
  const ValueId image = value("image");
  graph_.inputs = {image};
  node("/Unsqueeze", "Unsqueeze", {image});
  node("/Sub", "Sub", {findValue(graph_, "/Unsqueeze:0"), weight("mean", {1, 3, 1, 1}, {1, 2, 3})});
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(mean)$'"));
  graph_.nodes[0].op_type = "Flatten";
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(mean)$'"));
  graph_.nodes[0].op_type = "Relu";
  EXPECT_EQ(likelyBuffers(graph_), "");
}

// The scalers of scikit-learn, or a file that somebody has written by hand.
TEST_F(ConvertedFile, BuffersOfAnyProducerAreNamed) {
  const ValueId image = value("image");
  graph_.inputs = {image};
  node("Sub", "Sub", {image, weight("mean", {3}, {1, 2, 3})});
  for (const char* producer : {"skl2onnx", "", "jax2onnx"}) {
    graph_.producer_name = producer;
    EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(mean)$'")) << producer;
  }
}

TEST_F(ConvertedFile, WeightsThatAreCalledLikeBuffersAreNamed) {
  graph_.producer_name = "OnnxScript";
  ValueId last = value("sound");
  const auto scaledBy = [&](const std::string& name) {
    node("of_" + name, "Relu", {last});
    node("by_" + name, "Mul", {findValue(graph_, "of_" + name + ":0"), weight(name, {2}, {1, 2})});
    last = findValue(graph_, "by_" + name + ":0");
  };
  for (const char* name :
       {"filter_net.weight", "window_bias", "basis", "melody", "stft.forward_basis_buffer", "hann_window",
        "melscale_fbanks80", "kaldi_mel_banks", "model/mel_basis:0", "stft_conv_weights"})
    scaledBy(name);
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(stft.forward_basis_buffer|hann_window|"
                                               "melscale_fbanks80|kaldi_mel_banks|model/mel_basis:0|"
                                               "stft_conv_weights)$'"));
}

// Positions, by whatever name; a learned table is none.
TEST_F(ConvertedFile, ATableOfSinesIsNamed) {
  graph_.producer_name = "pytorch";
  constexpr int64_t kRows = 6, kWidth = 8;
  std::vector<float> sines;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kWidth / 2; ++k) {
      const double angle = static_cast<double>(row) / std::pow(100.0, 0.25 * static_cast<double>(k));
      sines.push_back(static_cast<float>(std::sin(angle)));
      sines.push_back(static_cast<float>(std::cos(angle)));
    }
  }
  std::vector<float> learned = sines;
  learned[11] += 0.01F;
  const ValueId hidden = value("hidden");
  node("relu", "Relu", {hidden});
  node("Add", "Add", {findValue(graph_, "relu:0"), weight("pos_embed.table", {1, kRows, kWidth}, sines)});
  node("Add_1", "Add", {findValue(graph_, "Add:0"), weight("pos_embed", {1, kRows, kWidth}, learned)});
  EXPECT_THAT(likelyBuffers(graph_), HasSubstr("--freeze '^(pos_embed.table)$'"));
}

// Masks on a weight, on an activation and as "1 - mask", and an adjacency.
TEST_F(ConvertedFile, MasksAreTakenForConstants) {
  graph_.producer_name = "pytorch";
  const ValueId keep = weight("keep", {3}, {1, 0, 1}), causal = weight("m", {2, 2}, {1, 0, 1, 1});
  const ValueId large = weight("large", {2, 2}, {2, 0, 1, 1}), ones = weight("gamma", {3}, {1, 1, 1});
  const ValueId token = weight("token", {3}, {0, 1, 0}), matrix = weight("fc.weight", {2, 2}, {1, 0, 1, 1});
  const ValueId adjacency = weight("A", {2, 2}, {1, 1, 0, 1}), turn = weight("turn", {2, 2}, {0, 1, 1, 0});
  const ValueId number = weight("one", {}, {1}), half = weight("half", {3}, {0, 1, 1});
  node("/Mul", "Mul", {value("h"), keep});
  node("/Sub", "Sub", {number, keep});
  node("/Cast", "Cast", {causal});
  node("/Mul_1", "Mul", {matrix, findValue(graph_, "/Cast:0")});
  node("/Mul_2", "Mul", {value("i"), large});
  node("/Mul_3", "Mul", {value("j"), ones});
  node("/Add", "Add", {value("k"), token});
  node("/MatMul", "MatMul", {adjacency, value("l")});
  node("/MatMul_1", "MatMul", {turn, value("n")});
  node("/Mul_4", "Mul", {value("o"), half});
  node("/Add_1", "Add", {value("p"), half});
  takeConstants(graph_);
  std::vector<std::string> taken;
  for (const Value& value : graph_.values) {
    if (isTakenForConstant(value)) taken.push_back(value.name);
  }
  EXPECT_THAT(taken, ElementsAre("keep", "m", "A"));
  EXPECT_THAT(untoldParameters(graph_), HasSubstr("they are trained: large, gamma, token, turn, half (--f"));
  graph_.value(ones).metadata = {{kTrainedMark, "yes"}};
  EXPECT_THAT(untoldParameters(graph_), Not(HasSubstr("gamma")));
  graph_.producer_name = "";
  EXPECT_EQ(untoldParameters(graph_), "");
}

// nn.Parameter(torch.tensor(0.7)): alike in the outermost module and in others. Numbers of the exporter, and
// what is called like a constant, are none.
TEST_F(ConvertedFile, NumbersOfTheModuleAreParametersInFilesOfTorchScript) {
  for (const char* file : {"pytorch /", "pytorch node_", "tf2onnx /"}) {
    SCOPED_TRACE(file);
    const std::string producer(file, std::string_view(file).find(' ')), path = file + producer.size() + 1;
    graph_ = Graph();
    graph_.opset_imports = {{"", 18}};
    graph_.producer_name = producer;
    ValueId last = value("x");
    for (const char* name : {"temp", "alpha", "attn.tau", "eps", "p", "onnx::Mul_12", "12", "_v_3"}) {
      node(path + name, "Mul", {last, weight(name, {}, {0.5F})});
      last = findValue(graph_, path + name + ":0");
    }
    restoreParameters(graph_);
    std::vector<std::string> marked;
    for (const Value& value : graph_.values) {
      if (isModuleTensor(value)) marked.push_back(value.name);
    }
    if (std::string_view(file) == "pytorch /")
      EXPECT_THAT(marked, ElementsAre("temp", "alpha", "attn.tau"));
    else
      EXPECT_THAT(marked, IsEmpty());
  }
}

// What stands on the right is the weight of a layer in files of others.
TEST_F(ConvertedFile, AMatrixOfZerosAndOnesIsOfPyTorchsMasks) {
  for (const char* producer : {"pytorch", ""}) {
    graph_ = Graph();
    graph_.opset_imports = {{"", 18}};
    graph_.producer_name = producer;
    const ValueId matrix = weight("A", {2, 2}, {1, 1, 0, 1});
    node("/MatMul", "MatMul", {value("h"), matrix});
    takeConstants(graph_);
    EXPECT_EQ(isTakenForConstant(graph_.value(matrix)), graph_.producer_name == "pytorch");
  }
}

// binary_cross_entropy_with_logits, as the older exporter writes it.
TEST_F(ConvertedFile, WeightsOfABinaryCrossEntropyAreConstants) {
  graph_.producer_name = "pytorch";
  const auto at = [&](const std::string& name) { return findValue(graph_, name + ":0"); };
  const ValueId one = weight("one", {1}, {1}), positive = weight("loss.pos_weight", {2}, {2, 5});
  const ValueId all = weight("loss.weight", {2}, {3, 4}), scale = weight("scale", {2}, {3, 4});
  const ValueId target = value("y");
  node("scaled", "Mul", {value("h"), scale});
  node("p", "Sigmoid", {at("scaled")});
  node("log", "Log", {at("p")});
  node("rest", "Sub", {one, at("p")});
  node("untrue", "Sub", {one, target});
  node("log_rest", "Log", {at("rest")});
  node("hit", "Mul", {target, at("log")});
  node("weighed", "Mul", {at("hit"), positive});
  node("miss", "Mul", {at("untrue"), at("log_rest")});
  node("sum", "Add", {at("weighed"), at("miss")});
  node("neg", "Neg", {at("sum")});
  node("loss", "Mul", {all, at("neg")});
  takeConstants(graph_);
  EXPECT_TRUE(isTakenForConstant(graph_.value(positive)));
  EXPECT_TRUE(isTakenForConstant(graph_.value(all)));
  EXPECT_FALSE(isTakenForConstant(graph_.value(scale)));
}

TEST_F(ConvertedFile, AZeroRecurrentBiasIsNamed) {
  const ValueId w = weight("W", {1, 1, 2}, {1, 2}), r = weight("R", {1, 1, 1}, {1});
  const ValueId zero = weight("B", {2, 2}, {1, 0, 2, 0}), both = weight("B_both", {2, 2}, {1, 0, 2, 3});
  node("RNN__1", "RNN", {value("x"), w, r, both});
  EXPECT_THAT(converterTraps(graph_), Not(Contains(HasSubstr("recurrent layers"))));
  node("RNN__2", "RNN", {value("h"), w, r, zero});
  EXPECT_THAT(converterTraps(graph_), Contains(HasSubstr("half for the state is zero: 'B':")));
}

}  // namespace
}  // namespace pipeshard
