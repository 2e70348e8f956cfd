// Files that hold more of a training step than its forward pass, from the outside (onnx_import/forms).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

std::string formFile(const std::string& name) {
  return PIPESHARD_SOURCE_DIR "/tests/golden/forms/" + name + ".onnx";
}

CommandResult validateForm(const std::string& name, const std::vector<std::string>& options) {
  std::vector<std::string> line = {"validate", formFile(name), "--cluster", "1x2", "--stages", "uniform:2"};
  line.insert(line.end(), options.begin(), options.end());
  return runPipeshard(line);
}

TEST(Forms, GradientsOfAFileAreComparedWhateverItsForm) {
  for (const char* name : {"joint_inputs", "ort_training", "step_adam", "step_momentum"}) {
    const CommandResult result = validateForm(name, {"--weights", "random"});
    EXPECT_EQ(result.exit_code, 0) << name << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("gradient in the file")) << name;
  }
}

TEST(Forms, TheOptimizerOfAFileIsTakenOver) {
  const CommandResult taken = validateForm("step_adamw_inside", {});
  EXPECT_EQ(taken.exit_code, 0) << taken.output << taken.errors;
  EXPECT_THAT(taken.output, HasSubstr("the optimizer is the file's: adamw:lr=0.001"));
  const CommandResult other = validateForm("step_adamw_inside", {"--optimizer", "sgd:lr=0.5"});
  EXPECT_EQ(other.exit_code, 0) << other.output << other.errors;
  EXPECT_THAT(other.output, HasSubstr("sgd:lr=0.5"));
}

TEST(Forms, ATrainingInfoProtoIsTrainedAsItSays) {
  for (const auto& [name, optimizer] :
       {std::pair("training_info_momentum", "sgd:lr=0.1,momentum=0.8,weight_decay=0.001,nesterov=1"),
        std::pair("training_info_adamw", "adamw:lr=0.01"), std::pair("training_info_two_steps", "sgd:lr=0.1"),
        std::pair("described_adam", "adam:lr=0.01,beta1=0.8")}) {
    const CommandResult form = runPipeshard({"inspect", formFile(name)});
    EXPECT_EQ(form.exit_code, 0) << name << form.errors;
    EXPECT_THAT(form.output, HasSubstr("forward pass with a TrainingInfoProto")) << name;
    EXPECT_THAT(form.output, HasSubstr("update_binding sets b1, b2, w1, w2 by " + std::string(optimizer)));
    EXPECT_THAT(form.output, HasSubstr("training: every operator on the way has a gradient")) << name;
    const CommandResult result = validateForm(name, {"--dim", "batch=8", "--steps", "2"});
    EXPECT_EQ(result.exit_code, 0) << name << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("the optimizer is the file's: " + std::string(optimizer))) << name;
  }
  const CommandResult plain = validateForm("training_info_plain", {"--dim", "batch=8"});
  EXPECT_EQ(plain.exit_code, 0) << plain.output << plain.errors;
  EXPECT_THAT(plain.output, HasSubstr("gradient in the file"));
  const CommandResult other =
      validateForm("training_info_adamw", {"--dim", "batch=8", "--optimizer", "sgd:lr=0.5"});
  EXPECT_EQ(other.exit_code, 0) << other.output << other.errors;
  EXPECT_THAT(other.output, HasSubstr("sgd:lr=0.5"));
}

TEST(Forms, WhatIsNotUnderstoodIsRefusedByName) {
  const CommandResult update = validateForm("step_amsgrad", {"--weights", "random"});
  EXPECT_EQ(update.exit_code, 65) << update.output;
  EXPECT_THAT(update.errors, HasSubstr("it keeps 3 states of each weight"));
  const CommandResult rate = validateForm("step_sgd_rate", {"--weights", "random"});
  EXPECT_EQ(rate.exit_code, 64) << rate.output;
  EXPECT_THAT(rate.errors, HasSubstr("its learning rate is the input 'input_4'"));
  const CommandResult weights = validateForm("joint_inputs", {});
  EXPECT_EQ(weights.exit_code, 64) << weights.output;
  EXPECT_THAT(weights.errors, HasSubstr("9 inputs are weights of this file"));
  const CommandResult optimizer = validateForm("ort_optimizer", {});
  EXPECT_EQ(optimizer.exit_code, 65) << optimizer.output;
  EXPECT_THAT(optimizer.errors, HasSubstr("optimizer of ONNX Runtime's training artifacts alone"));
}

TEST(Forms, InspectSaysWhichAndWhatPlanningWouldSay) {
  const CommandResult form = runPipeshard({"inspect", formFile("ort_training")});
  EXPECT_EQ(form.exit_code, 0) << form.errors;
  EXPECT_THAT(form.output, HasSubstr("ONNX Runtime training model"));
  EXPECT_THAT(form.output, HasSubstr("4 gradients are added to buffers"));
  EXPECT_THAT(form.output, HasSubstr("training: every operator on the way has a gradient"));
  EXPECT_THAT(form.output, HasSubstr("microbatches: the batch (batch_size) can be cut"));
  const CommandResult plain = runPipeshard({"inspect", PIPESHARD_SOURCE_DIR "/examples/gpt2.onnx"});
  EXPECT_EQ(plain.exit_code, 0) << plain.errors;
  EXPECT_THAT(plain.output, HasSubstr("forward pass with loss"));
}

}  // namespace
}  // namespace pipeshard
