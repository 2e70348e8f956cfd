// ONNX's backend suites end to end: every model is read, prepared and run, and its outputs are compared. What
// passes and what does not is a table in docs/operators.md, which this test makes and compares.
#include <cstdlib>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/onnx_import/suite/suite_case.h"
#include "tests/onnx_suites.h"

namespace pipeshard::testing {
namespace {

namespace fs = std::filesystem;

struct Tally {
  int passed = 0;
  std::map<Unsupported, int> out_of_reach;
  std::map<std::string, std::string> failed;  // case: what is wrong
};

void tryCase(const fs::path& folder, Tally& tally) {
  const fs::path model = fs::is_directory(folder) ? folder / "model.onnx" : folder;
  const Unsupported reason = outOfReach(model);
  if (reason != Unsupported::kNone) {
    ++tally.out_of_reach[reason];
    return;
  }
  std::string wrong;
  try {
    for (const SuiteCase& tested : readCases(folder)) {
      if (wrong.empty()) wrong = runSuiteCase(tested);
    }
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  if (wrong.empty()) {
    ++tally.passed;
  } else {
    tally.failed.emplace(folder.stem(), wrong);
  }
}

constexpr const char* kSuites[] = {"node", "simple", "light", "pytorch-converted", "pytorch-operator"};
constexpr Unsupported kReasons[] = {Unsupported::kStrings, Unsupported::kSequences,
                                    Unsupported::kDataDependentShapes, Unsupported::kRandom};

std::string tableOf(const std::map<std::string, Tally>& tallies) {
  std::string text = "| suite | pass | fail |";
  for (const Unsupported reason : kReasons) text += fmt::format(" {} |", describe(reason));
  text += "\n|---|---|---|---|---|---|---|\n";
  std::string failed;
  for (const char* suite : kSuites) {
    const Tally& tally = tallies.at(suite);
    text += fmt::format("| {} | {} | {} |", suite, tally.passed, tally.failed.size());
    for (const Unsupported reason : kReasons) {
      const auto found = tally.out_of_reach.find(reason);
      text += fmt::format(" {} |", found == tally.out_of_reach.end() ? 0 : found->second);
    }
    text += "\n";
    for (const auto& [name, wrong] : tally.failed)
      failed += fmt::format("{}`{}`", failed.empty() ? "" : ", ", name);
  }
  return text + "\nThese fail: " + failed + ".\n";
}

// What stands in docs/operators.md between the two lines.
std::string documented() {
  std::ifstream file(PIPESHARD_SOURCE_DIR "/docs/operators.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string from = "<!-- backend suites -->\n", to = "<!-- end -->";
  const size_t begin = text.find(from), end = text.find(to);
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : text.substr(begin + from.size(), end - begin - from.size());
}

TEST(BackendSuite, AllButWhatIsOutOfReachPasses) {
  ASSERT_TRUE(fs::is_directory(onnxSuites())) << onnxSuites() << " is missing; run tools/setup.sh";
  const char* only = std::getenv("PIPESHARD_ONNX_ONLY");  // cases that have it in their path
  int passed = 0, tried = 0;
  std::map<std::string, Tally> tallies;
  for (const char* suite : kSuites) {
    Tally& tally = tallies[suite];
    for (const fs::path& folder : casesOf(onnxSuites() / suite)) {
      if (only == nullptr || folder.string().find(only) != std::string::npos) tryCase(folder, tally);
    }
    for (const auto& [name, wrong] : tally.failed) fmt::print("{}: {}\n", name, wrong);
    passed += tally.passed;
    tried += tally.passed + static_cast<int>(tally.failed.size());
  }
  fmt::print("{} of {} passed\n", passed, tried);
  if (only != nullptr) return;
  EXPECT_GE(passed * 100, tried * 97);
  EXPECT_EQ(documented(), tableOf(tallies)) << "the table in docs/operators.md is old; it should be\n"
                                            << tableOf(tallies);
}

}  // namespace
}  // namespace pipeshard::testing
