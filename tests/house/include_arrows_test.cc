// Walks every #include of the sources and fails on an arrow between rooms that the design's table does not
// allow.

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

// Room -> rooms that it may include beside itself. onnx_import/autodiff is a room of its own: no protobuf
// comes in there.
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"ir", {}},
    {"onnx_import", {"ir"}},
    {"onnx_import/autodiff", {"ir"}},
    {"sharding", {"ir"}},
    {"partition", {"ir", "sharding"}},
    {"transport", {"ir"}},
    {"runtime", {"ir", "onnx_import", "transport"}},
    {"planning", {"ir", "onnx_import", "onnx_import/autodiff", "sharding", "partition", "runtime", "tools"}},
    {"tools",
     {"ir", "onnx_import", "onnx_import/autodiff", "sharding", "partition", "transport", "runtime",
      "planning"}},
};

std::string roomOf(const std::string& path) {
  std::string best;
  for (const auto& [room, unused] : kAllowed) {
    if (path.starts_with(room + "/") && room.size() > best.size()) best = room;
  }
  return best;
}

struct Include {
  std::string file;
  std::string target;
};

std::vector<Include> quotedIncludes(const fs::path& root, const fs::path& file) {
  std::vector<Include> includes;
  std::ifstream stream(file);
  std::string line;
  while (std::getline(stream, line)) {
    if (!line.starts_with("#include \"")) continue;
    const size_t begin = line.find('"') + 1;
    includes.push_back(
        {fs::relative(file, root).string(), line.substr(begin, line.find('"', begin) - begin)});
  }
  return includes;
}

bool isSource(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".cc" || extension == ".h" || extension == ".cu" || extension == ".cuh";
}

TEST(IncludeArrows, FollowTheDesignsTable) {
  const fs::path root = PIPESHARD_SOURCE_DIR;
  size_t checked = 0;
  for (const char* folder :
       {"ir", "onnx_import", "sharding", "partition", "transport", "runtime", "planning", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !isSource(entry.path())) continue;
      for (const Include& include : quotedIncludes(root, entry.path())) {
        const std::string from = roomOf(include.file);
        const std::string to = roomOf(include.target);
        ++checked;
        EXPECT_FALSE(to.empty()) << include.file << " includes \"" << include.target
                                 << "\", which is in no room: write paths from the root";
        EXPECT_TRUE(from == to || kAllowed.at(from).contains(to))
            << include.file << " (" << from << ") may not include " << include.target;
      }
    }
  }
  EXPECT_GT(checked, 50u);
}

TEST(IncludeArrows, KeepProtobufInsideOnnxImport) {
  const fs::path root = PIPESHARD_SOURCE_DIR;
  for (const char* folder :
       {"ir", "onnx_import", "sharding", "partition", "transport", "runtime", "planning", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !isSource(entry.path())) continue;
      const std::string file = fs::relative(entry.path(), root).string();
      if (roomOf(file) == "onnx_import") continue;
      std::ifstream stream(entry.path());
      std::string line;
      while (std::getline(stream, line)) {
        const bool foreign = line.starts_with("#include <onnx/") ||
                             line.starts_with("#include <google/protobuf") ||
                             line.starts_with("#include \"onnx/");
        EXPECT_FALSE(foreign) << file << ": " << line;
      }
    }
  }
}

}  // namespace
