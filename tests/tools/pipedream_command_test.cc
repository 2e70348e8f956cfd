// `pipedream` as a user calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProfile = "examples/pipedream/vgg16_profile.txt";

TEST(PipeDreamCommand, PrintsThePublishedPlan) {
  const TemporaryFolder folder;
  const CommandResult result =
      runPipeshard({"pipedream", kProfile, "--workers", "4", "--bandwidth", "12GB", "--json", folder.file("out.json")});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("a minibatch every 170.08 ms: 3.954x one worker; data parallelism 3.318x, of which this is 1.192x"));
  const auto report = nlohmann::json::parse(readFile(folder.file("out.json")));
  EXPECT_EQ(report.at("stages").at(0).at("layers"), nlohmann::json({0, 14}));
  EXPECT_EQ(report.at("stages").at(0).at("workers"), 3);
  EXPECT_EQ(report.at("stages").at(0).at("versions"), 2);
}

TEST(PipeDreamCommand, SaysWhatIsWrong) {
  EXPECT_EQ(runPipeshard({"pipedream", "no-such-file.txt"}).exit_code, 66);
  EXPECT_EQ(runPipeshard({"pipedream", "README.md"}).exit_code, 65);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--workers", "0"}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--bandwidth", "fast"}).exit_code, 64);
}

}  // namespace
}  // namespace pipeshard
