// The stand-in itself: a backend that is right is not reported, and each mistake is, whatever the schedule.
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
  const std::string command = fmt::format("STANDIN_MODE={} STANDIN_TWINS={} timeout 60 {} {} 2>&1", mode,
                                          PIPESHARD_PROBE_TWIN, PIPESHARD_PROBE, mistake);
  return runCommand(command);
}

struct Mistake {
  std::string name;
  std::string report;
};

class StandIn : public ::testing::TestWithParam<std::string> {};

TEST_P(StandIn, ARightBackendIsNotReported) {
  const Ended ended = runProbe(GetParam(), "none");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output, "");
}

TEST_P(StandIn, EveryMistakeIsReported) {
  const std::vector<Mistake> mistakes = {
      {"staging", "are not ordered"},
      {"loaded",
       GetParam() == "lazy" ? "reads what nobody wrote" : ""},  // by its schedule unordered, or not there
      {"computed", ""},
      {"host", ""},
      {"unwritten", "reads what nobody wrote"},
      {"barrier", "race in shared memory"},
      {"half", "not all threads reach"},
      {"outside", "writes outside: byte 20 of a block of 20"},
      {"misaligned", "misaligned access of 8 bytes"},
      {"threads", "a launch that no device takes"},
      {"default", "the default stream is used"},
      {"freed", "freed memory"},
      {"untimed", "an event that keeps no time"},
      {"early", "an event that the host has not waited for"},
      {"destroyed", "is destroyed, and nobody has waited for what it was given"},
      {"leak", "1 blocks of 1400 bytes are left at exit"},
  };
  for (const auto& [name, report] : mistakes) {
    const Ended ended = runProbe(GetParam(), name);
    EXPECT_TRUE(ended.code == 99 || ended.code == 3) << name << ": " << ended.code << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("stand-in: ")) << name;
    EXPECT_THAT(ended.output, HasSubstr(report)) << name;
  }
}

Ended runIpcProbe(const std::string& mode, const std::string& mistake) {
  return runCommand("STANDIN_MODE=" + mode + " timeout 60 " PIPESHARD_IPC_PROBE " " + mistake + " 2>&1");
}

TEST_P(StandIn, ProcessesThatShareMemoryRightAreNotReported) {
  const Ended ended = runIpcProbe(GetParam(), "none");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output, "");
}

TEST_P(StandIn, EveryMistakeOfProcessesThatShareMemoryIsReported) {
  const std::vector<Mistake> mistakes = {
      {"unwritten", "reads what nobody wrote"},
      {"unordered", "of process "},  // by its schedule not there, or not ordered
      {"overwritten", "are not ordered (read-write)"},
      {"freed", "reads freed memory"},
      {"closed", "memory of another process that is not open"},
      {"own", "a handle is opened by the process that made it"},
      {"left", "1 blocks of other processes are left open at exit"},
      {"written", "writes memory of another process"},
      {"timed", "an event for other processes keeps no time"},
  };
  for (const auto& [name, report] : mistakes) {
    const Ended ended = runIpcProbe(GetParam(), name);
    EXPECT_EQ(ended.code, 99) << name << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("stand-in: ")) << name;
    EXPECT_THAT(ended.output, HasSubstr(report)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, StandIn, ::testing::Values("lazy", "eager"),
                         [](const auto& info) { return info.param; });

}  // namespace
