// What is advised when nothing fits: every change that is listed works, and the memory is the least.

#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "planning/advice.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<std::string> wordsOf(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The options of the lines that are advised: "--memory 812032".
std::vector<std::string> advised(const std::string& errors) {
  std::vector<std::string> options;
  const std::regex line("\n    (--.+?): ");
  for (auto it = std::sregex_iterator(errors.begin(), errors.end(), line); it != std::sregex_iterator(); ++it)
    options.push_back((*it)[1]);
  return options;
}

class Advice : public ::testing::Test {
 protected:
  // The asked options with others instead of those of the same names, or behind them.
  CommandResult plan(std::vector<std::string> line, const std::string& change) {
    const std::vector<std::string> words = wordsOf(change);
    for (size_t i = 0; i + 1 < words.size(); i += 2) {
      const auto found = std::find(line.begin(), line.end(), words[i]);
      if (found != line.end()) {
        *(found + 1) = words[i + 1];
      } else {
        line.insert(line.end(), {words[i], words[i + 1]});
      }
    }
    line.insert(line.end(), {"-o", folder_.file("p.plan")});
    return runPipeshard(line);
  }
  TemporaryFolder folder_;
};

TEST_F(Advice, ListsChangesThatWork) {
  const std::vector<std::string> line = wordsOf(
      "plan examples/mlp.onnx --cluster 1x2 --stages uniform:1 --method data-parallel --optimizer adamw "
      "--dim batch=64 --microbatches 2 --memory 300000");
  const CommandResult refused = plan(line, "");
  ASSERT_EQ(refused.exit_code, 83) << refused.errors;
  const std::vector<std::string> changes = advised(refused.errors);
  ASSERT_GE(changes.size(), 3U) << refused.errors;
  for (const std::string& change : changes)
    EXPECT_EQ(plan(line, change).exit_code, 0) << change << "\n" << refused.errors;
  ASSERT_TRUE(changes[0].starts_with("--memory ")) << changes[0];
  const int64_t least = std::stoll(changes[0].substr(9));
  EXPECT_EQ(plan(line, "--memory " + std::to_string(least * 9 / 10)).exit_code, 83) << refused.errors;
}

// A trial may take a while: its phases are told, and how far it all has come.
TEST(AdviceProgress, NamesThePhasesOfTrialsAndTheShareBehind) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx";
  request.partition.cluster = parseCluster("1x2");
  request.partition.sharding.memory_bytes = 1'500'000;
  std::vector<std::string> told;
  EXPECT_THROW(planOrAdvise(request, [&](const std::string& text) { told.push_back(text); }), Error);
  std::erase_if(told, [](const std::string& text) { return !text.starts_with("nothing fits; trying --"); });
  EXPECT_THAT(told, Contains(ContainsRegex("trying --memory [0-9]+ .0 %.: building")));
  EXPECT_THAT(told, Contains(ContainsRegex(" s left.: writing the programs")));
  int last = 0;
  for (const std::string& text : told) {
    const int percent = std::stoi(text.substr(text.find(" (") + 2));
    EXPECT_GE(percent, last) << text;
    EXPECT_LE(percent, 100) << text;
    last = percent;
  }
  EXPECT_GT(last, 50);
}

// Stages of one device leave nothing to choose, and a device of a described cluster is as large as it is.
TEST_F(Advice, IsForPlansWithoutShardingsToo) {
  const std::vector<std::string> line = wordsOf(
      "plan examples/mlp.onnx --cluster 1x2 --dim batch=64 --microbatches 4 --schedule gpipe --memory "
      "125000");
  const CommandResult refused = plan(line, "");
  ASSERT_EQ(refused.exit_code, 83) << refused.errors;
  EXPECT_THAT(refused.errors, HasSubstr("--memory 125000: device "));
  const std::vector<std::string> changes = advised(refused.errors);
  ASSERT_FALSE(changes.empty()) << refused.errors;
  for (const std::string& change : changes)
    EXPECT_EQ(plan(line, change).exit_code, 0) << change << "\n" << refused.errors;
}

