#include "onnx_import/exporter/mistaken_calls.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/onnx_import/exporter/exported_module.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MistakenCallsTest : public ExportedModule {};

TEST_F(MistakenCallsTest, AMeanThatIsWrittenAsAnAssignmentIsRefused) {
  for (const bool trains : {false, true}) {
    begin();
    node("ScatterElements", {}, "scatter_reduce", "aten.scatter_reduce.two",
         "%zeros, 0, %expand, %relu, mean");
    EXPECT_ERROR(refuseMistakenCalls(graph, trains), ErrorCode::kBadModel,
                 "the module takes the mean (scatter_reduce with 'mean')");
  }
  graph.nodes.back().attributes["reduction"] = std::string("add");
  EXPECT_NO_THROW(refuseMistakenCalls(graph, true));
  begin();
  node("ScatterElements", {}, "scatter_reduce", "aten.scatter_reduce.two", "%zeros, 0, %expand, %relu, sum");
  EXPECT_NO_THROW(refuseMistakenCalls(graph, true));
}

// As the TorchScript exporter writes pairwise_distance, its exponents folded or not.
TEST_F(MistakenCallsTest, ADistanceWithoutTheAbsoluteValueIsRefused) {
  const auto write = [&](double p, double root, bool folded) {
    begin();
    graph.producer_name = "pytorch";
    GraphBuilder builder(graph);
    const auto number = [&](const char* name, double value) {
      return builder.addConstant(name, makeScalar(DataType::kFloat32, value));
    };
    const auto add = [&](const char* op_type, const std::vector<ValueId>& inputs) {
      const ValueId made = builder.addValue(op_type, DataType::kFloat32, {});
      builder.addNode("", op_type, inputs, {made});
      return made;
    };
    const ValueId power = add("Pow", {add("Sub", {last, number("other", 2)}), number("p", p)});
    const ValueId sum = add("ReduceSum", {power});
    const ValueId exponent =
        folded ? number("root", root)
               : add("Div", {number("one", 1), add("Add", {number("q", p), number("eps", 1e-6)})});
    add("Pow", {sum, exponent});
  };
  for (const bool folded : {true, false}) {
    for (const double p : {1.0, 3.0, 1.5}) {
      write(p, 1 / (p + 1e-6), folded);
      EXPECT_ERROR(refuseMistakenCalls(graph, false), ErrorCode::kBadModel,
                   "has left out the absolute value");
    }
    write(2, 1 / (2 + 1e-6), folded);
    EXPECT_NO_THROW(refuseMistakenCalls(graph, true));
  }
  for (const double p : {3.0, 5.0}) {
    write(p, 1 / p, true);  // somebody's own
    EXPECT_NO_THROW(refuseMistakenCalls(graph, true));
  }
}

TEST_F(MistakenCallsTest, GradientsByFrequencyAreRefusedWhereThereAreGradients) {
  parameter("words", {5, 4});
  node("Gather", {findValue(graph, "words")}, "embedding", "aten.embedding.default",
       "%p_words, %x, -1, True");
  EXPECT_ERROR(refuseMistakenCalls(graph, true), ErrorCode::kBadModel, "scale_grad_by_freq=True");
  EXPECT_NO_THROW(refuseMistakenCalls(graph, false));
}

TEST_F(MistakenCallsTest, ChangedBuffersAreThoseOfNoBatchNormalisation) {
  graph.metadata = {{"pkg.torch.export.ExportedProgram.graph_signature",
                     "\n# outputs\nadd: BUFFER_MUTATION target='calls'\n"
                     "getitem_3: BUFFER_MUTATION target='norm.running_mean'\n"
                     "add_1: BUFFER_MUTATION target='norm.num_batches_tracked'\n"
                     "getitem_5: BUFFER_MUTATION target='other.running_mean'\n"}};
  EXPECT_THAT(changedBuffers(graph),
              ElementsAre("calls", "norm.running_mean", "norm.num_batches_tracked", "other.running_mean"));
  node("BatchNormalization",
       {weight("norm.weight", {4}), weight("norm.bias", {4}), weight("norm.running_mean", {4}),
        weight("norm.running_var", {4})},
       "norm", "aten.batch_norm.default", "%x");
  EXPECT_THAT(changedBuffers(graph), ElementsAre("calls", "other.running_mean"));
  graph.metadata.clear();
  EXPECT_THAT(changedBuffers(graph), IsEmpty());
}

// As scaled_dot_product_attention is written: the zeros for NaN are in the file, or (older) not.
TEST_F(MistakenCallsTest, WhatAnAttentionsMaskHidesIsHiddenByInfinity) {
  const char* attention = "aten.scaled_dot_product_attention.default";
  for (const bool has_zeros : {true, false}) {
    for (const char* function : {attention, "aten.where.self"}) {
      begin();
      const auto number = [&](const char* name, double value) {
        return GraphBuilder(graph).addConstant(name, makeScalar(DataType::kFloat32, value));
      };
      const ValueId zero = number("zero", 0), lowest = number("lowest", -3.4028234663852886e38);
      node("Where", {zero, lowest}, "attention", function, "%q, %k, %v, %mask");
      if (has_zeros) node("IsNaN", {}, "attention", attention, "%q, %k, %v, %mask");
      const bool is_hidden = has_zeros && function == attention;
      EXPECT_EQ(hideWholeRows(graph), is_hidden ? 1 : 0) << function;
      const Constant* hidden = graph.constant(graph.nodes[0].inputs[2]);
      EXPECT_EQ(numericElements(*hidden)[0] == -std::numeric_limits<double>::infinity(), is_hidden);
    }
  }
}

}  // namespace
}  // namespace pipeshard
