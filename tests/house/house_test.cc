// The house keeps its rules, and the checks find what breaks them: each rule is broken once in a small tree.
#include "tests/house/house.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temporary_folder.h"

namespace pipeshard::house {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kRoot = PIPESHARD_SOURCE_DIR;

TEST(House, IncludesFollowTheArrows) {
  EXPECT_THAT(forbiddenIncludes(kRoot, roomArrows(), neighbourhoodArrows()), IsEmpty());
}
TEST(House, ReadmesNameTheArrows) { EXPECT_THAT(unnamedArrows(kRoot, neighbourhoodArrows()), IsEmpty()); }
TEST(House, NeighbourhoodsHaveNoCircle) {
  // A folder may include only folders that are finished when it is: an order exists.
  std::set<std::string> finished;
  for (bool grown = true; grown;) {
    grown = false;
    for (const auto& [folder, others] : neighbourhoodArrows()) {
      if (finished.contains(folder)) continue;
      if (std::includes(finished.begin(), finished.end(), others.begin(), others.end()))
        grown = finished.insert(folder).second;
    }
  }
  for (const auto& [folder, others] : neighbourhoodArrows()) EXPECT_TRUE(finished.contains(folder)) << folder;
}
TEST(House, FoldersHaveAtMost40Files) { EXPECT_THAT(crowdedFolders(kRoot), IsEmpty()); }
TEST(House, SourcesHaveAHeaderOfTheirName) { EXPECT_THAT(sourcesWithoutHeader(kRoot), IsEmpty()); }
TEST(House, FunctionsAreDeclaredInTheHeaderOfTheirSource) {
  EXPECT_THAT(strayDeclarations(kRoot), IsEmpty());
}
TEST(House, FoldersHaveAReadmeOfOneScreen) { EXPECT_THAT(missingReadmes(kRoot), IsEmpty()); }
TEST(House, ReadmesNameFilesThatExist) { EXPECT_THAT(deadReferences(kRoot), IsEmpty()); }
TEST(House, FilesAreReadInOneSitting) { EXPECT_THAT(longFiles(kRoot), IsEmpty()); }
TEST(House, LinesHaveAtMost110Columns) { EXPECT_THAT(longLines(kRoot), IsEmpty()); }
TEST(House, FunctionsFitAScreen) { EXPECT_THAT(longFunctions(kRoot), IsEmpty()); }

// What reliability_table.py says of a tree: an exit code, and a text.
std::pair<int, std::string> checkReliabilityTable(const std::filesystem::path& root) {
  const std::string script = (kRoot / "tests/house/reliability_table.py").string();
  FILE* const output = ::popen((script + " --root " + root.string() + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = 0; (c = std::fgetc(output)) != EOF;) text += static_cast<char>(c);
  return {WEXITSTATUS(::pclose(output)), text};
}

TEST(House, FaultsAreShownByTestsThatExist) {
  const auto [code, text] = checkReliabilityTable(kRoot);
  EXPECT_EQ(code, 0) << text;
}
TEST(House, RoomsKnowWhatIsTheirsAlone) { EXPECT_THAT(foreignKnowledge(kRoot), IsEmpty()); }

class PlantedViolation : public ::testing::Test {
 protected:
  void plant(const std::string& path, const std::string& text) { folder_.write(path, text); }
  std::filesystem::path root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST_F(PlantedViolation, OfTheArrowsBetweenRoomsIsFound) {
  plant("ir/base/a.h", "#include \"sharding/specs/b.h\"\n");
  plant("sharding/specs/b.h", "");
  EXPECT_THAT(forbiddenIncludes(root(), roomArrows(), {{"ir/base", {}}, {"sharding/specs", {}}}),
              ::testing::ElementsAre("ir/base/a.h (room ir) may not include sharding/specs/b.h"));
}

TEST_F(PlantedViolation, OfTheArrowsInsideARoomIsFound) {
  plant("partition/layers/a.h", "#include \"partition/emit/b.h\"\n");
  plant("partition/emit/b.h", "#include \"partition/layers/a.h\"\n");
  const Arrows arrows = {{"partition/layers", {}}, {"partition/emit", {"partition/layers"}}};
  EXPECT_THAT(
      forbiddenIncludes(root(), roomArrows(), arrows),
      ::testing::ElementsAre(
          "partition/layers/a.h (neighbourhood partition/layers) may not include partition/emit/b.h"));
}

TEST_F(PlantedViolation, OfAnArrowThatIsNotNamedIsFound) {
  plant("partition/emit/README.md", "# partition/emit: `cut/`\n\nMay include `layers/` and\n`ir/base`.\n");
  const Arrows arrows = {{"partition/emit", {"ir/base", "partition/cut", "partition/layers"}}};
  EXPECT_THAT(
      unnamedArrows(root(), arrows),
      ::testing::ElementsAre("partition/emit/README.md does not say that it may include partition/cut"));
}

TEST_F(PlantedViolation, OfAFolderWithoutAnEntryIsFound) {
  plant("sharding/attic/a.h", "");
  EXPECT_THAT(forbiddenIncludes(root(), roomArrows(), {{"sharding/specs", {}}}),
              Contains(HasSubstr("sharding/attic/a.h lies in no room")));
}

TEST_F(PlantedViolation, OfFortyFilesIsFound) {
  for (int i = 0; i < 41; ++i) plant("tests/ir/base/f" + std::to_string(i) + ".cc", "");
  EXPECT_THAT(crowdedFolders(root()), Contains(HasSubstr("tests/ir/base has 41 files")));
}

TEST_F(PlantedViolation, OfASourceWithoutItsHeaderIsFound) {
  plant("ir/base/alone.cc", "int answer() {\n  return 42;\n}\n");
  plant("ir/base/late.h", "");
  plant("ir/base/late.cc", "#include \"ir/base/other.h\"\n#include \"ir/base/late.h\"\n");
  const std::vector<std::string> found = sourcesWithoutHeader(root());
  EXPECT_THAT(found, Contains(HasSubstr("ir/base/alone.cc has no header")));
  EXPECT_THAT(found, Contains(HasSubstr("ir/base/late.cc must include ir/base/late.h first")));
}

TEST_F(PlantedViolation, OfAStrayDeclarationIsFound) {
  plant("ir/base/a.h", "int answer();\n");
  plant("ir/base/b.h", "");
  plant("ir/base/b.cc", "#include \"ir/base/b.h\"\nint answer() { return 42; }\n");
  EXPECT_THAT(strayDeclarations(root()),
              ::testing::ElementsAre(HasSubstr("defines answer, which ir/base/b.h")));
}

TEST_F(PlantedViolation, OfAMissingReadmeIsFound) {
  plant("ir/base/a.h", "");
  EXPECT_THAT(missingReadmes(root()), Contains("ir/base has no README.md"));
  std::string pages;
  for (int i = 0; i < 36; ++i) pages += "line\n";
  plant("ir/base/README.md", pages);
  EXPECT_THAT(missingReadmes(root()), Contains(HasSubstr("ir/base/README.md has 36 lines")));
}

TEST_F(PlantedViolation, OfAReadmeWithoutAHeadingIsFound) {
  plant("ir/base/a.h", "");
  constexpr const char* kViolation = "ir/base/README.md does not begin with a heading (\"# \")";
  for (const char* text : {"", "#ir / base : words\n", "## words\n"}) {
    plant("ir/base/README.md", text);
    EXPECT_THAT(missingReadmes(root()), Contains(kViolation)) << text;
  }
  plant("ir/base/README.md", "# ir/base: words\n");
  EXPECT_THAT(missingReadmes(root()), ::testing::Not(Contains(kViolation)));
}

TEST_F(PlantedViolation, OfADeadReferenceIsFound) {
  plant("ir/base/a.h", "");
  plant("ir/base/README.md", "`a.h`, `ir/base/a.h` and `gone.h`\n");
  EXPECT_THAT(deadReferences(root()),
              ::testing::ElementsAre("ir/base/README.md names gone.h, which does not exist"));
}

TEST_F(PlantedViolation, OfLengthIsFound) {
  std::string lines;
  for (int i = 0; i < 501; ++i) lines += "\n";
  plant("ir/base/a.cc", lines);
  plant("ir/base/b.cc", std::string(111, 'x'));
  EXPECT_THAT(longFiles(root()), ::testing::ElementsAre(HasSubstr("ir/base/a.cc has 501 lines")));
  EXPECT_THAT(longLines(root()), ::testing::ElementsAre(HasSubstr("ir/base/b.cc:1 has 111 columns")));
}

TEST_F(PlantedViolation, OfALongFunctionIsFound) {
  const std::string most(59, '\n');  // with the line of the signature 60
  plant("ir/base/a.cc", "namespace a {\nint f(int x = 3) {" + most + "}\n\nint g() {" + most + "\n}\n}\n");
  plant("ir/base/b.h", "struct B {\n  explicit B(int c) : c_{c}, d_{'}'} {\n  /* { */" + most +
                           "}\n  int c_, d_;\n private:\n  bool operator==(const B&) const try {" + most +
                           "} catch (int) {\n}\n};\n");
  EXPECT_THAT(longFunctions(root()),
              ::testing::ElementsAre("ir/base/a.cc:63: the function has 61 lines; expected at most 60",
                                     "ir/base/b.h:2: the function has 61 lines; expected at most 60",
                                     "ir/base/b.h:65: the function has 61 lines; expected at most 60"));
}

TEST_F(PlantedViolation, OfALongFunctionIsNoTable) {
  const std::string many(60, '\n');
  const std::string data = "{{\"{\", 1}," + many + "{R\"(})\", 2}}";
  plant("ir/base/a.cc", "const Pair kPairs[] = " + data +
                            ";\nconst Pairs& pairs() {\n  static const Pairs p = " + data +
                            ";\n  return p;\n}\n");
  EXPECT_THAT(longFunctions(root()), IsEmpty());
  plant("ir/base/b.cc", "const Pairs kCalls = {{1, [](int x) {" + many + "}}};\n");
  plant("ir/base/c.cc", "const Pairs& calls() {\n  static const Pairs p = {[] { return 1; }, " + many +
                            "};\n  return p;\n}\n");
  plant("ir/base/d.cc", "Pairs made() {\n  Pairs p = " + data + ";\n  return p;\n}\n");
  EXPECT_THAT(longFunctions(root()), ::testing::ElementsAre(HasSubstr("b.cc:1: the function has 61 lines"),
                                                            HasSubstr("c.cc:1: the function has 64 lines"),
                                                            HasSubstr("d.cc:1: the function has 64 lines")));
}

TEST_F(PlantedViolation, OfAFaultWithoutItsTestIsFound) {
  plant("tests/a_test.cc", "TEST(Jobs, EndInTime) {}\nTEST_F(Links, AreCut) {}\n");
  plant("tests/CMakeLists.txt", "pipeshard_test(all_test SOURCES a_test.cc LIBRARIES x)\n");
  plant("tests/cluster/link_test.sh", "case $1 in\n  cut) ;;\nesac\n");
  const auto check = [&](const std::string& row, const std::string& state = "OK") {
    plant("docs/reliability.md",
          "| # | fault |\n|---|---|\n| 1 | a \\| b | so | " + state + " | " + row + " |\n");
    return checkReliabilityTable(root());
  };
  using Outcome = std::pair<int, std::string>;
  EXPECT_EQ(check("`a_test: EndInTime`, `AreCut` (why), `Links`, `link_test.sh` cut, `all_test`").first, 0);
  EXPECT_EQ(check("", "missing").first, 0);
  EXPECT_EQ(check(""), Outcome(1, "row 1 is OK, and no test shows it\n"));
  EXPECT_EQ(check("`a_test: EndsLate`, `b_test`"),
            Outcome(1,
                    "row 1 names a_test: EndsLate, which does not exist\nrow 1 names b_test, which does not "
                    "exist\nrow 1 is OK, and no test shows it\n"));
  EXPECT_EQ(check("`link_test.sh` cut, glitch"),
            Outcome(1, "row 1 names link_test.sh glitch, which does not exist\n"));
}

TEST_F(PlantedViolation, OfForeignKnowledgeIsFound) {
  plant("planning/a.cc", "#include <CLI/CLI.hpp>\nvoid f() { fmt::print(\"hello\"); }\n");
  plant("sharding/specs/a.cc", "#include <onnx/onnx_pb.h>\n");
  plant("ir/base/a.h", "#include <nlohmann/json.hpp>\n");
  plant("ir/base/a.cc", "#include <nlohmann/json.hpp>\n");
  plant("partition/layers/a.cc", "const char* kScopes = \"pkg.torch.onnx.name_scopes\";\n");
  EXPECT_EQ(foreignKnowledge(root()).size(), 5u);
}

}  // namespace
}  // namespace pipeshard::house
