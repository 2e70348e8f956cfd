#include "runtime/checkpoint/resume_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

KeptTensors keptOf(const std::vector<std::string>& names) {
  KeptTensors kept;
  for (const std::string& name : names) kept[name] = {DataType::kFloat32, {4, 3}};
  return kept;
}

Checkpoint savedOf(const std::vector<std::string>& names) {
  Checkpoint checkpoint;
  checkpoint.directory = "saved/step-000003";
  for (const std::string& name : names)
    checkpoint.tensors.push_back({name, DataType::kFloat32, {4, 3}, {{0, {0, 0}, {4, 3}}}});
  return checkpoint;
}

void expectRefused(const KeptTensors& kept, const Checkpoint& saved, const std::string& reason) {
  EXPECT_ERROR(requireFits(kept, saved), ErrorCode::kConfiguration, "checkpoint saved/step-000003 " + reason);
}

constexpr const char* kExport = "`pipeshard export saved/step-000003 -o trained.onnx`";

TEST(ResumeCheck, WhatAPlanKeepsGoesOnAndStatesOfAnotherOptimizerAreNamed) {
  const std::vector<std::string> all = {"forward_state/norm.running_mean", "parameter/w",
                                        "state/w.first_moment", "state/w.second_moment"};
  EXPECT_THAT(requireFits(keptOf(all), savedOf(all)), IsEmpty());
  EXPECT_THAT(requireFits(keptOf({all[0], all[1]}), savedOf(all)),
              ElementsAre("first_moment", "second_moment"));
  EXPECT_THAT(
      requireFits(keptOf({"parameter/w"}), savedOf({"parameter/w", "state/loss_scale",
                                                    "state/loss_scale.steps", "state/w.moving_average"})),
      ElementsAre("loss_scale", "moving_average"));
}

// The model's file has them, too: their values before training.
TEST(ResumeCheck, NothingThatWasLearnedIsLost) {
  std::vector<std::string> names = {"parameter/w"};
  for (const char* name : {"a", "b", "c", "d", "e"})
    names.push_back(fmt::format("parameter/layers.{}", name));
  const Checkpoint saved = savedOf(names);
  expectRefused(
      keptOf({"parameter/w"}), saved,
      "has 5 parameters that this plan does not train: layers.a, layers.b, layers.c, layers.d and 1 "
      "more. The plan would take what the model's file has, and what was learned would be lost. Plan "
      "with the --freeze, --train and --loss of the plan that saved it; or export it");
  EXPECT_ERROR(requireFits(keptOf({"parameter/w"}), saved), ErrorCode::kConfiguration, kExport);
  expectRefused(keptOf({"parameter/w"}), savedOf({"forward_state/norm.running_mean", "parameter/w"}),
                "has 1 running statistic that this plan does not keep: norm.running_mean. ");
}

TEST(ResumeCheck, WhatTheSavingPlanDidNotTrainIsNamed) {
  const Checkpoint saved = savedOf({"parameter/w", "state/w.first_moment"});
  const KeptTensors kept =
      keptOf({"parameter/w", "parameter/layers.a", "state/w.first_moment", "state/layers.a.first_moment"});
  expectRefused(kept, saved,
                "has not 1 parameter that this plan trains: layers.a. The plan that saved it did not train "
                "them: it froze them (--freeze, --train)");
  EXPECT_ERROR(requireFits(kept, saved), ErrorCode::kConfiguration, kExport);
  expectRefused(keptOf({"forward_state/norm.running_mean", "parameter/w"}), saved,
                "has not 1 running statistic that this plan keeps: norm.running_mean. ");
}

TEST(ResumeCheck, StatesThatThePlanKeepsBesideAreNamedByTheirOption) {
  const Checkpoint saved = savedOf({"parameter/w", "state/w.momentum"});
  expectRefused(keptOf({"parameter/w", "state/w.momentum", "state/w.moving_average"}), saved,
                "has no moving averages of parameters, which this plan's --ema keeps");
  expectRefused(keptOf({"parameter/w", "state/loss_scale", "state/loss_scale.steps", "state/w.momentum"}),
                saved, "has no scale of the loss, which this plan's --precision float16 keeps");
  expectRefused(keptOf({"parameter/w", "state/w.first_moment", "state/w.second_moment"}), saved,
                "has no first_moment, second_moment, which this plan's --optimizer keeps");
  expectRefused(keptOf({"parameter/w", "state/w.first_moment", "state/w.moving_average"}), saved,
                "has no first_moment, which this plan's --optimizer keeps");
}

TEST(ResumeCheck, OtherTypesShapesAndModelsAreTold) {
  const Checkpoint saved = savedOf({"parameter/w", "state/w.momentum"});
  KeptTensors kept = keptOf({"parameter/w", "state/w.momentum"});
  kept["parameter/w"].data_type = DataType::kFloat64;
  expectRefused(kept, saved, "has 'parameter/w' as float32, this plan keeps it as float64. ");
  kept["parameter/w"] = {DataType::kFloat32, {5, 3}};
  expectRefused(kept, saved, "has 'parameter/w' of [4,3], this plan of [5,3]: it was made of another model");
  kept = keptOf({"parameter/w", "state/w.momentum"});
  kept["state/w.momentum"].shape = {4, 1};
  expectRefused(kept, saved,
                "has 'state/w.momentum' of [4,3], this plan of [4,1]: it was made with another ");
  expectRefused(keptOf({"parameter/other"}), saved,
                "has none of the parameters that this plan trains (other): it was made of another model");
}

// A batch of 16 in the place of 8, a window in the place of a batch, and windows of as many examples.
TEST(ResumeCheck, StepsThatTakeOtherExamplesOrMakeOtherUpdatesAreRefusedWithBothNumbers) {
  Checkpoint saved = savedOf({"parameter/w"});
  saved.step = 3;
  const auto expect = [&](const StepExtent& plan, const std::string& reason) {
    EXPECT_ERROR(requireSameExtent(plan, saved), ErrorCode::kConfiguration, reason);
    EXPECT_ERROR(requireSameExtent(plan, saved), ErrorCode::kConfiguration, kExport);
  };
  EXPECT_NO_THROW(requireSameExtent({16, 1}, saved));  // an older one does not say
  saved.extent = {8, 1};
  EXPECT_NO_THROW(requireSameExtent({8, 1}, saved));
  expect(
      {16, 1},
      "checkpoint saved/step-000003 is of step 3 of a plan whose steps are 8 examples and 1 update: it has "
      "done 24 examples and 3 updates, or fewer examples where epochs have ended in a shorter batch. This "
      "plan's steps are 16 examples and 1 update: 3 of them stand "
      "for 48 examples and 3 updates");
  expect({16, 1}, "(`--dim batch=8`, where");
  expect({32, 4}, "3 of them stand for 96 examples and 12 updates");
  expect({32, 4}, "(`--dim batch=8` and a synchronous schedule (1f1b), where");
  saved.extent = {32, 4};
  expect({32, 8}, "it has done 96 examples and 12 updates");
  expect({32, 8}, "(`--schedule pipedream --window 4 --dim batch=8`, where");
}

}  // namespace
}  // namespace pipeshard
