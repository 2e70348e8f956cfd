#include "runtime/validation/validate.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/execute/dump.h"
#include "runtime/files/tensor_file.h"
#include "runtime/validation/own_rounding.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

TEST(RelativeError, IsTheRatioOfNorms) {
  EXPECT_DOUBLE_EQ(relativeError(std::vector<double>{3, 4.5}, std::vector<double>{3, 4}, 5, 2, 1e-3), 0.1);
}

TEST(RelativeError, OfATinyTensorIsJudgedAgainstAllTensors) {
  // norm 1e-12 among tensors of norm 100 and 400 elements: the floor is 1e-3 * 100 * sqrt(4/400) = 1e-2.
  const std::vector<double> want = {1e-12, 0, 0, 0};
  const std::vector<double> got = {2e-6, 0, 0, 0};
  EXPECT_NEAR(relativeError(got, want, 100, 400, 1e-3), 2e-4, 1e-9);
  EXPECT_NEAR(relativeError(got, want, 100, 400, 0.25), 8e-7, 1e-12);
}

TEST(RelativeError, OfNanAndOfDifferentSizesIsInfinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isinf(relativeError(std::vector<double>{nan}, std::vector<double>{1}, 1, 1, 1e-3)));
  EXPECT_TRUE(std::isinf(relativeError(std::vector<double>{1}, std::vector<double>{nan}, 1, 1, 1e-3)));
  EXPECT_TRUE(std::isinf(relativeError(std::vector<double>{1}, std::vector<double>{1, 2}, 1, 1, 1e-3)));
}

TEST(UpdateDifference, OfASkippedUpdateIsOneHoweverSmallTheStep) {
  const std::vector<double> before = {0.001, 0.002};
  const std::vector<double> want = {0.001 + 1e-9, 0.002 + 2e-9};
  EXPECT_NEAR(largestUpdateDifference(before, want, before, 0x1p-23), 1, 0.5);
  EXPECT_EQ(largestUpdateDifference(want, want, before, 0x1p-23), 0);
}

TEST(UpdateDifference, AllowsTheRoundingOfTheParameter) {
  const std::vector<double> before = {1};
  const std::vector<double> want = {1 + 1e-3};
  const std::vector<double> got = {1 + 1e-3 + 0x1p-23};
  EXPECT_EQ(largestUpdateDifference(got, want, before, 0x1p-23), 0);
  EXPECT_GT(largestUpdateDifference(std::vector<double>{1 + 1.01e-3}, want, before, 0x1p-23), 5e-3);
}

// The second element is made of a state in which two terms have cancelled.
TEST(UpdateDifference, IsBeyondWhatTheStateIsKnownBy) {
  const std::vector<double> before = {0, 0}, want = {0.1, 1e-4}, got = {0.1, 1.0001e-4};
  EXPECT_NEAR(largestUpdateDifference(got, want, before, 0x1p-23), 1e-4, 1e-6);
  EXPECT_EQ(largestUpdateDifference(got, want, before, 0x1p-23, std::vector<double>{0, 2e-4}), 0);
  EXPECT_NEAR(largestUpdateDifference(got, want, before, 0x1p-23, std::vector<double>{2e-4, 0}), 1e-4, 1e-6);
}

TEST(UpdateDifference, OfNanIsInfinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isinf(largestUpdateDifference(std::vector<double>{nan}, std::vector<double>{1},
                                                 std::vector<double>{0}, 0x1p-23)));
}

// Where old state and gradient cancel, one rounding of their sum is large against what is left.
TEST(StateDifference, AllowsTheRoundingOfTermsThatCancel) {
  const std::vector<double> before = {1, -2};
  const std::vector<double> want = {1e-3, 1};
  const std::vector<double> got = {1e-3 + 0x1p-24, 1};
  EXPECT_EQ(largestStateDifference(got, want, before, 0x1p-23), 0);
  EXPECT_GT(largestStateDifference(std::vector<double>{1e-3 + 0x1p-21, 1}, want, before, 0x1p-23), 1e-4);
  EXPECT_GT(largestStateDifference(got, want, std::vector<double>{1e-3, 1}, 0x1p-23), 1e-5)
      << "nothing cancels";
}

