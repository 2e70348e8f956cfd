#include "onnx_import/exporter/mistaken_calls.h"

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

}  // namespace
}  // namespace pipeshard
