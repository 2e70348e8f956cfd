#include "tools/observe/progress_line.h"

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/observe/metrics_page.h"

namespace pipeshard {
namespace {

using Clock = RunMeter::Clock;

RunFigures everything() {
  RunFigures figures;
  figures.step = 120;
  figures.steps = 500;
  figures.loss = 5.43;
  figures.steps_per_second = 12.34;
  figures.tokens_per_second = 6318;
  figures.learning_rate = 0.00025;
  figures.gradient_norm = 1.25;
  figures.resident_bytes = 512 << 20;
  figures.seconds_left = 30.8;
  figures.evaluation_loss = 5.51;
  return figures;
}

TEST(ProgressTextTest, SaysEverythingWhereThereIsRoom) {
  EXPECT_EQ(
      progressText(everything(), 0),
      "step 120/500  loss 5.43  held-out 5.51  12.3 steps/s  6.32k tokens/s  lr 0.00025  norm 1.25  512 MiB"
      "  31s left");
}

TEST(ProgressTextTest, LeavesOutWhatIsLeastImportantAndCutsNoNumber) {
  const RunFigures figures = everything();
  EXPECT_EQ(progressText(figures, 105),
            "step 120/500  loss 5.43  held-out 5.51  12.3 steps/s  6.32k tokens/s  lr 0.00025  norm 1.25  "
            "31s left");
  EXPECT_EQ(progressText(figures, 80),
            "step 120/500  loss 5.43  held-out 5.51  12.3 steps/s  6.32k tokens/s  31s left");
  EXPECT_EQ(progressText(figures, 50), "step 120/500  loss 5.43  12.3 steps/s  31s left");
  EXPECT_EQ(progressText(figures, 34), "step 120/500  loss 5.43  31s left");
  EXPECT_EQ(progressText(figures, 24), "step 120/500  loss 5.43");
  EXPECT_EQ(progressText(figures, 12), "step 120/500");
  EXPECT_EQ(progressText(figures, 11), "120/500");
  EXPECT_EQ(progressText(figures, 6), "120");
  EXPECT_EQ(progressText(figures, 2), "");
  for (int width = 1; width < 120; ++width) {
    EXPECT_LE(std::ssize(progressText(figures, width)), width);
  }
}

TEST(ProgressTextTest, SaysNothingOfWhatThereIsNot) {
  RunFigures figures;
  figures.step = 1;
  figures.steps = 3;
  figures.steps_per_second = 0.25;
  figures.seconds_left = 8;
  EXPECT_EQ(progressText(figures, 0), "step 1/3  0.25 steps/s  8s left");
  figures.examples_per_second = 2;
  EXPECT_EQ(progressText(figures, 0), "step 1/3  0.25 steps/s  2.00 examples/s  8s left");
}

TEST(ProgressTextTest, AmountsHaveThreeDigits) {
  EXPECT_EQ(formatRate(0.0123), "0.012");
  EXPECT_EQ(formatRate(9.996), "10.0");
  EXPECT_EQ(formatRate(999.7), "1.00k");
  EXPECT_EQ(formatRate(12'345), "12.3k");
  EXPECT_EQ(formatRate(4'560'000), "4.56M");
  EXPECT_EQ(formatDuration(59.6), "1m 00s");
  EXPECT_EQ(formatDuration(3725), "1h 02m");
  EXPECT_EQ(formatDuration(90'000), "1d 01h");
}

TEST(ProgressTextTest, MarksALossThatIsApproximate) {
  RunFigures figures = everything();
  figures.evaluation_exact = false;
  EXPECT_EQ(progressText(figures, 80),
            "step 120/500  loss 5.43  held-out ~5.51  12.3 steps/s  6.32k tokens/s  31s left");
}

// In a file or pipe, of steps that follow each other within a second.
TEST(ProgressLineTest, StepsWithAnEvaluationHaveTheirLine) {
  RunFigures figures;
  figures.steps = 6;
  const auto step = [&](ProgressLine& line, int64_t number) {
    figures.step = number;
    figures.loss = static_cast<double>(number) / 4;
    line.show({.kind = JobProgress::Kind::kStep, .step = number}, figures);
  };
  const auto evaluation = [&](ProgressLine& line, bool exact) {
    figures.evaluation_loss = 2.5;
    line.show({.kind = JobProgress::Kind::kEvaluated,
               .step = figures.step,
               .loss = 2.5,
               .exact = exact,
               .seconds = 1.25},
              figures);
  };
  testing::internal::CaptureStdout();
  {
    ProgressLine line;
    evaluation(line, true);
    figures.evaluation_loss.reset();
    for (const int64_t number : {1, 2, 3}) step(line, number);
    evaluation(line, false);
    for (const int64_t number : {4, 5, 6}) step(line, number);
    evaluation(line, true);
  }
  std::istringstream shown(testing::internal::GetCapturedStdout());
  std::vector<std::string> lines;
  for (std::string line; std::getline(shown, line);)
    lines.push_back(line.substr(0, line.find("  0 steps/s")));
  std::erase_if(lines, [](const std::string& line) {  // a second has passed
    return line.starts_with("step 2/") || line.starts_with("step 4/") || line.starts_with("step 5/");
  });
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "step 0: held-out loss 2.5 (1.2s)", "step 1/6  loss 0.25", "step 3/6  loss 0.75",
                       "step 3: held-out loss 2.5 (approximate; 1.2s)", "step 6/6  loss 1.5  held-out 2.5",
                       "step 6: held-out loss 2.5 (1.2s)"}));
}

class RunMeterTest : public ::testing::Test {
 protected:
  RunMeterTest() {
    facts_.steps = 100;
    facts_.batches = {
        {StepSize::kWholeBatch, {8, 128}}, {{false, 1}, {8, 32}}, {StepSize::kLastBatch, {2, 32}}};
  }
  static JobProgress step(int64_t number, double seconds) {
    return {.kind = JobProgress::Kind::kStep, .step = number, .loss = 1.5, .seconds = seconds};
  }
  static Clock::time_point at(double seconds) {
    return Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + seconds)));
  }
  RunFacts facts_;
};

