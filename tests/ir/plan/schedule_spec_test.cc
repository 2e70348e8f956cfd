#include "ir/plan/schedule_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

TEST(ScheduleSpec, EveryTextIsAValueAndBack) {
  const std::vector<std::pair<std::string, ScheduleSpec>> specs = {
      {"", {}},
      {"1f1b", {"1f1b"}},
      {"file", ScheduleSpec::ofFile()},
      {"interleaved:v=3", {"interleaved", {{"v", 3}}}},
      {"interleaved:v=3,group=4", {"interleaved", {{"v", 3}, {"group", 4}}}},
      {"interleaved:group=4,v=3", {"interleaved", {{"group", 4}, {"v", 3}}}},
      {"zb-2p:limit=9223372036854775807", {"zb-2p", {{"limit", INT64_MAX}}}},
      {"unknown:a=0,a=0", {"unknown", {{"a", 0}, {"a", 0}}}}};
  for (const auto& [text, spec] : specs) {
    EXPECT_EQ(parseScheduleSpec(text), spec) << text;
    EXPECT_EQ(scheduleSpecToString(spec), text);
    EXPECT_EQ(scheduleChoiceToString(spec), text);
    EXPECT_EQ(spec.isOfFile(), text == "file");
  }
  EXPECT_EQ(parseScheduleSpec("1f1b:"), ScheduleSpec{"1f1b"});
  EXPECT_EQ(scheduleSpecToString(ScheduleSpec{"pipedream"}.with("rows", 1)), "pipedream:rows=1");
  EXPECT_EQ(scheduleSpecToString(parseScheduleSpec("pipedream-2bw:m=2").with("rows", 1)),
            "pipedream-2bw:m=2,rows=1");
  EXPECT_EQ(scheduleChoiceToString(OrdersFile{"./mine.csv"}), "./mine.csv");
}

TEST(ScheduleSpec, OptionsAreNamesWithNumbersFromZeroOn) {
  for (const std::string wrong :
       {"v", "v=", "v=x", "v=-1", "v=2x", "v=1.5", "v=9223372036854775808", "v==2", "v 2"}) {
    const std::string text = "interleaved:group=4," + wrong + ",more";
    EXPECT_ERROR(
        parseScheduleSpec(text), ErrorCode::kUsage,
        "--schedule " + text + ": found \"" + wrong + "\"; expected options as in interleaved:key=2");
    const ScheduleText read = readScheduleText(text);
    EXPECT_FALSE(read.understood);
    EXPECT_EQ(read.wrong, wrong);
    EXPECT_EQ(read.spec, (ScheduleSpec{"interleaved", {{"group", 4}}}));
  }
  EXPECT_ERROR(parseScheduleSpec("gpipe:,"), ErrorCode::kUsage, "--schedule gpipe:,: found \"\"");
}

}  // namespace
}  // namespace pipeshard
