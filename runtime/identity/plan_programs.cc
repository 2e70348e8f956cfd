#include "runtime/identity/plan_programs.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "ir/program/program_verify.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/content_hash.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr int kRecordVersion = 1;

std::string rankFolder(const std::string& plan_directory, RankId rank) {
  return (fs::path(plan_directory) / "ranks" / rankDirectoryName(rank)).string();
}

void addProgramFiles(const fs::path& folder, std::vector<std::string>& files) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.filename() == "program.json" || path.extension() == ".onnx") files.push_back(path.string());
  }
  if (error) fail(ErrorCode::kMissingInput, "{} cannot be read: {}", folder.string(), error.message());
}

std::string joinedDigest(const IdVector<RankId, std::string>& digests) {
  std::string text;
  for (const std::string& digest : digests) text += digest + "\n";
  return hashText(contentHash(text));
}

IdVector<RankId, std::string> digestsOf(const std::string& plan_directory) {
  IdVector<RankId, std::string> digests;
  for (const RankId rank : idsBelow<RankId>(countRanks(plan_directory)))
    digests.push_back(programsDigest(rankFolder(plan_directory, rank)));
  return digests;
}

// "" where there is none: a directory that was made by hand.
std::string recordedDigest(const std::string& plan_directory) {
  const std::string path = (fs::path(plan_directory) / kProgramsRecordName).string();
  const std::optional<std::string> text = readTextFile(path, 4096, "a record of programs");
  if (!text) return "";
  const Json json = parseJson(*text, path);
  checkJsonVersion(json, path, kRecordVersion);
  const JsonReader document(json, path);
  document.expectObject({"version", "programs"});
  return document.at("programs").string();
}

// Of the whole batches (inside ""), or of the last one.
void verifyTogether(const std::string& plan_directory, size_t ranks, const char* inside) {
  std::vector<Program> programs;
  for (const RankId rank : idsBelow<RankId>(ranks))
    programs.push_back(loadProgram((fs::path(rankFolder(plan_directory, rank)) / inside).string()));
  try {
    verifyPrograms(programs);
  } catch (const Error& error) {
    fail(ErrorCode::kConfiguration,
         "{}: the programs of its ranks do not fit each other: {}; they were changed since they were made: "
         "plan again",
         plan_directory, error.message());
  }
}

}  // namespace

std::vector<std::string> programFiles(const std::string& rank_directory) {
  std::vector<std::string> files;
  const fs::path folder(rank_directory);
  addProgramFiles(folder, files);
  if (fs::is_directory(folder / kLastBatchFolder)) addProgramFiles(folder / kLastBatchFolder, files);
  std::sort(files.begin(), files.end());
  return files;
}

std::string programsDigest(const std::string& rank_directory) {
  RunningHash hash;
  for (const std::string& file : programFiles(rank_directory)) {
    const std::string line =
        fmt::format("{} {}\n", fs::path(file).lexically_relative(rank_directory).string(),
                    hashText(contentHashOfFile(file)));
    hash.add(line.data(), line.size());
  }
  return hashText(hash.value());
}

void recordPrograms(const std::string& plan_directory) {
  nlohmann::ordered_json document;
  document["version"] = kRecordVersion;
  document["programs"] = joinedDigest(digestsOf(plan_directory));
  writeTextFile((fs::path(plan_directory) / kProgramsRecordName).string(), document.dump() + "\n");
}

IdVector<RankId, std::string> requireSoundPrograms(const std::string& plan_directory,
                                                   const std::function<void(const std::string&)>& notice) {
  IdVector<RankId, std::string> digests = digestsOf(plan_directory);
  const std::string recorded = recordedDigest(plan_directory);
  if (recorded == joinedDigest(digests)) return digests;
  verifyTogether(plan_directory, digests.size(), "");
  std::error_code ignored;
  const fs::path last = fs::path(rankFolder(plan_directory, RankId(0))) / kLastBatchFolder;
  if (fs::is_directory(last, ignored)) verifyTogether(plan_directory, digests.size(), kLastBatchFolder);
  if (!recorded.empty() && notice) {
    notice(fmt::format(
        "the programs of {} were changed since they were made; they fit each other, and are run as they are",
        plan_directory));
  }
  return digests;
}

}  // namespace pipeshard