TEST_F(RunMeterTest, RatesAreThoseOfLate) {
  RunMeter meter(facts_);
  meter.take(step(1, 2), at(0));
  EXPECT_DOUBLE_EQ(meter.figures().steps_per_second, 0.5);
  EXPECT_DOUBLE_EQ(meter.figures().seconds_left, 198);
  for (int i = 2; i <= 10; ++i) meter.take(step(i, 2), at(2 * (i - 1)));
  EXPECT_NEAR(meter.figures().steps_per_second, 0.5, 1e-9);
  EXPECT_NEAR(meter.figures().tokens_per_second, 64, 1e-9);
  // Twice as fast from here on: known when ten seconds have passed.
  for (int i = 11; i <= 30; ++i) meter.take(step(i, 1), at(18 + (i - 10)));
  EXPECT_NEAR(meter.figures().steps_per_second, 1, 1e-9);
  EXPECT_NEAR(meter.figures().seconds_left, 70, 1e-6);
}

// Of sequences of several lengths a step has now more tokens, now fewer.
TEST_F(RunMeterTest, TokensAreThoseOfTheLengthsThatStepsHad) {
  RunMeter meter(facts_);
  StepResult result;
  for (int i = 1; i <= 10; ++i) {
    result.size.length = i % 2;
    JobProgress event = step(i, 2);
    event.result = &result;
    meter.take(event, at(2 * (i - 1)));
    EXPECT_EQ(meter.figures().tokens, i % 2 == 1 ? 32 : 128);
  }
  EXPECT_NEAR(meter.figures().tokens_per_second, (32 + 128) / 4.0, 8);
}

