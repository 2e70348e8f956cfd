// Schedules as text: round trips, torch's forms, and what is refused where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "tests/partition/schedules/placed_transfers.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/schedules/schedule_oracle.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ScheduleCsv, EveryScheduleComesBackAsItWas) {
  for (const auto& [p, m] : std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {2, 3}, {3, 6}, {4, 10}}) {
    for (const Schedule& schedule : schedulesOf(p, m)) {
      SCOPED_TRACE(schedule.name());
      EXPECT_EQ(ordersFromCsv(scheduleToCsv(schedule.orders), "f.csv"), schedule.orders);
      const ScheduleOrders transfers = withTransfers(schedule);
      EXPECT_EQ(ordersFromCsv(scheduleToCsv(transfers), "f.csv"), transfers);
      if (schedule.asynchronous()) continue;
      const Schedule read = scheduleFromCsv(scheduleToCsv(transfers), "f.csv");
      EXPECT_EQ(read.spec, ScheduleSpec::ofFile());
      EXPECT_EQ(read.orders, schedule.orders);
      EXPECT_EQ(read.stages, schedule.stages);
      EXPECT_EQ(read.microbatches, m);
      EXPECT_EQ(read.rank_of_stage, schedule.rank_of_stage);
      EXPECT_EQ(read.forward_only, schedule.forward_only);
    }
  }
}

// As torch writes them: empty cells for idle time, blanks and line ends of other systems, actions that mean
// nothing here.
TEST(ScheduleCsv, ReadsTorchsFiles) {
  const Schedule schedule = scheduleFromCsv(
      "0UNSHARD,0F0,,0SEND_F0, 0F1 ,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0I1,0W1,0REDUCE_GRAD,0RESHARD,\r\n"
      ",1RECV_F0,1F0,1RECV_F1,( 1F1; 1B0 ) OVERLAP_F_B,1SEND_B0,1B1,1SEND_B1\r\n\r\n",
      "f.csv");
  EXPECT_EQ(scheduleToCsv(schedule.orders), "0F0,0F1,0B0,0I1,0W1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
}

TEST(ScheduleCsv, PlacementIsThatOfTheFile) {
  constexpr PipelineRankId kFirst(0), kSecond(1), kThird(2);
  EXPECT_THAT(scheduleFromCsv("0F0,2F0,2B0,0B0\n1F0,1B0", "f.csv").rank_of_stage,
              ElementsAre(kFirst, kSecond, kFirst));
  EXPECT_THAT(scheduleFromCsv("2F0,2B0\n1F0,1B0\n0F0,0B0\n", "f.csv").rank_of_stage,
              ElementsAre(kThird, kSecond, kFirst));
}

std::string messageOf(std::string_view text) {
  try {
    scheduleFromCsv(text, "f.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "accepted";
}

TEST(ScheduleCsv, SaysWhereSomethingIsNoAction) {
  EXPECT_THAT(messageOf("0F0,0B0\n1F0, 1X0,1B0\n"),
              HasSubstr("f.csv:2:6: found \"1X0\"; expected an action: stage, one of F B I W"));
  EXPECT_THAT(messageOf("F0"), HasSubstr("f.csv:1:1: found \"F0\""));
  EXPECT_THAT(messageOf("0F0,0B"),
              HasSubstr("f.csv:1:5: found \"0B\"; expected a microbatch behind it, as 2F0"));
  EXPECT_THAT(messageOf("0F0,0B0x"), HasSubstr("f.csv:1:5: found \"0B0x\""));
  EXPECT_THAT(messageOf("0F0,0B-1"), HasSubstr("f.csv:1:5: found \"0B-1\""));
  EXPECT_THAT(messageOf("-1F0"), HasSubstr("f.csv:1:1: found \"-1F0\""));
  EXPECT_THAT(messageOf("0F0,0BW0"), HasSubstr("f.csv:1:5: found \"0BW0\""));
  EXPECT_THAT(messageOf("0F99999999999999999999"),
              HasSubstr("f.csv:1:3: found \"99999999999999999999\"; expected a number up to 1048575"));
  EXPECT_THAT(messageOf("9999999F0"),
              HasSubstr("f.csv:1:1: found \"9999999F0\"; expected a number up to 1048575"));
  EXPECT_THAT(messageOf(std::string(100, 'x')), HasSubstr("found \"" + std::string(40, 'x') + "\";"));
}

TEST(ScheduleCsv, SaysWhatIsWrongWithAPair) {
  for (const char* pair :
       {"(0F0;0B0)", "(0F0;0B0)OVERLAP", "(0F0)OVERLAP_F_B", "(0F0;0B0", "()OVERLAP_F_B"}) {
    EXPECT_THAT(messageOf(pair), HasSubstr("f.csv:1:1: found \"" + std::string(pair) +
                                           "\"; expected a pair of a forward and a backward pass"));
  }
  EXPECT_THAT(messageOf("0F0,(0F1;0B0;0B1)OVERLAP_F_B"), HasSubstr("f.csv:1:10: found \"0B0;0B1\""));
  EXPECT_THAT(messageOf("0F0,(0F1;0UNSHARD)OVERLAP_F_B"),
              HasSubstr("f.csv:1:10: found \"0UNSHARD\"; expected a pass of an overlapped pair"));
  EXPECT_THAT(messageOf("0F0,(0F1;)OVERLAP_F_B"), HasSubstr("f.csv:1:10: found \"\""));
}

TEST(ScheduleCsv, RefusesFilesThatAreNoSchedule) {
  EXPECT_THAT(messageOf(""), HasSubstr("f.csv: found no action; expected a line per pipeline rank"));
  EXPECT_THAT(messageOf(",,\n\n"), HasSubstr("f.csv: found no action"));
  EXPECT_THAT(messageOf("0F0,0B0\n,\n1F0,1B0"),
              HasSubstr("f.csv:2:1: found a line without actions; expected those of pipeline rank 1"));
  EXPECT_THAT(messageOf("0F0,0B0\n2F0,2B0"), HasSubstr("f.csv: schedule file: found no pass of stage 1"));
  EXPECT_THAT(messageOf("0F0,0B0\n0F1,0B1"), HasSubstr("rank 1 runs 0F1, but stage 0 is on rank 0"));
  EXPECT_THAT(messageOf("0F0,0F1,0B0"), HasSubstr("stage 0 needs either B1 or both I1 and W1"));
  EXPECT_THAT(messageOf("0F0,0SEND_F0"), "accepted");
  EXPECT_THAT(messageOf("0SEND_F0"), HasSubstr("expected"));
  EXPECT_THAT(messageOf("1048575F1048575"), HasSubstr("found no pass of stage 0"));
  EXPECT_THAT(messageOf("0F1048575"), HasSubstr("0F0 is missing"));
  EXPECT_THAT(messageOf(scheduleToCsv(makeSchedule("pipedream", 2, 4).orders)),
              HasSubstr("f.csv: found 0UPDATE0; expected passes only"));
}

}  // namespace
}  // namespace pipeshard
