// Every operator that is lowered, and some that ONNX's own bodies stand for, against ONNX's reference
// implementation and ONNX Runtime: the cases that tests/oracle/make_lowering_cases.py makes.
#include <cstdlib>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <onnx/defs/schema.h>

#include "onnx_import/lowering/lowering_rules.h"
#include "tests/onnx_import/suite/suite_case.h"
#include "tests/temporary_folder.h"

namespace pipeshard::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kNewestOpset = 1000;

// The name of a case begins with its operator's.
std::string operatorOf(const fs::path& folder) {
  const std::string name = folder.filename();
  return name.substr(0, name.find('_'));
}

// `exact`: what is expected was computed in float64.
std::string wrongWith(const fs::path& folder, bool exact) {
  try {
    for (SuiteCase& tested : readCases(folder)) {
      if (exact) tested.relative = 1e-9;
      if (exact) tested.absolute = 1e-12;
      const std::string wrong = runSuiteCase(tested);
      if (!wrong.empty()) return wrong;
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// ONNX's own. What is not is tested against ONNX Runtime's numbers (tests/onnx_import/lowering).
std::set<std::string> loweredStandardOperators() {
  std::set<std::string> names;
  for (const auto& [key, rule] : loweringRules()) {
    const auto& [domain, op_type] = key;
    const bool known =
        onnx::OpSchemaRegistry::Instance()->GetSchema(op_type, kNewestOpset, domain) != nullptr;
    const bool others = rule.types_outputs && rule.claims != nullptr;  // nodes alone that ONNX does not know
    if (known && !others) names.insert(op_type);
  }
  return names;
}

TEST(LoweringCases, OfEveryOperatorGiveWhatTheReferenceGives) {
  const std::string python = PIPESHARD_TEST_PYTHON;
  if (std::system(fmt::format("'{}' -c 'import onnx, onnxruntime' 2>/dev/null", python).c_str()) != 0)
    GTEST_SKIP() << "no Python with onnx and onnxruntime (tools/setup.sh --tests installs it)";
  const TemporaryFolder folder;
  const char* only = std::getenv("PIPESHARD_ONNX_ONLY");  // cases whose names begin so
  const std::string command =
      fmt::format("'{}' -B '{}/tests/oracle/make_lowering_cases.py' '{}' {}", python, PIPESHARD_SOURCE_DIR,
                  folder.file("cases"), only == nullptr ? "" : only);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::set<std::string> tried;
  for (const char* precision : {"float64", "others"}) {
    if (!fs::exists(folder.path() / "cases" / precision)) continue;
    for (const fs::path& made : casesOf(folder.path() / "cases" / precision)) {
      tried.insert(operatorOf(made));
      EXPECT_EQ(wrongWith(made, precision == std::string("float64")), "") << made.filename();
    }
  }
  if (only != nullptr) return;
  for (const std::string& name : loweredStandardOperators())
    EXPECT_TRUE(tried.contains(name)) << name << " has no case in tests/oracle/make_lowering_cases.py";
}

}  // namespace
}  // namespace pipeshard::testing
