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

TEST(BackendSuite, AllButWhatIsOutOfReachPasses) {
  ASSERT_TRUE(fs::is_directory(onnxSuites())) << onnxSuites() << " is missing; run tools/setup.sh";
  const char* only = std::getenv("PIPESHARD_ONNX_ONLY");
  int passed = 0, tried = 0;
  for (const char* suite : {"node", "simple", "light", "pytorch-converted", "pytorch-operator"}) {
    Tally tally;
    for (const fs::path& folder : casesOf(onnxSuites() / suite)) {
      if (only != nullptr && folder.string().find(only) == std::string::npos) continue;
      tryCase(folder, tally);
    }
    fmt::print("{}: {} passed, {} failed\n", suite, tally.passed, tally.failed.size());
    for (const auto& [reason, count] : tally.out_of_reach) fmt::print("  {}: {}\n", describe(reason), count);
    for (const auto& [name, wrong] : tally.failed) fmt::print("  {}: {}\n", name, wrong);
    passed += tally.passed;
    tried += tally.passed + static_cast<int>(tally.failed.size());
  }
  fmt::print("{} of {} passed\n", passed, tried);
  EXPECT_GE(passed * 100, tried * 97);
}

}  // namespace
}  // namespace pipeshard::testing
