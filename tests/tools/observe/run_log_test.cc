// Logs of runs that go on, of any size: cut behind the step from which the run goes on.
#include "tools/observe/run_log.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/output/log_lines.h"

namespace pipeshard {
namespace {

constexpr const char* kColumns =
    "step,loss,seconds,examples_per_second,time,learning_rate,gradient_norm,tokens_per_second,resident_"
    "bytes\n";

// Says whether there can be such files: empty but for what stands at its beginning and its end.
bool writeSparse(const std::string& path, const std::string& begin, uint64_t hole, const std::string& end) {
  writeFile(path, begin);
  std::error_code error;
  std::filesystem::resize_file(path, begin.size() + hole, error);
  if (!error) std::ofstream(path, std::ios::binary | std::ios::app) << end;
  return !error;
}

std::string lastBytes(const std::string& path, int64_t count) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-count, std::ios::end);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RunLogTest, GoesOnWhereLogsAreLargerThanAFileOfText) {
  const TemporaryFolder folder;
  constexpr uint64_t kHole = (uint64_t{1} << 30) + 100;
  const std::string steps = folder.file("steps.jsonl"), table = folder.file("steps.csv");
  const bool can =
      writeSparse(steps, "", kHole, "\n{\"step\":7,\"loss\":1}\n{\"step\":8,\"loss\":2}\n{\"st") &&
      writeSparse(table, kColumns, kHole, "\n7,1\n8,2\n");
  if (!can) GTEST_SKIP() << "no sparse files here";
  RunLog log(folder.path().string());
  log.take({.kind = JobProgress::Kind::kStep, .step = 8, .loss = 3, .seconds = 0.5}, RunFigures{});
  log.take({.kind = JobProgress::Kind::kNotice, .text = "written"}, RunFigures{});
  const std::string kept = "\n{\"step\":7,\"loss\":1}\n", added = R"({"step":8,"loss":3,"seconds":0.5,)";
  const std::string end = lastBytes(steps, static_cast<int64_t>(std::filesystem::file_size(steps) - kHole));
  EXPECT_TRUE(end.starts_with(kept + added)) << end;
  EXPECT_EQ(std::count(end.begin(), end.end(), '\n'), 3) << end;
  const auto of_table = static_cast<int64_t>(std::filesystem::file_size(table) - kHole) -
                        std::ssize(std::string_view(kColumns));
  EXPECT_TRUE(lastBytes(table, of_table).starts_with("\n7,1\n8,3,0.5,")) << lastBytes(table, of_table);
}

// What is to be left, found line by line from the beginning.
std::string keptOf(const std::string& text, int64_t step, const std::string& heading) {
  std::string read, kept = text.starts_with(heading) ? heading : "";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    read += line + "\n";
    const size_t at = line.find_first_of("0123456789");
    if (at != std::string::npos && line + "\n" != heading && std::atoll(line.c_str() + at) <= step)
      kept = read;
  }
  return kept;
}

TEST(RunLogTest, IsCutAsIfItWereReadFromTheBeginning) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log");
  std::mt19937 dice(5);
  const auto upTo = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(dice); };
  for (int round = 0; round < 300; ++round) {
    const std::string heading = round % 3 == 0 ? "step,loss\n" : "";
    const int64_t longest = round % 5 == 0 ? 200'000 : 300, count = upTo(round % 5 == 0 ? 6 : 900);
    std::string text = upTo(9) == 0 ? "" : heading;
    for (int64_t step = 1; step <= count; ++step) {
      const std::string rest(upTo(longest), 'x');
      text += heading.empty() ? fmt::format("{{\"step\":{},\"{}\n", step, rest)
                              : fmt::format("{},{}\n", step, rest);
    }
    text.resize(text.size() - std::min<size_t>(text.size(), upTo(1) * upTo(longest)));
    const int64_t step = upTo(count + 1);
    SCOPED_TRACE(fmt::format("round {}: {} of {} steps", round, step, count));
    writeFile(path, text);
    cutLogBehind(path, step, heading);
    ASSERT_TRUE(readFile(path) == keptOf(text, step, heading));
  }
}

JobProgress stepOf(int64_t step) {
  return {.kind = JobProgress::Kind::kStep, .step = step, .loss = 1, .seconds = 0.5};
}

TEST(RunLogTest, HasOneWriter) {
  const TemporaryFolder folder;
  {
    const RunLog log(folder.path().string());
    EXPECT_ERROR(RunLog(folder.path().string(), {}, std::chrono::milliseconds(0)), ErrorCode::kAddressInUse,
                 "another job writes its log into");
  }
  const RunLog log(folder.path().string(), {}, std::chrono::milliseconds(0));
}

TEST(RunLogTest, SaysWhatItTakesOutOfAnEarlierRun) {
  const TemporaryFolder folder;
  const JobProgress evaluation = {.kind = JobProgress::Kind::kEvaluated, .step = 0, .loss = 2};
  std::vector<std::string> notices;
  const auto notice = [&](const std::string& text) { notices.push_back(text); };
  for (const int64_t steps : {5, 2}) {
    RunLog log(folder.path().string(), notice);
    log.take(evaluation, RunFigures{});
    for (int64_t step = 1; step <= steps; ++step) log.take(stepOf(step), RunFigures{});
    if (steps == 5) log.take(stepOf(4), RunFigures{});  // a restart, which is said by itself
  }
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("steps 1 to 4"), std::string::npos) << notices[0];
  EXPECT_NE(readFile(folder.file("events.jsonl")).find("steps 1 to 4"), std::string::npos);
  const std::string steps = readFile(folder.file("steps.jsonl"));
  EXPECT_EQ(std::count(steps.begin(), steps.end(), '\n'), 2) << steps;
  const std::string evaluations = readFile(folder.file("evaluations.jsonl"));
  EXPECT_EQ(std::count(evaluations.begin(), evaluations.end(), '\n'), 1) << evaluations;
}

TEST(RunLogTest, AFullDiskEndsTheLogAndNotTheRun) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder.file("events.jsonl"));
  std::vector<std::string> notices;
  RunLog log(folder.path().string(), [&](const std::string& text) { notices.push_back(text); });
  for (int64_t step = 1; step <= 3; ++step) {
    log.take({.kind = JobProgress::Kind::kNotice, .text = "not written"}, RunFigures{});
    log.take(stepOf(step), RunFigures{});
  }
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("No space left on device; training goes on without it"), std::string::npos)
      << notices[0];
  EXPECT_ERROR(log.requireWhole(), ErrorCode::kDiskFull, "the steps are done, but");
}

}  // namespace
}  // namespace pipeshard
