// The fuzzers' corpus, replayed: inputs that reach far, and those that once ended a reader. With it the
// mutations, a few of each, so that they work where no fuzzer is built.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "tests/fuzz/fuzz_mutation.h"
#include "tests/fuzz/fuzz_targets.h"

namespace pipeshard::testing {
namespace {

namespace fs = std::filesystem;

std::string bytesOf(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class Corpus : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(Corpus, EndsNoReader) {
  const FuzzTarget& target = GetParam();
  constexpr int kMutations = 8;
  FuzzDice dice(1);
  int inputs = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(PIPESHARD_SOURCE_DIR) / "tests/fuzz/corpus" / target.name)) {
    if (!entry.is_regular_file()) continue;
    SCOPED_TRACE(entry.path());
    std::string input = bytesOf(entry.path());
    runFuzzTarget(target, input);
    for (int i = 0; i < kMutations && target.form != FuzzForm::kBytes; ++i) {
      const std::string changed =
          target.form == FuzzForm::kJson ? mutateJson(input, dice) : mutateModel(input, dice);
      if (changed.empty()) break;
      runFuzzTarget(target, changed);
      input = changed;
    }
    ++inputs;
  }
  EXPECT_GT(inputs, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, Corpus, ::testing::ValuesIn(fuzzTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace pipeshard::testing
