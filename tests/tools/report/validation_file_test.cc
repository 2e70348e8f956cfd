#include "tools/report/validation_file.h"

#include <limits>

#include <gtest/gtest.h>

#include "ir/base/amounts.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tools/report/report_samples.h"

namespace pipeshard {
namespace {

TEST(ValidationFile, GivesThePageThatValidateGave) {
  ValidationReport report = validatedRun(4);
  report.tensors.push_back(compared("broken", std::numeric_limits<double>::infinity(), 1e-5));
  report.tensors.back().kind = ComparedKind::kOptimizerState;
  report.tensors.back().state = "first_moment";
  const ValidationReport read = validationFromJson(validationToJson(report));
  const Plan plan = chunkedPlan(4, 2, 8);
  EXPECT_EQ(renderReport({.plan = plan, .validation = &read}),
            renderReport({.plan = plan, .validation = &report}));
  EXPECT_EQ(validationToJson(read), validationToJson(report));
  EXPECT_FALSE(read.passed());
}

// Of a job on GPUs, each rank's; else there is no such column.
TEST(ValidationFile, KeepsWhatRanksComputeOn) {
  ValidationReport report = validatedRun(4);
  const Plan plan = chunkedPlan(4, 2, 8);
  EXPECT_EQ(renderReport({.plan = plan, .validation = &report}).find(">Device<"), std::string::npos);
  report.planned.ranks[RankId(2)].device = "cuda:2 (NVIDIA H100 PCIe)";
  report.planned.ranks[RankId(2)].peak_device_bytes = 37'000'000;
  const ValidationReport read = validationFromJson(validationToJson(report));
  const std::string page = renderReport({.plan = plan, .validation = &read});
  EXPECT_NE(page.find(">Device<"), std::string::npos);
  EXPECT_NE(page.find("cuda:2 (NVIDIA H100 PCIe)"), std::string::npos);
  EXPECT_NE(page.find(">GPU, measured<"), std::string::npos);
  EXPECT_NE(page.find(formatBytes(37'000'000)), std::string::npos);
}

TEST(ValidationFile, IsMissedInSilenceAndRefusedWithItsName) {
  const TemporaryFolder folder;
  EXPECT_FALSE(readValidation(folder.path().string()).has_value());
  folder.write(kValidationFileName, "{\"version\": 1}");
  EXPECT_ERROR(readValidation(folder.path().string()), ErrorCode::kConfiguration, kValidationFileName);
  folder.write(kValidationFileName, "{\"version\": 2}");
  EXPECT_ERROR(readValidation(folder.path().string()), ErrorCode::kVersionMismatch, "validate again");
  EXPECT_ERROR(
      validationFromJson(
          "{\"version\": 1, \"ranks\": 1, \"steps\": [], \"memory\": [], \"tensors\": [{\"kind\": 99}]}"),
      ErrorCode::kConfiguration, "kind: found 99");
  EXPECT_ERROR(validationFromJson(R"({"version": 1, "ranks": 1e300})"), ErrorCode::kConfiguration,
               "ranks: found 1e+300; expected an integer");
}

}  // namespace
}  // namespace pipeshard