TEST(StateDifference, OfAStateThatWasNotUpdatedIsWhatItShouldHaveChangedBy) {
  const std::vector<double> zero = {0, 0}, want = {1e-9, -2e-9};
  EXPECT_NEAR(largestStateDifference(zero, want, zero, 0x1p-23), 1, 1e-6);
  const std::vector<double> before = {1}, decayed = {0.9};
  EXPECT_NEAR(largestStateDifference(before, decayed, before, 0x1p-23), 0.11, 0.01);
}

TEST(StateDifference, OfNanIsInfinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> one = {1}, none = {nan};
  EXPECT_TRUE(std::isinf(largestStateDifference(none, one, one, 0x1p-23)));
  EXPECT_TRUE(std::isinf(largestStateDifference(one, none, one, 0x1p-23)));
}

// A gradient of zeros has error 1.
TEST(PromisedBounds, CanBeMissed) {
  for (const DataType precision : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16}) {
    ValidateSpec spec;
    setPromisedBounds(precision, spec);
    EXPECT_LE(spec.bound, 0.1) << dataTypeName(precision);
    EXPECT_LE(spec.imported_bound, 0.1) << dataTypeName(precision);
    EXPECT_GE(spec.imported_bound, spec.bound) << dataTypeName(precision);
  }
}

// The bias of a multiple choice: the terms that cancel in its gradient are a hundred times as large as the
// average element, and float64 has left one of their last bits.
TEST(PromisedBounds, HaveRoomForTermsThatCancel) {
  ValidateSpec spec;
  setPromisedBounds(DataType::kFloat64, spec);
  const double norm_of_all = 0.32;
  const int64_t elements = 92000;
  const auto error = [&](double got) {
    return relativeError(std::vector<double>{got}, std::vector<double>{0}, norm_of_all, elements, spec.floor);
  };
  EXPECT_LE(error(0x1p-56), spec.bound);
  EXPECT_GT(error(1e-9), spec.bound);  // no rounding: a millionth of the average element
}

TEST(ValidationReport, PassesOnlyWhenEveryTensorDoes) {
  ValidationReport report;
  report.tensors.push_back({.kind = ComparedKind::kGradient,
                            .name = "w",
                            .state = "",
                            .step = 1,
                            .error = 1e-6,
                            .largest_difference = 0,
                            .bound = 1e-5});
  EXPECT_TRUE(report.passed());
  report.tensors.push_back({.kind = ComparedKind::kGradient,
                            .name = "v",
                            .state = "",
                            .step = 1,
                            .error = 1e-4,
                            .largest_difference = 0,
                            .bound = 1e-5});
  EXPECT_FALSE(report.passed());
}

// Neither "equals" nor "differs", unless another tensor does.
TEST(ValidationReport, SaysWhatIsNotANumberOnOneDeviceEither) {
  const auto lost = [](const std::string& name, int step) {
    TensorComparison tensor;
    tensor.name = name;
    tensor.step = step;
    tensor.error = std::numeric_limits<double>::infinity();
    tensor.bound = 1e-5;
    tensor.not_a_number = true;
    return tensor;
  };
  ValidationReport report;
  EXPECT_EQ(report.firstNotANumber(), nullptr);
  report.tensors = {lost("v", 2), lost("w", 1)};
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(mayBeRounding(report));
  EXPECT_FALSE(mayBeRounding(report, true));
  ASSERT_NE(report.firstNotANumber(), nullptr);
  EXPECT_EQ(report.firstNotANumber()->name, "w");
  report.tensors.push_back(lost("u", 1));
  report.tensors.back().not_a_number = false;  // on one side alone
  EXPECT_EQ(report.firstNotANumber(), nullptr);
  EXPECT_FALSE(report.passed());
}

ValidationReport differing(ComparedKind kind, double error, bool passes_in_float64) {
  ValidationReport report;
  report.tensors.push_back(
      {.kind = kind, .name = "w", .state = "", .step = 1, .error = error, .bound = 1e-5});
  report.in_float64 = Float64Check{.passed = passes_in_float64, .compared = 1, .worst = {}};
  return report;
}

