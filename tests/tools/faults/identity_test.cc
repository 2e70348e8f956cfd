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

// Eight examples of the model.
std::string eightExamples() {
  std::string header = R"({"x":{"dtype":"F32","shape":[8,32],"data_offsets":[0,1024]},)"
                       R"("y":{"dtype":"F32","shape":[8,32],"data_offsets":[1024,2048]}})";
  header.resize(128, ' ');
  return std::string(1, '\x80') + std::string(7, '\0') + header + std::string(2048, '\0');
}

TEST_F(OtherFiles, DataOfOneHost) {
  const std::string file = folder_.write("data.safetensors", eightExamples());
  expectRefused(file, {"--data", file});
}

TEST_F(OtherFiles, HeldOutDataOfOneHost) {
  const std::string file = folder_.write("held.safetensors", eightExamples());
  expectRefused(file, {"--eval", file});
}

// Of a plan on each host's own disk, one has neither programs nor those that evaluate.
TEST_F(OtherFiles, AHostMakesWhatItsOwnPlanLacks) {
  const std::string local = folder_.file("local"), other = folder_.file("other");
  plan_ = local + "/job.plan";
  const CommandResult planned =
      runPipeshard({"plan", folder_.file("mlp.onnx"), "--cluster", "2x2", "--stages", "uniform:4",
                    "--microbatches", "4", "--no-programs", "-o", plan_});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  std::filesystem::copy(local, other, std::filesystem::copy_options::recursive);
  ASSERT_FALSE(std::filesystem::exists(other + "/job.plan/ranks.json"));
  const std::string held_out = folder_.write("held.safetensors", eightExamples());
  // Again: now all is there.
  for (int i = 0; i < 2; ++i) {
    pid_t first = -1, second = -1;
    const CommandResult result =
        runWith(first, second, [&] { return startNode("second", local, other); }, {"--eval", held_out});
    const std::string said = readFile(folder_.path() / "second.err");
    EXPECT_EQ(result.exit_code, 0) << result.errors << said;
    EXPECT_THAT(result.output, HasSubstr("held-out loss"));
    EXPECT_EQ(exitCodeOf(first), 0);
    EXPECT_EQ(exitCodeOf(second), 0);
    EXPECT_EQ(said.find("making what is not here of " + plan_) == std::string::npos, i == 1) << said;
    for (const char* file :
         {"plan.json", "ranks.json", "evaluation/ranks.json", "evaluation/evaluation.json"})
      EXPECT_EQ(readFile(other + "/job.plan/" + file), readFile(plan_ + "/" + file)) << file;
  }
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
