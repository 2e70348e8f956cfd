// The published orders, byte by byte; names, options and their errors.
#include "partition/families/make_schedule.h"

#include <fstream>
#include <sstream>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "tests/expect_error.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/schedules/schedule_oracle.h"

namespace pipeshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text(const std::vector<Action>& order) {
  std::vector<std::string> actions;
  for (const Action& action : order) actions.push_back(actionToString(action));
  return fmt::format("{}", fmt::join(actions, " "));
}

std::vector<std::string> texts(std::string_view name, int ranks, int microbatches) {
  std::vector<std::string> result;
  for (const std::vector<Action>& order : makeSchedule(name, ranks, microbatches).orders)
    result.push_back(text(order));
  return result;
}

std::vector<int64_t> peaks(std::string_view name, int ranks, int microbatches) {
  std::vector<int64_t> result;
  for (const std::vector<Action>& order : makeSchedule(name, ranks, microbatches).orders)
    result.push_back(peakActivations(order));
  return result;
}

// The orders for four ranks and eight microbatches that several other systems agree on.

TEST(PublishedOrder, GPipe) {
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(
        texts("gpipe", 4, 8)[s],
        fmt::format(
            "{0}F0 {0}F1 {0}F2 {0}F3 {0}F4 {0}F5 {0}F6 {0}F7 {0}B0 {0}B1 {0}B2 {0}B3 {0}B4 {0}B5 {0}B6 {0}B7",
            s));
  }
  EXPECT_THAT(peaks("gpipe", 4, 8), ElementsAre(8, 8, 8, 8));
}

TEST(PublishedOrder, OneForwardOneBackward) {
  EXPECT_THAT(texts("1f1b", 4, 8),
              ElementsAre("0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7",
                          "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7",
                          "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7",
                          "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7"));
  EXPECT_THAT(peaks("1f1b", 4, 8), ElementsAre(4, 3, 2, 1));
}

TEST(PublishedOrder, Interleaved) {
  const auto expected = ElementsAre(
      "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 "
      "4B5 4B6 4B7 0B4 0B5 0B6 0B7",
      "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 1B3 5B4 "
      "5B5 5B6 5B7 1B4 1B5 1B6 1B7",
      "2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 6B4 6F7 "
      "6B5 6B6 6B7 2B4 2B5 2B6 2B7",
      "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 "
      "7B6 7F7 7B7 3B4 3B5 3B6 3B7");
  EXPECT_THAT(texts("interleaved:v=2", 4, 8), expected);
  EXPECT_THAT(texts("interleaved:group=4", 4, 8), expected);
  EXPECT_THAT(peaks("interleaved", 4, 8), ElementsAre(11, 9, 7, 5));
}

TEST(PublishedOrder, ZeroBubbleH1) {
  EXPECT_THAT(
      texts("zb-h1", 4, 8),
      ElementsAre(
          "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
          "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7",
          "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7",
          "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7"));
  EXPECT_THAT(peaks("zb-h1", 4, 8), ElementsAre(4, 4, 4, 4));
}

TEST(PublishedOrder, ZeroBubbleH2) {
  EXPECT_THAT(
      texts("zb-h2", 4, 8),
      ElementsAre(
          "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
          "1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 1I7 1W5 1W6 1W7",
          "2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 2W4 2W5 2W6 2W7",
          "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7"));
  EXPECT_THAT(peaks("zb-h2", 4, 8), ElementsAre(7, 7, 7, 7));
}

// pytorch/pytorch, test/distributed/pipelining/artifacts/dualpipev_4rank_10mb.csv, as it was in 2025.
TEST(PublishedOrder, DualPipeVIsTorchsFile) {
  std::ifstream file(std::string(PIPESHARD_SOURCE_DIR) + "/tests/golden/partition/dualpipev_4rank_10mb.csv");
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(scheduleToCsv(makeSchedule("dual-pipe-v", 4, 10).orders), golden.str());
  EXPECT_THAT(peaks("dual-pipe-v", 4, 10), ElementsAre(9, 9, 9, 9));
}

