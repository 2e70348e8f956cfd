// The stand-in of cuDNN: calls that are right are not reported, and each mistake is, whatever the schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <fmt/format.h>

#include "tests/standin/run_command.h"

namespace {

using standin_test::Ended;
using standin_test::runCommand;
using ::testing::HasSubstr;

Ended runProbe(const std::string& mode, const std::string& mistake) {
  return runCommand(
      fmt::format("STANDIN_MODE={} timeout 60 {} {} 2>&1", mode, PIPESHARD_CUDNN_PROBE, mistake));
}

struct Mistake {
  std::string name;
  std::string report;
};

class CudnnStandIn : public ::testing::TestWithParam<std::string> {};

TEST_P(CudnnStandIn, RightCallsAreNotReported) {
  const Ended ended = runProbe(GetParam(), "none");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output, "");
}

TEST_P(CudnnStandIn, EveryMistakeIsReported) {
  const std::vector<Mistake> mistakes = {
      {"default", "cudnnConvolutionForward: the default stream, or none"},
      {"types", "different types"},
      {"gap", "a tensor with gaps"},
      {"sizes", "an output of other sizes"},
      {"tf32", "a math type that lets float32 be TF32"},
      {"pad", "a pad as wide as the window"},
      {"unwritten", "reads what nobody wrote"},
      {"host", "the image is not in the device's memory"},
      {"misaligned", "the image is at no multiple of 16 bytes"},
      {"workspace", "are needed"},
      {"factors", "factors that are not known here"},
      {"overlap", "overlaps with the image"},
      {"unordered", GetParam() == "lazy" ? "are not ordered" : ""},  // or not there yet
      {"algorithm", "cudnnConvolutionBackwardData: an algorithm that cannot do this"},
      {"running", "running moments, which are not ONNX's"},
      {"half", "one of the saved moments without the other"},
      {"leak", "a tensor descriptor is left at exit"},
      {"twice", "a descriptor is destroyed that is none"},
  };
  for (const auto& [name, report] : mistakes) {
    const Ended ended = runProbe(GetParam(), name);
    EXPECT_TRUE(ended.code == 99 || ended.code == 3) << name << ": " << ended.code << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("stand-in: ")) << name;
    EXPECT_THAT(ended.output, HasSubstr(report)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, CudnnStandIn, ::testing::Values("lazy", "eager"),
                         [](const auto& info) { return info.param; });

}  // namespace
