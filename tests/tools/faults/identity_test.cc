// Two hosts of one job that have different files, or different pipeshards.
#include "tests/tools/faults/other_files.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

TEST_F(OtherFiles, EqualOnesAreNoDifference) {
  pid_t first = -1, second = -1;
  const CommandResult result = runWith(first, second, [&] { return startNode("second", "", ""); });
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(exitCodeOf(first), 0);
  EXPECT_EQ(exitCodeOf(second), 0);
}

TEST_F(OtherFiles, WeightsOfOneHost) { expectRefused(folder_.file("mlp.onnx.data")); }

TEST_F(OtherFiles, PlanOfOneHost) { expectRefused(plan_ + "/plan.json"); }

TEST_F(OtherFiles, DataOfOneHost) {
  std::string header = R"({"x":{"dtype":"F32","shape":[8,32],"data_offsets":[0,1024]},)"
                       R"("y":{"dtype":"F32","shape":[8,32],"data_offsets":[1024,2048]}})";
  header.resize(128, ' ');
  const std::string file = folder_.write(
      "data.safetensors", std::string(1, '\x80') + std::string(7, '\0') + header + std::string(2048, '\0'));
  expectRefused(file, {"--data", file});
}

// What a linker and git have left of the build, in the executable itself, made another.
TEST_F(OtherFiles, BinaryOfOneHost) {
  std::string program = withOtherBuildId(readFile(PIPESHARD_EXECUTABLE));
  const std::string version = runPipeshard({"--version"}).output;
  if (const size_t at = version.find("commit "); at != std::string::npos) {
    const size_t commit = program.find(version.substr(at + 7, 12));
    ASSERT_NE(commit, std::string::npos);
    program[commit] = program[commit] == '0' ? '1' : '0';
  }
  const std::string other = folder_.write("pipeshard", program);
  std::filesystem::permissions(other, std::filesystem::perms::owner_all);
  pid_t first = -1, second = -1;
  const CommandResult result = runWith(first, second, [&] { return startNode("second", "", "", other); });
  EXPECT_EQ(result.exit_code, 76) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("install one build everywhere"));
  EXPECT_EQ(exitCodeOf(second), 76);
  EXPECT_THAT(readFile(folder_.path() / "second.err"), HasSubstr("the coordinator is "));
  exitCodeOf(first);
}

}  // namespace
}  // namespace pipeshard
