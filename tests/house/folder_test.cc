// What every folder owes its readers: a README of one screen, and files that can be read in one sitting.

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

size_t countLines(const fs::path& path) {
  std::ifstream stream(path);
  std::string line;
  size_t lines = 0;
  while (std::getline(stream, line)) ++lines;
  return lines;
}

TEST(Folder, HasAReadmeOfOneScreen) {
  for (const char* folder :
       {"ir", "onnx_import", "onnx_import/autodiff", "sharding", "sharding/solver", "partition", "transport",
        "runtime", "runtime/kernels", "tools", "tests", "examples", "benchmarks"}) {
    const fs::path readme = fs::path(PIPESHARD_SOURCE_DIR) / folder / "README.md";
    ASSERT_TRUE(fs::exists(readme)) << readme;
    EXPECT_LE(countLines(readme), 70u) << readme;
  }
}

TEST(Folder, HoldsSourcesUnder800Lines) {
  for (const char* folder : {"ir", "onnx_import", "sharding", "partition", "transport", "runtime", "planning",
                             "tools", "tests", "benchmarks"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(PIPESHARD_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cc" && extension != ".h") continue;
      EXPECT_LE(countLines(entry.path()), 800u)
          << entry.path() << ": 500 is the aim, 800 the limit; split it";
    }
  }
}

}  // namespace