TEST(ValidationReport, PassesByFloat64OnlyWhereRoundingCanBeSoLarge) {
  EXPECT_TRUE(differing(ComparedKind::kGradient, 4e-3, true).passed());
  EXPECT_FALSE(differing(ComparedKind::kGradient, 4e-3, true).withinBounds());
  EXPECT_FALSE(differing(ComparedKind::kGradient, 4e-3, false).passed());
  EXPECT_FALSE(differing(ComparedKind::kGradient, 0.3, true).passed());
  EXPECT_FALSE(differing(ComparedKind::kGradient, std::numeric_limits<double>::infinity(), true).passed());
  EXPECT_FALSE(differing(ComparedKind::kUpdatedParameter, 4e-3, true).passed());
  EXPECT_FALSE(differing(ComparedKind::kUpdatedState, 4e-3, true).passed());
  EXPECT_FALSE(differing(ComparedKind::kImportedGradient, 4e-3, true).passed());
}

TEST(ValidationReport, PassesInANarrowTypeWhereOneDeviceIsAsFarFromFloat64) {
  const auto passes = [](ComparedKind kind, double own, bool in_float64) {
    ValidationReport report = differing(kind, 0.3, in_float64);
    report.in_float64->own = OwnRounding{"w", 0.3, own};
    return report.passed();
  };
  EXPECT_TRUE(passes(ComparedKind::kGradient, 0.25, true));
  EXPECT_TRUE(passes(ComparedKind::kGradient, 0.15, true));
  EXPECT_FALSE(passes(ComparedKind::kGradient, 0.09, true));
  EXPECT_FALSE(passes(ComparedKind::kGradient, 0, true));
  EXPECT_FALSE(passes(ComparedKind::kGradient, 0.25, false));
  EXPECT_FALSE(passes(ComparedKind::kUpdatedParameter, 0.25, true));
  EXPECT_FALSE(passes(ComparedKind::kGradient, std::numeric_limits<double>::infinity(), true));
  // A gradient that is lost is 1 away; float64 has no copies of weights in which it could be lost.
  EXPECT_FALSE((OwnRounding{"w", 1, 0.54}).explains());
}

// The worst gradient on one device is what those of the planned job are held against.
TEST(OwnRounding, IsMeasuredOnOneDevice) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, std::vector<float> a, std::vector<float> b, float scale) {
    const std::string directory = folder.file(name);
    std::filesystem::create_directory(directory);
    for (std::vector<float>* gradient : {&a, &b}) {
      for (float& element : *gradient) element *= scale;
    }
    const std::vector<TensorView> tensors = {{"gradient/a", DataType::kFloat32, {2}, a.data()},
                                             {"gradient/b", DataType::kFloat32, {2}, b.data()},
                                             {"measure/loss_scale", DataType::kFloat32, {}, &scale}};
    writeTensorFile(directory + "/" + dumpFileName(1, RankId(0)), tensors);
    return directory;
  };
  const std::string narrow = write("narrow", {3, 5}, {0, 11}, 1024), wide = write("wide", {3, 4}, {0, 10}, 2);
  ValidationReport report;
  for (const std::string name : {"a", "b"})
    report.tensors.push_back({.kind = ComparedKind::kGradient,
                              .name = name,
                              .state = "",
                              .step = 1,
                              .error = name == "a" ? 0.2 : 0.3,
                              .bound = 0.1});
  const OwnRounding own = ownRounding(report, narrow, wide, 0);
  EXPECT_EQ(own.name, "b");
  EXPECT_DOUBLE_EQ(own.own, 0.2) << "that of a; b's is 0.1";
  EXPECT_TRUE(own.explains());
  report.tensors.push_back(
      {.kind = ComparedKind::kForwardState, .name = "a", .state = "", .step = 1, .error = 0.2, .bound = 0.1});
  EXPECT_FALSE(ownRounding(report, narrow, wide, 0).explains()) << "not reached by rounding";
}

}  // namespace
}  // namespace pipeshard
