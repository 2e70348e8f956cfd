// The log of a run, read again and drawn.
#include "tools/report/run_history.h"

#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/report/report_training.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t countOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

RunHistory historyOf(int64_t steps) {
  RunHistory history;
  for (int64_t i = 1; i <= steps; ++i) {
    RunHistory::Step step;
    step.step = i;
    step.loss = 5.0 / static_cast<double>(i);
    step.seconds = 0.5;
    step.tokens_per_second = 1000;
    step.learning_rate = 0.001 * static_cast<double>(i);
    history.steps.push_back(step);
  }
  return history;
}

TEST(RunHistoryTest, ReadsWhatIsWhole) {
  const TemporaryFolder folder;
  writeFile(folder.file("steps.jsonl"),
            "{\"step\":3,\"loss\":2.5,\"seconds\":0.25,\"learning_rate\":0.1,\"gradient_norm\":null,\"else\":"
            "\"x\"}\n"
            "{\"step\":4,\"loss\":null,\"seconds\":0.5}\n"
            "{\"step\":5,\"lo");
  writeFile(folder.file("evaluations.jsonl"), "{\"step\":4,\"loss\":3.5,\"seconds\":2}\n");
  writeFile(folder.file("events.jsonl"),
            "{\"time\":1,\"event\":\"notice\",\"text\":\"a\"}\n"
            "{\"time\":2,\"event\":\"resumed\",\"step\":3,\"text\":\"saved\"}\n"
            "{\"time\":3,\"event\":\"restart\",\"step\":4,\"from\":3,\"seconds\":1.5,\"text\":\"rank 1\"}\n");
  const RunHistory history = readRunHistory(folder.path());
  ASSERT_EQ(history.steps.size(), 2U);
  EXPECT_EQ(history.steps[0].loss, 2.5);
  EXPECT_EQ(history.steps[0].learning_rate, 0.1);
  EXPECT_EQ(history.steps[0].gradient_norm, std::nullopt);
  EXPECT_EQ(history.steps[1].loss, std::nullopt);
  ASSERT_EQ(history.evaluations.size(), 1U);
  EXPECT_EQ(history.evaluations[0].loss, 3.5);
  EXPECT_EQ(history.resumed, std::vector<int64_t>{3});
  ASSERT_EQ(history.restarts.size(), 1U);
  EXPECT_EQ(history.restarts[0].step, 4);
  EXPECT_EQ(history.restarts[0].from, 3);
  EXPECT_EQ(history.restarts[0].seconds, 1.5);
  EXPECT_EQ(history.restarts[0].lost, "rank 1");
}

TEST(RunHistoryTest, NamesFileAndLineOfWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kMissingInput,
               "there is no steps.jsonl; `pipeshard run --log");
  writeFile(folder.file("steps.jsonl"), "{\"step\":1}\n{\"loss\":2}\n");
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kConfiguration,
               "steps.jsonl, line 2: expected a \"step\"");
  writeFile(folder.file("steps.jsonl"), "{\"step\":1,\"loss\":\"small\"}\n");
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kConfiguration,
               "steps.jsonl, line 1: expected a number as \"loss\"");
  writeFile(folder.file("steps.jsonl"), "[]\n");
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kConfiguration, "steps.jsonl, line 1");
  writeFile(folder.file("steps.jsonl"), "nonsense\n");
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kConfiguration, "steps.jsonl, line 1");
  writeFile(folder.file("steps.jsonl"), "{\"step\":18446744073709551615}\n");
  EXPECT_ERROR(readRunHistory(folder.path()), ErrorCode::kConfiguration,
               "steps.jsonl, line 1: expected a \"step\"");
}