// Whole batches of 8 examples, and behind each the two that are left over.
TEST_F(RunMeterTest, ExamplesAreThoseOfTheBatchesThatStepsHad) {
  RunMeter meter(facts_);
  StepResult result;
  for (int i = 1; i <= 20; ++i) {
    result.size = i % 2 == 0 ? StepSize::kLastBatch : StepSize::kWholeBatch;
    JobProgress event = step(i, 1);
    event.result = &result;
    meter.take(event, at(i));
    EXPECT_EQ(meter.figures().examples, i % 2 == 0 ? 2 : 8);
    EXPECT_EQ(meter.figures().tokens, i % 2 == 0 ? 32 : 128);
  }
  EXPECT_NEAR(meter.figures().examples_per_second, (8 + 2) / 2.0, 1e-9);
  EXPECT_NEAR(meter.figures().tokens_per_second, (128 + 32) / 2.0, 1e-9);
}

TEST_F(RunMeterTest, EvaluationsTakeTimeButNoStep) {
  facts_.evaluated_every = 10;
  RunMeter meter(facts_);
  for (int i = 1; i <= 10; ++i) meter.take(step(i, 1), at(i));
  meter.take({.kind = JobProgress::Kind::kEvaluated, .step = 10, .loss = 2.5, .seconds = 30}, at(40));
  for (int i = 11; i <= 12; ++i) meter.take(step(i, 1), at(i + 30));
  EXPECT_NEAR(meter.figures().steps_per_second, 1, 1e-9);
  EXPECT_EQ(meter.figures().evaluation_loss, 2.5);
  EXPECT_NEAR(meter.figures().seconds_left, 88 + 8 * 30, 1e-6) << "eight evaluations are still to come";
}

TEST_F(RunMeterTest, BeginsAgainWithAJobThatDoes) {
  RunMeter meter(facts_);
  for (int i = 1; i <= 10; ++i) meter.take(step(i, 1), at(i));
  meter.take(step(6, 4), at(500));
  EXPECT_DOUBLE_EQ(meter.figures().steps_per_second, 0.25);
  EXPECT_EQ(meter.figures().step, 6);
}

TEST_F(RunMeterTest, TellsTheRateOfTheStepsLastUpdate) {
  facts_.optimizer.learning_rate = 0.5;
  facts_.optimizer.schedule.kind = LearningRateSchedule::Kind::kLinear;
  facts_.optimizer.schedule.steps = 100;
  RunMeter meter(facts_);
  meter.take(step(51, 1), at(0));
  EXPECT_DOUBLE_EQ(*meter.figures().learning_rate, 0.25);
  facts_.updates = 2;
  RunMeter windows(facts_);
  windows.take(step(26, 1), at(0));
  EXPECT_NEAR(*windows.figures().learning_rate, 0.245, 1e-12) << "of update 52";
}

TEST_F(RunMeterTest, MetricsHaveALineForWhatIsKnown) {
  MetricsPage page(facts_);
  EXPECT_EQ(page.text().find("pipeshard_loss"), std::string::npos);
  RunMeter meter(facts_);
  StepResult result;
  result.compute_seconds = {0.5, 0.25};
  result.transfer_seconds = {0.1, 0.2};
  result.measures = {{"gradient_norm", 3}};
  result.resident_bytes = 1000;
  JobProgress event = step(7, 0.5);
  event.result = &result;
  meter.take(event, at(0));
  page.take(event, meter.figures());
  const JobProgress evaluated = {.kind = JobProgress::Kind::kEvaluated, .step = 7, .loss = NAN, .seconds = 1};
  meter.take(evaluated, at(1));
  page.take(evaluated, meter.figures());
  page.take({.kind = JobProgress::Kind::kRestarted, .step = 7, .from = 4}, meter.figures());
  const JobProgress again = step(5, 0.5);
  meter.take(again, at(2));
  page.take(again, meter.figures());
  const std::string text = page.text();
  for (const char* line :
       {"\npipeshard_step 5\n", "\npipeshard_loss 1.5\n", "\npipeshard_evaluation_loss NaN\n",
        "\npipeshard_evaluation_step 7\n", "\npipeshard_restarts_total 1\n",
        "\npipeshard_steps_done_total 2\n", "\npipeshard_largest_worker_bytes 1000\n",
        "\npipeshard_rank_compute_seconds{rank=\"1\"} 0.25\n",
        "\n# TYPE pipeshard_steps_done_total counter\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("gradient_norm"), std::string::npos) << "the newest step has none";
}

}  // namespace
}  // namespace pipeshard
