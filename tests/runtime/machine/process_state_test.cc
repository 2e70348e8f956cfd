// How processes look from outside, as files that a test makes.
#include "runtime/machine/process_state.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

TEST(ProcessStates, AreReadFromTheKernelsFiles) {
  const TemporaryFolder folder;
  const ControlGroupFiles files{folder.path() / "proc", folder.path() / "groups"};
  const auto stateOf = [&](const std::string& letter) {
    folder.write("proc/7/stat", "7 (a name (T) T) " + letter + " 1 7 7 0\n");
    return readProcessState(7, files);
  };
  EXPECT_EQ(stateOf("S"), ProcessState::kUnknown);
  EXPECT_EQ(stateOf("T"), ProcessState::kStopped);
  EXPECT_EQ(stateOf("t"), ProcessState::kTraced);
  EXPECT_EQ(stateOf("D"), ProcessState::kInsideKernel);
  folder.write("proc/7/cgroup", "0::/job\n");
  folder.write("groups/cgroup.controllers", "memory\n");
  folder.write("groups/job/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_EQ(stateOf("D"), ProcessState::kFrozen);
  EXPECT_EQ(readProcessState(8, files), ProcessState::kUnknown);  // it is gone
  EXPECT_EQ(readProcessState(0, files), ProcessState::kUnknown);
}

TEST(ProcessStates, TravelByName) {
  for (const ProcessState state : {ProcessState::kUnknown, ProcessState::kStopped, ProcessState::kTraced,
                                   ProcessState::kInsideKernel, ProcessState::kFrozen})
    EXPECT_EQ(processStateOf(nameOf(state)), state);
  EXPECT_FALSE(processStateOf("asleep"));
  EXPECT_EQ(describe(ProcessState::kStopped), " (it is stopped, as by SIGSTOP)");
  EXPECT_EQ(describe(ProcessState::kUnknown), "");
}

}  // namespace
}  // namespace pipeshard