// The same repository's zb1p_2rank_2stagep_compute.csv (there in an older notation: B for I).
TEST(PublishedOrder, InterleavedZeroBubbleIsTorchsFile) {
  EXPECT_THAT(
      texts("interleaved-zb", 2, 8),
      ElementsAre(
          "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 0F4 2I3 2W3 0F5 0I2 0W2 "
          "2F4 0I3 0W3 2F5 2I4 2W4 0F6 2I5 2W5 0F7 0I4 0W4 2F6 0I5 0W5 2F7 2I6 2W6 2I7 2W7 0I6 0W6 0I7 0W7",
          "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1F4 1I2 3W3 1F5 1I3 "
          "1W2 3F4 3I4 1W3 3F5 3I5 3W4 1F6 1I4 3W5 1F7 1I5 1W4 3F6 3I6 1W5 3F7 3I7 3W6 1I6 3W7 1I7 1W6 1W7"));
  EXPECT_THAT(peaks("interleaved-zb", 4, 8), ElementsAre(8, 8, 8, 8));
}

TEST(Schedule, HasTheOrdersOfTheTimelinesInItsHeader) {
  EXPECT_EQ(texts("sequential", 2, 2)[0], "0F0 0B0 0F1 0B1");
  EXPECT_EQ(texts("gpipe", 2, 3)[1], "1F0 1F1 1F2 1B0 1B1 1B2");
  EXPECT_EQ(texts("1f1b", 2, 3)[0], "0F0 0F1 0B0 0F2 0B1 0B2");
  EXPECT_EQ(texts("1f1b", 4, 2)[0], "0F0 0F1 0B0 0B1");
  EXPECT_THAT(texts("eager-1f1b", 3, 4),
              ElementsAre("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3",
                          "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"));
  EXPECT_THAT(texts("looped-bfs", 2, 3), ElementsAre("0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2",
                                                     "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2"));
  EXPECT_THAT(texts("interleaved", 2, 4),
              ElementsAre("0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
                          "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"));
  EXPECT_THAT(texts("interleaved-zb", 2, 2), ElementsAre("0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1",
                                                         "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1"));
  EXPECT_THAT(texts("forward-only", 2, 3), ElementsAre("0F0 0F1 0F2", "1F0 1F1 1F2"));
  EXPECT_THAT(texts("zb-h1", 3, 3),
              ElementsAre("0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2",
                          "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2"));
  EXPECT_THAT(texts("zb-h2", 2, 3),
              ElementsAre("0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"));
  EXPECT_EQ(scheduleToCsv(makeSchedule("dual-pipe-v", 2, 4).orders),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,"
            "3B3,0I2,0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,"
            "2I3,1I3,2W3,1W3\n");
}

TEST(Schedule, NamesAreCanonicalTextsThatMakeTheSameSchedule) {
  for (const auto& [asked, name] : std::vector<std::pair<std::string, std::string>>{
           {"1f1b", "1f1b"},
           {"interleaved", "interleaved:v=2"},
           {"interleaved:group=4,v=3", "interleaved:v=3,group=4"},
           {"eager-1f1b:extra=2", "eager-1f1b:extra=2"},
           {"forward-only:v=1", "forward-only"},
           {"forward-only:v=2", "forward-only:v=2"},
           {"dual-pipe-v", "dual-pipe-v"}}) {
    const Schedule schedule = makeSchedule(asked, 4, 8);
    EXPECT_EQ(schedule.name(), name);
    EXPECT_EQ(makeSchedule(name, 4, 8).orders, schedule.orders);
    EXPECT_EQ(chunksOf(asked) * 4, schedule.stages);
  }
}

TEST(Schedule, SplitsBackwardPassesIfItsFamilySaysSo) {
  for (const auto& [ranks, microbatches] : std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {2, 8}, {4, 8}}) {
    for (const Schedule& schedule : schedulesOf(ranks, microbatches)) {
      EXPECT_THAT(splitStages(schedule), Each(familyOf(schedule.spec).splits_backward))
          << schedule.name() << ", " << ranks << " ranks, " << microbatches << " microbatches";
    }
  }
}

TEST(Schedule, EveryTextIsAValueAndBack) {
  for (const std::string& text : scheduleTexts()) EXPECT_EQ(scheduleSpecToString(parseSchedule(text)), text);
  for (const Schedule& schedule : schedulesOf(2, 8)) EXPECT_EQ(parseSchedule(schedule.name()), schedule.spec);
  for (const bool several : {false, true}) {
    for (const ScheduleSpec& tried : triedSchedules(several))
      EXPECT_EQ(chunksOf(parseSchedule(scheduleSpecToString(tried))) > 1, several);
  }
}

