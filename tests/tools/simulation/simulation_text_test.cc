// The parts of `simulate`: exact decimals, pictures in text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tools/simulation/exact_decimal.h"
#include "tools/simulation/gantt_text.h"

namespace pipeshard {
namespace {

TEST(ExactDecimal, OfDifferentPlacesBecomeWholeNumbersOfOneUnit) {
  const std::vector<Decimal> decimals = {parseDecimal("--t", "18.522"), parseDecimal("--t", "9"),
                                         parseDecimal("--t", ".60"), parseDecimal("--t", "-0.25")};
  const int64_t scale = commonScale(decimals);
  EXPECT_EQ(scale, 1000);
  EXPECT_EQ(inUnits(decimals[0], 2 * scale), 37044);
  EXPECT_EQ(inUnits(decimals[1], scale), 9000);
  EXPECT_EQ(inUnits(decimals[2], scale), 600);
  EXPECT_EQ(inUnits(decimals[3], scale), -250);
}

TEST(ExactDecimal, RefusesWhatIsNone) {
  for (const char* text : {"", "-", ".", "1.2.3", "1e3", "0x1", "nan", "1234567890123456", " 1"}) {
    EXPECT_THROW(parseDecimal("--t", text), Error) << text;
  }
}

TEST(ExactDecimal, TextHasNoTrailingZeros) {
  EXPECT_EQ(decimalText(57, 2), "28.5");
  EXPECT_EQ(decimalText(-4, 2), "-2");
  EXPECT_EQ(decimalText(0, 7), "0");
  EXPECT_EQ(decimalText(1, 3), "0.333333");
}

TEST(GanttText, AColumnIsTheLargestUnitThatFits) {
  const std::vector<std::vector<GanttBar>> rows = {{{'f', 0, false, 0, 4}, {'b', 12, false, 8, 20}}};
  EXPECT_EQ(ganttColumn(rows, 20, {}), 4);
  EXPECT_EQ(ganttText(rows, 20, {}), "d0 0.12b\n");
  EXPECT_EQ(ganttColumn(rows, 20, {.width = 4}), 5);
  EXPECT_EQ(ganttText(rows, 20, {.width = 4}), "d0 0.12\n");
}

TEST(GanttText, AColumnShowsWhatFillsMostOfIt) {
  const std::vector<std::vector<GanttBar>> rows = {
      {{'f', 3, false, 0, 3}, {'w', 4, false, 6, 10}, {'u', -1, false, 10, 30}}};
  EXPECT_EQ(ganttText(rows, 30, {.width = 3}), "d0 4uu\n");
  EXPECT_THAT(ganttLegend(rows), ::testing::HasSubstr("f forward, w weight gradients, u update"));
}

TEST(GanttText, ColoursDoNotChangeTheText) {
  const std::vector<std::vector<GanttBar>> rows = {{{'f', 0, false, 0, 1}, {'i', 0, true, 1, 2}},
                                                   {{'-', -1, false, 1, 2}}};
  EXPECT_EQ(ganttText(rows, 2, {.colours = true}),
            "d0 \033[34m0\033[0m\033[4;32m0\033[0m\nd1 .\033[2m-\033[0m\n");
}

}  // namespace
}  // namespace pipeshard
