// Two hosts whose ranks compute with different CUDA modules.
#include <cstdlib>

#include "tests/tools/faults/other_files.h"

namespace pipeshard {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class OtherModule : public OtherFiles {
 protected:
  void SetUp() override {
    OtherFiles::SetUp();
    if (IsSkipped()) return;
    // The module as another build has it: by the linker's build id, and as sources that differ from a commit.
    std::string module = withOtherBuildId(readFile(module_));
    const std::string version = runPipeshard({"--version"}).output;
    if (const size_t at = version.find("commit "); at != std::string::npos) {
      const size_t commit = module.find(version.substr(at + 7, 12));
      ASSERT_NE(commit, std::string::npos);
      module[commit] = '\0';
    }
    other_ = folder_.write("other.so", module);
  }

  CommandResult runOn(const std::string& device) {
    pid_t first = -1, second = -1;
    std::vector<std::string> options{"--device", device};
    if (device == "cuda") options.emplace_back("--share-devices");
    const CommandResult result = runWith(
        first, second, [&] { return startNode("second", module_, other_); }, options);
    EXPECT_EQ(exitCodeOf(first), result.exit_code);
    EXPECT_EQ(exitCodeOf(second), result.exit_code);
    return result;
  }

  std::string module_ = std::getenv("PIPESHARD_CUDA_MODULE");
  std::string other_;
};

TEST_F(OtherModule, OfOneHostIsRefusedBeforeTheFirstStep) {
  const CommandResult result = runOn("cuda");
  EXPECT_EQ(result.exit_code, 76) << result.output << result.errors;
  EXPECT_THAT(result.errors,
              ContainsRegex("computes with pipeshard_cuda.so .*, build [0-9a-f]{12}, "
                            "worker of rank .* with .*, build [0-9a-f]{12}; install one build"));
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("step 1/")));
}

TEST_F(OtherModule, IsNothingToRanksThatDoNotUseIt) {
  const CommandResult result = runOn("cpu");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

}  // namespace
}  // namespace pipeshard
