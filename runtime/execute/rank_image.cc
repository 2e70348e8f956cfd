#include "runtime/execute/rank_image.h"

#include <filesystem>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/program/program_json.h"
#include "ir/program/program_verify.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {
namespace {

// What reads a program uses its numbers as indices.
void requireSound(const Program& program) {
  try {
    verifyProgram(program);
  } catch (const Error& error) {
    fail(ErrorCode::kConfiguration, "{}; the file was changed since it was made: plan again",
         error.message());
  }
}

}  // namespace

std::string rankDirectoryName(RankId rank) { return fmt::format("{:04}", rank.index()); }

Program loadProgram(const std::string& directory) {
  const std::string program_path = (std::filesystem::path(directory) / "program.json").string();
  const std::string text = requireTextFile(program_path);
  try {
    Program program = programFromJson(text);
    requireSound(program);
    return program;
  } catch (Error& error) {
    error.addContext(program_path);
    throw;
  }
}

RankImage loadRank(const std::string& directory) {
  const std::filesystem::path folder(directory);
  RankImage image;
  image.directory = directory;
  image.program = loadProgram(directory);
  for (const Subgraph& subgraph : image.program.subgraphs) {
    const std::filesystem::path name(subgraph.file);
    if (name.has_parent_path() || name.empty()) {
      fail(ErrorCode::kConfiguration, "{}: the file '{}' of subgraph '{}' is not in the rank's folder",
           (folder / "program.json").string(), subgraph.file, subgraph.name);
    }
    image.subgraphs.push_back(readModel((folder / name).string()));
  }
  return image;
}

int countRanks(const std::string& plan_directory) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(plan_directory) / "ranks";
  std::error_code error;
  int count = 0;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    count += entry->is_directory() ? 1 : 0;
  }
  if (error || count == 0) {
    fail(ErrorCode::kMissingInput,
         "{} is not a plan directory: it has no folder ranks/ with a folder per rank; make one with "
         "`pipeshard plan`",
         plan_directory);
  }
  for (RankId rank : idsBelow<RankId>(count)) {
    if (!fs::is_directory(folder / rankDirectoryName(rank))) {
      fail(ErrorCode::kConfiguration, "{} holds {} ranks, but not {}; plan again", folder.string(), count,
           rankDirectoryName(rank));
    }
  }
  return count;
}

}  // namespace pipeshard