// Stages of one device each hold whole sequences; one stage of all devices can cut them.
TEST_F(Advice, MakesOneStageOfAllDevices) {
  const std::vector<std::string> line =
      wordsOf("plan examples/llama.onnx --cluster 1x4 --dim batch=1 --microbatches 1 --memory 420000");
  const CommandResult refused = plan(line, "");
  ASSERT_EQ(refused.exit_code, 83) << refused.errors;
  const std::string change = "--stages uniform:1 --method auto";
  EXPECT_THAT(advised(refused.errors), Contains(change));
  EXPECT_EQ(plan(line, change).exit_code, 0);
}

// Layer by layer first: here whole stages would not be enough.
TEST_F(Advice, RecomputesLayerByLayer) {
  const std::vector<std::string> line = wordsOf("plan examples/gpt2.onnx --cluster 1x2 --memory 1300000");
  const CommandResult refused = plan(line, "");
  ASSERT_EQ(refused.exit_code, 83) << refused.errors;
  EXPECT_THAT(advised(refused.errors), Contains("--recompute layers"));
  EXPECT_THAT(refused.errors, Not(HasSubstr("\n    --recompute always")));
  EXPECT_EQ(plan(line, "--recompute always").exit_code, 83);
  EXPECT_EQ(plan(line, "--recompute layers").exit_code, 0);
}

// What layers hand on is kept of every microbatch: with many in flight, whole stages need less, and are
// listed, too.
TEST_F(Advice, RecomputesWholeStagesWhereThatNeedsLess) {
  const std::vector<std::string> line =
      wordsOf("plan examples/gpt2.onnx --cluster 1x2 --layers 24 --schedule gpipe --microbatches 8");
  const auto advisedAt = [&](const std::string& memory) {
    const CommandResult refused = plan(line, "--memory " + memory);
    EXPECT_EQ(refused.exit_code, 83) << refused.errors;
    return advised(refused.errors);
  };
  EXPECT_THAT(advisedAt("2000000"), IsSupersetOf({"--recompute layers", "--recompute always"}));
  EXPECT_THAT(advisedAt("1700000"),
              AllOf(Contains("--recompute always"), Not(Contains("--recompute layers"))));
  EXPECT_EQ(plan(line, "--memory 1700000 --recompute layers").exit_code, 83);
  EXPECT_EQ(plan(line, "--memory 1700000 --recompute always").exit_code, 0);
}

// The search chooses between never and layers itself, if it may.
TEST_F(Advice, OfASearchThatMustNotRecomputeSaysSo) {
  const std::vector<std::string> line =
      wordsOf("plan examples/gpt2.onnx --cluster 1x2 --stages auto --recompute never --memory 1100000");
  const CommandResult refused = plan(line, "");
  ASSERT_EQ(refused.exit_code, 83) << refused.errors;
  EXPECT_THAT(advised(refused.errors), Contains("--recompute layers"));
  EXPECT_EQ(plan(line, "--recompute layers").exit_code, 0);
}

// What a device needs with the change, as its line of advice says.
double neededWith(const std::string& change, const std::string& errors) {
  const std::regex line("\n    " + change + ": a device needs [^(]*\\(([0-9]+) bytes\\)");
  std::smatch found;
  return std::regex_search(errors, found, line) ? std::stod(found[1]) : -1;
}

// What was foreseen then stands for what programs would need.
TEST_F(Advice, WithoutProgramsSaysWhatWasForeseen) {
  struct Case {
    std::string asked, change;
  };
  const Case cases[] = {
      {"plan examples/gpt2.onnx --cluster 1x2 --stages auto --recompute never --memory 1100000",
       "--recompute layers"},
      {"plan examples/mlp.onnx --cluster 1x2 --stages uniform:1 --method data-parallel --optimizer adamw "
       "--dim batch=64 --microbatches 2 --memory 250000",
       "--method auto"}};
  for (const auto& [asked, change] : cases) {
    std::vector<std::string> line = wordsOf(asked);
    const double programs = neededWith(change, plan(line, "").errors);
    line.emplace_back("--no-programs");
    const CommandResult without = plan(line, "");
    EXPECT_EQ(without.exit_code, 83) << without.errors;
    EXPECT_GT(programs, 0) << asked;
    EXPECT_NEAR(neededWith(change, without.errors), programs, 0.2 * programs) << without.errors;
  }
}

}  // namespace
}  // namespace pipeshard
