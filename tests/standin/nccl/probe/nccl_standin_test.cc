// The stand-in of NCCL itself, over processes: what is right is not reported, and each mistake is, whatever
// the schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/standin/run_command.h"

namespace {

using standin_test::Ended;
using standin_test::runCommand;
using ::testing::HasSubstr;

Ended runProbe(const std::string& environment, int ranks, const std::string& scenario) {
  const std::string command =
      fmt::format("env -u CUDA_VISIBLE_DEVICES STANDIN_DEVICES=8 {} timeout 30 {} {} {} 2>&1", environment,
                  PIPESHARD_NCCL_PROBE, ranks, scenario);
  return runCommand(command);
}

struct Scenario {
  std::string name;
  std::string said;
  std::string environment = "";
  int ranks = 2;
};

class NcclStandIn : public ::testing::TestWithParam<std::string> {
 protected:
  static Ended run(const Scenario& scenario) {
    return runProbe(fmt::format("STANDIN_MODE={} {}", GetParam(), scenario.environment), scenario.ranks,
                    scenario.name);
  }
  static void expectEnd(const Scenario& scenario, int code, const std::string& said) {
    const Ended ended = run(scenario);
    EXPECT_EQ(ended.code, code) << scenario.name << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(said)) << scenario.name;
    EXPECT_THAT(ended.output, HasSubstr(scenario.said)) << scenario.name;
  }
};

TEST_P(NcclStandIn, WhatIsRightIsNotReported) {
  const std::vector<Scenario> right = {
      {"collectives", "", "", 3},
      {"collectives", "", "", 2},
      {"ring", "", "", 4},
      {"ring", "", "", 2},
      {"pairs", ""},
      {"hosts_wait", ""},
      {"non_blocking", "", "", 3},
      {"split", "", "", 4},
      {"split_non_blocking", "", "", 4},
      {"two_orders", ""},
      {"group_of_streams", ""},
      {"visible_devices", ""},
      {"ring", "", "STANDIN_NCCL_RESIDENT=1", 3},
  };
  for (const Scenario& scenario : right) {
    const Ended ended = run(scenario);
    EXPECT_EQ(ended.code, 0) << scenario.name << "\n" << ended.output;
    EXPECT_EQ(ended.output, "") << scenario.name;
  }
}

TEST_P(NcclStandIn, CallsThatDoNotMatchAreReported) {
  const std::string soon = "STANDIN_NCCL_SECONDS=5";
  const std::vector<Scenario> mistakes = {
      {"other_collective", "ncclAllGather 0 of 4 float32", soon},
      {"other_size", "ncclAllReduce 0 of 5 float32 by sum", soon},
      {"other_type", "ncclAllReduce 0 of 4 int32 by sum", soon},
      {"other_operator", "ncclAllReduce 0 of 4 float32 by maximum", soon},
      {"other_root", "ncclBroadcast 0 of 4 float32 from root 1", soon},
      {"other_message", "ncclRecv 0 of 8 float32 from rank 0", soon},
  };
  for (const Scenario& scenario : mistakes) {
    expectEnd(scenario, 99, "calls that do not match: rank ");
  }
}

TEST_P(NcclStandIn, EveryMistakeIsReported) {
  const std::string soon = "STANDIN_NCCL_SECONDS=0.4";
  const std::vector<Scenario> mistakes = {
      {"host_memory", "memory that is not the device's"},
      {"default_stream", "the default stream is used"},
      {"overlap", "what it sends and what it receives overlap"},
      {"eight_bits", "of 4 float8e5m2 by sum at rank 0"},
      {"no_such_rank", "there is no such rank among 2"},
      {"no_such_communicator", "no communicator, or destroyed"},
      {"group_end", "ncclGroupEnd without ncclGroupStart"},
      {"unwritten", "reads what nobody wrote"},
      {"unordered", ""},
      {"overwritten", "are not ordered"},
      {"outside", "writes outside: byte 256 of a block of 256"},
      {"left", "a communicator is left at exit"},
      {"sends_meet", "is in ncclSend 0 of 12 float32 to rank ", soon},
      {"one_communicator_two_streams", "comes behind ncclSend 0 of 12 float32 to rank", soon},
      {"not_aborted", "has failed, blocks its streams and is not aborted", soon},
      {"no_room", "finds no room: 1 kernels are resident", soon + " STANDIN_NCCL_RESIDENT=1"},
      {"creation_order", "communicators made in two orders"},
      {"missing_rank", "ncclCommInitRank of rank 0 of communicator", soon},
      {"twice", "joins twice", soon},
      {"other_count", " at a rank that came before", soon},
      {"early", ""},
      {"in_progress", "is ncclInProgress"},
  };
  for (const Scenario& scenario : mistakes) {
    expectEnd(scenario, 99, "stand-in: ");
  }
}

TEST_P(NcclStandIn, AProgramFindsOutWhatGoesWrong) {
  const std::vector<Scenario> faults = {
      {"vanished", "rank 1 has vanished: process", "", 3},
      {"injected", "an error that STANDIN_NCCL_ERROR asked for", "STANDIN_NCCL_ERROR=0:2:2"},
      {"aborted", "", "", 3},
      {"lonely", "", "", 3},
      {"one_gpu", "rank 0 and rank 1 are both on GPU 0"},
      {"one_gpu_allowed", "are both on GPU 0: allowed here", "STANDIN_NCCL_SHARE_GPU=1"},
  };
  for (const Scenario& scenario : faults) {
    expectEnd(scenario, 0, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, NcclStandIn, ::testing::Values("lazy", "eager"),
                         [](const auto& info) { return info.param; });

}  // namespace
