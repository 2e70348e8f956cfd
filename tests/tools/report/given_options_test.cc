// Every option of the table (ir/plan/given_options.h), wherever it is written and read.
#include "ir/plan/given_options.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/plan/plan_json.h"
#include "tests/expect_error.h"
#include "tests/tools/report/report_samples.h"
#include "tools/options/plan_options.h"
#include "tools/report/plan_diff.h"
#include "tools/report/report.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The option alone has another value than without a word about it.
GivenOptions changed(const GivenOption& option, GivenOptions from) {
  for (const char* text : {"adamw:lr=0.125", "float64", "on", "training", "12345", "off"}) {
    GivenOptions options = from;
    try {
      setFromTexts(option, {text}, options);
    } catch (const Error&) {
      continue;
    }
    if (options != from) return options;
  }
  ADD_FAILURE() << option.flag << ": no text of this test is a value of it; add one";
  return from;
}

Plan planWith(const GivenOptions& given) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.given = given;
  return plan;
}

// The values of a flag in the report's command.
std::vector<std::string> valuesIn(const std::string& page, const std::string& flag) {
  std::vector<std::string> values;
  const std::string before = "\n  " + flag + " ";
  for (size_t at = page.find(before); at != std::string::npos; at = page.find(before, at)) {
    at += before.size();
    values.push_back(page.substr(at, page.find_first_of(" <", at) - at));
  }
  return values;
}

GivenOptions parsed(std::vector<std::string> words) {
  CLI::App command;
  PlanOptions options;
  addPlanOptions(command, options);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  command.parse(std::move(words));
  return modelRequest(options).given;
}

TEST(GivenOptions, SurvivePlanJsonAndAreLeftOutWhereTheySayNothing) {
  for (const GivenOption& option : givenOptions()) {
    SCOPED_TRACE(option.flag);
    const std::string key = "\"" + std::string(option.key) + "\":";
    const std::string json = planToJson(planWith(changed(option, {})));
    EXPECT_THAT(json, HasSubstr(key));
    EXPECT_EQ(planFromJson(json).given, changed(option, {}));
    EXPECT_EQ(planToJson(planFromJson(json)), json);
    if (isWritten(option, {})) continue;
    EXPECT_THAT(planToJson(planWith({})), Not(HasSubstr(key)));
  }
}

TEST(GivenOptions, StandInTheReportsCommandAndAreParsedBack) {
  for (const GivenOption& option : givenOptions()) {
    SCOPED_TRACE(option.flag);
    const GivenOptions given = changed(option, {});
    std::vector<std::string> words;
    for (const std::string& value : valuesIn(renderReport({planWith(given)}), option.flag)) {
      words.emplace_back(option.flag);
      words.push_back(value);
    }
    ASSERT_FALSE(words.empty());
    GivenOptions expected = defaultOptions();
    setFromTexts(option, textsOf(option, given), expected);
    EXPECT_EQ(parsed(words), expected);
  }
}

TEST(GivenOptions, AreOfAPartOfTheDifference) {
  for (const GivenOption& option : givenOptions()) {
    SCOPED_TRACE(option.flag);
    const auto differences = diffPlans(planWith({}), planWith(changed(option, {})));
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].part, option.part);
  }
}

TEST(GivenOptions, HaveTheDefaultsThatHelpShows) {
  EXPECT_EQ(parsed({}), defaultOptions());
  for (const GivenOption& option : givenOptions()) {
    SCOPED_TRACE(option.flag);
    const GivenOptions other = changed(option, defaultOptions());
    EXPECT_EQ(parsed({option.flag, textsOf(option, other).at(0)}), other);
    if (option.default_text == nullptr) continue;
    EXPECT_EQ(parsed({option.flag, option.default_text}), defaultOptions());
  }
}

TEST(GivenOptions, OfListsKeepTheirOrder) {
  const GivenOptions given = parsed({"--freeze", "b", "--train", "x", "--freeze", "a"});
  EXPECT_THAT(given.freeze, ElementsAre("b", "a"));
  EXPECT_THAT(given.train, ElementsAre("x"));
  EXPECT_THAT(valuesIn(renderReport({planWith(given)}), "--freeze"), ElementsAre("b", "a"));
}

TEST(GivenOptions, RefuseWhatTheyCannotBe) {
  EXPECT_ERROR(parsed({"--precision", "float8"}), ErrorCode::kUsage,
               "--precision float8: expected float32, float64, bfloat16 or float16");
  EXPECT_THROW(parsed({"--bucket", "few"}), CLI::ValidationError);
  EXPECT_THROW(parsed({"--overlap-receives", "maybe"}), CLI::ValidationError);
}

}  // namespace
}  // namespace pipeshard
