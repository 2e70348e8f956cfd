// `report` after `plan`, `validate` and `run --trace`.
#include <algorithm>
#include <map>
#include <regex>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportCommand, ShowsWhatWasPlannedThenWhatWasMeasured) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--dim", "batch=8", "--microbatches",
                    "4", "--schedule", "1f1b", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const std::string first = readFile(plan + "/report.html");
  EXPECT_THAT(first, HasSubstr("Planned, not validated yet"));
  EXPECT_THAT(first, HasSubstr("this plan, predicted"));
  EXPECT_THAT(first, HasSubstr("Box widths are times."));
  EXPECT_THAT(first, Not(HasSubstr("this plan, measured")));
  EXPECT_THAT(first, HasSubstr("What each rank holds over the step, predicted."));

  // Made anew, it is the same.
  const CommandResult again =
      runPipeshard({"report", plan, "-o", folder.file("again.html"), "--svg", folder.file("pictures")});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(readFile(folder.file("again.html")), first);
  for (const char* name : {"cluster.svg", "schedule.svg", "memory.svg"})
    EXPECT_THAT(readFile(folder.file("pictures") + "/" + name), HasSubstr("</svg>"));

  const CommandResult validated = runPipeshard({"validate", plan, "--steps", "2"});
  ASSERT_EQ(validated.exit_code, 0) << validated.errors;
  const std::string second = readFile(plan + "/report.html");
  EXPECT_THAT(second, HasSubstr("PASS: equals one device"));
  EXPECT_THAT(second, HasSubstr("this plan, measured"));
  const CommandResult third = runPipeshard({"report", plan, "-o", folder.file("third.html")});
  ASSERT_EQ(third.exit_code, 0) << third.errors;
  EXPECT_THAT(third.output, HasSubstr("trace.json"));
  EXPECT_EQ(readFile(folder.file("third.html")), second);

  const CommandResult run = runPipeshard({"run", plan, "--steps", "3", "--trace", folder.file("run.json")});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(runPipeshard({"report", plan, "--trace", folder.file("run.json"), "--step", "2"}).exit_code, 0);
  EXPECT_EQ(
      runPipeshard({"report", plan, "--measured", folder.file("run.json"), "-o", folder.file("fourth.html")})
          .exit_code,
      0);
  EXPECT_NE(readFile(folder.file("fourth.html")), second);  // another prediction
  const CommandResult missing =
      runPipeshard({"report", plan, "--trace", folder.file("run.json"), "--step", "9"});
  EXPECT_EQ(missing.exit_code, 78);
  EXPECT_THAT(missing.errors, HasSubstr("no events of step 9"));
}

struct PassEvent {
  std::string pass;  // "0 0F": of rank 0, forward of stage 0
  int step = 0;
  double duration = 0;  // microseconds
};

std::vector<PassEvent> passesOf(const std::string& trace) {
  std::vector<PassEvent> result;
  const std::regex pass("([0-9]+[FBIW])[0-9]+");
  const auto document = nlohmann::json::parse(readFile(trace));
  for (const auto& event : document.at("traceEvents")) {
    std::smatch match;
    const std::string name = event.value("name", "");
    if (event.value("ph", "") != "X" || event.value("cat", "") != "compute" ||
        !std::regex_match(name, match, pass))
      continue;
    result.push_back({fmt::format("{} {}", event.at("pid").get<int>(), match[1].str()),
                      event.at("args").value("step", 0), event.at("dur")});
  }
  return result;
}

// Prediction from measured durations above the measurement: GPT-2 over two workers. No time is judged; the
// pieces have to fit: every pass is in both charts, and what is predicted for a pass is the median of what
// was measured.
class ReportOverlay : public ::testing::TestWithParam<std::string> {};

TEST_P(ReportOverlay, LaysThePredictionOverTheMeasurement) {
  constexpr int kMicrobatches = 4;
  const TemporaryFolder folder;
  const std::string plan = folder.file("gpt2.plan"), trace = folder.file("run.json"),
                    page_file = folder.file("overlay.html");
  const CommandResult planned =
      runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--dim", "batch=4", "--microbatches",
                    std::to_string(kMicrobatches), "--schedule", GetParam(), "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult run = runPipeshard({"run", plan, "--steps", "4", "--trace", trace});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  const CommandResult made =
      runPipeshard({"report", plan, "--trace", trace, "--measured", trace, "-o", page_file});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  const std::string page = readFile(page_file);
  EXPECT_THAT(page, HasSubstr("this plan, predicted"));
  EXPECT_THAT(page, HasSubstr("this plan, measured"));
  EXPECT_THAT(page, HasSubstr("equal stages, by formula"));
  EXPECT_TRUE(std::regex_search(
      page,
      std::regex(
          "A step takes [0-9.]+ [^ ]+ as predicted and [0-9.]+ [^ ]+ as measured \\([+-][0-9.]+%\\); ranks "
          "are idle for [0-9.]+% of it as predicted, [0-9.]+% as measured, [0-9.]+% by the formula")));
  const bool halves = GetParam() == "zb-h1";
  for (int stage = 0; stage < 2; ++stage) {
    for (int k = 0; k < kMicrobatches; ++k) {
      for (const char* pass :
           {"forward", halves ? "backward: inputs" : "backward", halves ? "backward: weights" : "backward"}) {
        const std::string title = fmt::format("stage {}, {} of microbatch {}:", stage, pass, k);
        size_t count = 0;
        for (size_t at = page.find(title); at != std::string::npos; at = page.find(title, at + 1)) ++count;
        EXPECT_GE(count, 2u) << title;  // predicted and measured
        // measured in halves (of the second stage), joined where nothing lies between
        const bool parted = pass == std::string("backward");
        EXPECT_LE(count, parted ? 3u : 2u) << title;
      }
    }
  }

  const CommandResult simulated =
      runPipeshard({"simulate", plan, "--measured", trace, "--trace", folder.file("simulated.json")});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.errors;
  // by rank and pass without its microbatch; of all steps but the first
  std::map<std::string, std::vector<double>> measured;
  for (const auto& [pass, step, duration] : passesOf(trace)) {
    if (step > 1) measured[pass].push_back(duration);
  }
  const auto predicted = passesOf(folder.file("simulated.json"));
  // The first stage's backward pass is in halves where the schedule says so, the second one's always.
  EXPECT_EQ(predicted.size(), (halves ? 6u : 5u) * kMicrobatches);
  for (const auto& [pass, step, duration] : predicted) {
    std::vector<double>& durations = measured[pass];
    ASSERT_EQ(durations.size(), 3u * kMicrobatches) << pass;
    std::sort(durations.begin(), durations.end());
    // microseconds, with three decimals
    EXPECT_NEAR(duration, durations[durations.size() / 2], 2e-3) << pass;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, ReportOverlay, ::testing::Values("1f1b", "zb-h1"),
                         [](const auto& info) { return info.param == "1f1b" ? "one_f_one_b" : "zb_h1"; });

TEST(ReportCommand, RefusesWhatIsNoPlanDirectory) {
  const TemporaryFolder folder;
  EXPECT_EQ(runPipeshard({"report", folder.path().string()}).exit_code, 66);
  EXPECT_EQ(runPipeshard({"report"}).exit_code, 64);
}

}  // namespace
}  // namespace pipeshard
