#include "ir/operators/initializer_role.h"

#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

using enum InitializerRole;

class Roles : public ::testing::Test {
 protected:
  Roles() : builder_(graph_) {
    graph_.opset_imports = {{"", 18}};
    x_ = builder_.addValue("x", DataType::kFloat32, {2, 2});
    graph_.inputs = {x_};
  }
  ValueId weight(const std::string& name, const Shape& shape, Metadata metadata = {}) {
    const ValueId id =
        builder_.addConstant(name, makeConstant<float>(shape, std::vector<float>(elementCount(shape), 0.5F)));
    graph_.value(id).metadata = std::move(metadata);
    return id;
  }
  ValueId read(const std::string& op_type, std::vector<ValueId> inputs, DataType type = DataType::kFloat32) {
    const ValueId last = inputs.back();
    builder_.addNode("", op_type, std::move(inputs), {builder_.addValue("y", type, {2, 2})});
    return last;
  }
  InitializerRole role(ValueId id) const { return initializerRoles(graph_)[id.index()]; }

  static Metadata kind(const std::string& text) {
    return {{"pkg.torch.export.graph_signature.InputSpec.kind", text}};
  }
  Graph graph_;
  GraphBuilder builder_;
  ValueId x_;
};

TEST_F(Roles, AreWhatTheExporterMarks) {
  const ValueId token = read("Max", {x_, weight("token", {2}, kind("PARAMETER"))});
  const ValueId table = read("Mul", {x_, weight("table", {2}, kind("BUFFER"))});
  const ValueId number = read("Mul", {x_, weight("val_3", {2})});
  const ValueId limit = read("Min", {x_, weight("val_4", {2})});
  EXPECT_EQ(role(token), kParameter);
  EXPECT_EQ(role(table), kBuffer);
  EXPECT_EQ(role(number), kConstant);
  EXPECT_EQ(role(limit), kSetting);
  EXPECT_EQ(role(x_), kNone);
}

TEST_F(Roles, TheUserDecidesFirst) {
  const ValueId frozen = read("MatMul", {x_, weight("fc.weight", {2, 2}, {{kTrainedMark, "no"}})});
  const ValueId trained = read("Max", {x_, weight("least", {2}, {{kTrainedMark, "yes"}})});
  EXPECT_EQ(role(frozen), kFrozen);
  EXPECT_EQ(role(trained), kParameter);
}

// A module without parameters has buffers all the same.
TEST_F(Roles, AMarkedBufferIsNoWeightWhereNoParameterIsMarked) {
  EXPECT_EQ(role(read("MatMul", {x_, weight("rotation", {2, 2}, kind("BUFFER"))})), kBuffer);
}

TEST_F(Roles, WithoutMarksNamesAndPlacesTell) {
  EXPECT_EQ(role(read("MatMul", {x_, weight("w", {2, 2})})), kParameter);
  EXPECT_EQ(role(read("Mul", {x_, weight("rotary.inv_freq", {2})})), kConstant);
  EXPECT_EQ(role(read("Mul", {x_, weight("onnx::Mul_12", {})})), kConstant);
  const ValueId folded = weight("folded", {2});
  markFolded(graph_.value(folded));
  EXPECT_EQ(role(read("Mul", {x_, folded})), kConstant);
  EXPECT_EQ(role(read("Pow", {x_, weight("val_1", {})})), kSetting);
}

// As of the TorchScript exporter, which has other names for its own.
TEST_F(Roles, ANumberByANameOfTheModuleIsAParameter) {
  const ValueId own = read("Mul", {x_, weight("temp", {})}), other = read("Mul", {x_, weight("tau", {})});
  markModuleTensor(graph_.value(own));
  EXPECT_EQ(role(own), kParameter);
  EXPECT_EQ(role(other), kConstant);
}

TEST_F(Roles, WhatNoOperatorReadsAsAWeightIsUnclear) {
  const ValueId condition = builder_.addValue("condition", DataType::kBool, {2, 2});
  EXPECT_EQ(role(read("Where", {condition, x_, weight("mask_token", {2})})), kUnclear);
  EXPECT_EQ(role(read("Max", {x_, weight("least", {2})})), kUnclear);
  const ValueId positions = weight("positions", {2, 2});
  read("Pad", {positions, x_});
  EXPECT_EQ(role(positions), kUnclear);
  // No gradient reaches these.
  EXPECT_EQ(role(read("Greater", {x_, weight("threshold", {2})}, DataType::kBool)), kSetting);
  const ValueId mean = weight("mean", {2}), variance = weight("variance", {2});
  read("BatchNormalization", {x_, weight("scale", {2}), weight("shift", {2}), mean, variance});
  EXPECT_EQ(role(mean), kSetting);
  EXPECT_EQ(role(variance), kSetting);
}

}  // namespace
}  // namespace pipeshard