TEST(Schedule, MessagesNameTheFirstOptionThatIsWrong) {
  EXPECT_ERROR(parseSchedule("interleaved:grop=4,v=x"), ErrorCode::kUsage,
               "--schedule interleaved:grop=4,v=x: found \"grop=4\"; expected options of interleaved (v, "
               "group), each an integer, as in interleaved:v=2");
  EXPECT_ERROR(parseSchedule("interleaved:v=3,group,grop=4"), ErrorCode::kUsage, "found \"group\"; expected");
  EXPECT_ERROR(parseSchedule("gpipe:,"), ErrorCode::kUsage,
               "--schedule gpipe:,: found \"\"; gpipe has no options");
  EXPECT_ERROR(parseSchedule("2f2b:x"), ErrorCode::kUsage,
               "there is no schedule \"2f2b\"; the schedules are");
  EXPECT_ERROR(parseSchedule(""), ErrorCode::kUsage, "there is no schedule \"\"");
  EXPECT_ERROR(makeSchedule(ScheduleSpec{"gpipe"}.with("v", 2), 2, 4), ErrorCode::kUsage,
               "--schedule gpipe:v=2: found \"v=2\"; gpipe has no options");
}

std::string messageOf(std::string_view text, int ranks, int microbatches, ErrorCode code) {
  try {
    makeSchedule(text, ranks, microbatches);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.message();
  }
  ADD_FAILURE() << text << " was accepted";
  return "";
}

TEST(Schedule, UnknownNamesAreRefusedWithTheListOfNames) {
  EXPECT_THAT(messageOf("1f2b", 2, 2, ErrorCode::kUsage),
              HasSubstr("sequential, gpipe, 1f1b, eager-1f1b, interleaved"));
}

TEST(Schedule, UnknownOptionsAreRefusedWithThoseThatExist) {
  EXPECT_THAT(messageOf("1f1b:v=2", 2, 2, ErrorCode::kUsage),
              HasSubstr("found \"v=2\"; 1f1b has no options"));
  EXPECT_THAT(messageOf("dual-pipe-v:v=3", 2, 4, ErrorCode::kUsage), HasSubstr("dual-pipe-v has no options"));
  for (const char* option :
       {"grop=4", "v=0", "v=-1", "v=x", "v", "v=5000", "group=4,group=4", "group=99999999999999999999"}) {
    EXPECT_THAT(messageOf(fmt::format("interleaved:{}", option), 4, 8, ErrorCode::kUsage),
                HasSubstr("expected options of interleaved (v, group)"))
        << option;
  }
}

TEST(Schedule, SizesThatAScheduleHasNotAreRefusedWithThoseThatDo) {
  EXPECT_THAT(messageOf("dual-pipe-v", 4, 7, ErrorCode::kConfiguration),
              HasSubstr("found 7 microbatches on 4 ranks; expected at least 8"));
  EXPECT_THAT(messageOf("interleaved:group=5", 3, 7, ErrorCode::kConfiguration),
              HasSubstr("found group=5 for 3 ranks and 7 microbatches; expected groups of 3 to 7 whose last "
                        "one is complete or has at least 3 microbatches; for 7 microbatches that is group=4, "
                        "7; with group=5 it is 5 or 8 microbatches"));
  EXPECT_THAT(messageOf("interleaved-zb:group=2", 3, 6, ErrorCode::kConfiguration),
              HasSubstr("for 6 microbatches that is group=3, 6"));
  EXPECT_THAT(messageOf("interleaved:group=0", 3, 6, ErrorCode::kConfiguration), HasSubstr("found group=0"));
  EXPECT_THAT(messageOf("interleaved:group=8", 4, 6, ErrorCode::kConfiguration),
              HasSubstr("with group=8 it is 8 microbatches"));
  EXPECT_THAT(messageOf("interleaved:v=4096", 1024, 1024, ErrorCode::kConfiguration),
              HasSubstr("expected at most 16777216"));
}

// Megatron's condition is met by the sizes of torch's rounds, where torch accepts the number of microbatches,
// and by nothing smaller.
TEST(Schedule, InterleavedTakesTorchsRoundsWhereTheyExist) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = p; m <= 40; ++m) {
      const int rounds = std::max(1, m / p);
      if (m % rounds != 0) continue;
      EXPECT_EQ(makeSchedule("interleaved", p, m).orders,
                makeSchedule(fmt::format("interleaved:group={}", m / rounds), p, m).orders);
    }
  }
}

}  // namespace
}  // namespace pipeshard