TEST(ReportTrainingTest, DrawsAPanelForWhatThereIs) {
  RunHistory history = historyOf(20);
  const std::string alone = renderTraining(history);
  EXPECT_THAT(alone, HasSubstr(">loss<"));
  EXPECT_THAT(alone, HasSubstr(">tokens/s<"));
  EXPECT_THAT(alone, HasSubstr(">learning rate<"));
  EXPECT_THAT(alone, Not(HasSubstr("held-out")));
  EXPECT_THAT(alone, Not(HasSubstr("gradient norm")));
  EXPECT_THAT(alone, HasSubstr("the loss went from 5 to 0.25"));
  EXPECT_EQ(countOf(alone, "class=\"limit\""), 0U);
  history.evaluations = {{10, 0.75, 1}, {20, 0.5, 1}};
  history.resumed = {5, 15};
  for (RunHistory::Step& step : history.steps) step.gradient_norm = 1;
  const std::string whole = renderTraining(history);
  EXPECT_EQ(countOf(whole, "<circle class=\"point\""), 2U);
  EXPECT_EQ(countOf(whole, "class=\"limit\""), 8U) << "two in each of four panels";
  EXPECT_THAT(whole, HasSubstr("at its best 0.5 after step 20"));
  EXPECT_THAT(whole, HasSubstr("gone on from a checkpoint 2 times"));
}

TEST(ReportTrainingTest, ARestartIsAMarkInEveryPanelAndARow) {
  RunHistory history = historyOf(20);
  history.restarts = {{7, 5, 1.25, "worker of rank 1 was killed <by signal 9>"}, {12, 10, 2, "node 2"}};
  const std::string html = renderTraining(history);
  EXPECT_EQ(countOf(html, "class=\"lost\""), 6U) << "two in each of three panels";
  EXPECT_EQ(countOf(html, "class=\"limit-text\""), 2U);
  EXPECT_THAT(html, HasSubstr("2 restarts after a loss took 3.2 s in all"));
  EXPECT_THAT(html, HasSubstr("worker of rank 1 was killed &lt;by signal 9&gt;"));
  EXPECT_THAT(html, HasSubstr("1.2 s"));
}

TEST(ReportTrainingTest, ALongRunIsDrawnByPixels) {
  const std::string html = renderTraining(historyOf(100'000));
  EXPECT_LT(html.size(), 200'000U);
  EXPECT_THAT(html, HasSubstr("<polygon class=\"area\""));
}

TEST(ReportTrainingTest, OneStepOrNoNumberIsDrawnToo) {
  EXPECT_THAT(renderTraining(historyOf(1)), HasSubstr("1 step in the log"));
  RunHistory nothing = historyOf(3);
  for (RunHistory::Step& step : nothing.steps) {
    const int64_t number = step.step;
    step = RunHistory::Step();
    step.step = number;
  }
  const std::string html = renderTraining(nothing);
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf")));
  EXPECT_EQ(renderTraining(RunHistory{}), "");
}

// Steps that float64 cannot count, values whose difference it does not have, steps in no order.
TEST(ReportTrainingTest, NumbersOfNoRunEndTheDrawing) {
  const auto of = [](const std::vector<std::pair<int64_t, double>>& points) {
    RunHistory history;
    for (const auto& [number, loss] : points) {
      RunHistory::Step step;
      step.step = number;
      step.loss = loss;
      history.steps.push_back(step);
    }
    return history;
  };
  const int64_t most = std::numeric_limits<int64_t>::max();
  RunHistory behind = of({{1, 2}, {2, 1}});
  behind.evaluations = {{most, 1, 1}};
  behind.resumed = {most};
  for (const RunHistory& history : {of({{1'000'000'000'000'000'000, 1}}), of({{most - 1000, 1}, {most, 2}}),
                                    of({{1, -1.7e308}, {2, 1.7e308}}), of({{1, -1e300}, {2, 1e300}}),
                                    of({{1, 0}, {2, 5e-324}}), of({{1, 1}, {2, 1.0000000000000002}}),
                                    of({{1, 1}, {most, 2}, {2, 3}}), of({{9, 1}, {1, 2}}), behind}) {
    const std::string html = renderTraining(history);
    EXPECT_LT(html.size(), 20'000U);
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace pipeshard
