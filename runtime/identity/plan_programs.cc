#include "runtime/identity/plan_programs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "ir/program/communication_order.h"
#include "ir/program/program_set_verify.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr int kRecordVersion = 1;

// Every file, and every combination of kinds, is looked at once.
class Digests {
 public:
  explicit Digests(ProgramFolder& programs, const std::map<std::string, uint64_t>& known = {},
                   std::function<void()> look = {})
      : programs_(programs), look_(std::move(look)) {
    for (const auto& [file, digest] : known)
      of_files_.emplace((fs::path(programs.folder()) / file).string(), digest);
  }

  IdVector<RankId, std::string> ofAll() {
    IdVector<RankId, std::string> digests;
    for (const RankId rank : idsBelow<RankId>(programs_.ranks())) digests.push_back(of(rank));
    return digests;
  }

  std::string of(RankId rank) {
    std::vector<KindId> kinds;
    for (const StepSize size : programs_.sizes()) kinds.push_back(programs_.kindOf(rank, size));
    const auto [found, is_new] = of_kinds_.try_emplace(kinds);
    if (is_new) found->second = digestOf(programs_.files(rank));
    return found->second;
  }

 private:
  std::string digestOf(const std::vector<std::string>& files) {
    RunningHash hash;
    for (const std::string& file : files) {
      const std::string name = fs::path(file).lexically_relative(programs_.folder()).string();
      const std::string line = fmt::format("{} {}\n", name, hashText(digestOf(file)));
      hash.add(line.data(), line.size());
    }
    return hashText(hash.value());
  }

  uint64_t digestOf(const std::string& file) {
    const auto read = programs_.digests().find(file);
    if (read != programs_.digests().end()) return read->second;
    const auto [found, is_new] = of_files_.try_emplace(file, 0);
    if (!is_new) return found->second;
    if (look_) look_();
    requireUsualSize(file);
    return found->second = contentHashOfFile(file);
  }

  // As whoever reads it does; larger ones are not read to find that out.
  static void requireUsualSize(const std::string& file) {
    const uint64_t bytes = fileBytes(openForReading(file), file);
    if (bytes <= kMostTextBytes) return;
    fail(
        file.ends_with(".onnx") ? ErrorCode::kBadModel : ErrorCode::kConfiguration,
        "{} has {}; a file of a plan's programs has at most {}; it was changed since it was made: plan again",
        file, formatBytes(static_cast<int64_t>(bytes)), formatBytes(kMostTextBytes));
  }

  ProgramFolder& programs_;
  std::function<void()> look_;
  std::map<std::string, uint64_t> of_files_;
  std::map<std::vector<KindId>, std::string> of_kinds_;
};

std::string joinedDigest(const IdVector<RankId, std::string>& digests) {
  std::string text;
  for (const std::string& digest : digests) text += digest + "\n";
  return hashText(contentHash(text));
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

void verifyTogether(ProgramFolder& programs, StepSize size) {
  try {
    const ProgramSet set = programs.takeSet(size);
    verifyProgramSet(set);
    // Whatever kernels compute in the memory of a sum that is being sent: there they wait, too.
    const std::vector<Program> sampled = samplePrograms(set, sampleOf(set));
    communicationOrder(sampled, TransferQueues::kPerPair, mostAccumulation(sampled));
  } catch (const Error& error) {
    fail(ErrorCode::kConfiguration,
         "{}: the programs of its ranks do not fit each other: {}; they were changed since they were made: "
         "plan again",
         programs.folder(), error.message());
  }
}

}  // namespace

std::string programsDigest(ProgramFolder& programs, RankId rank) { return Digests(programs).of(rank); }

void recordPrograms(const std::string& plan_directory) {
  ProgramFolder programs(plan_directory);
  recordPrograms(programs, {});
}

void recordPrograms(ProgramFolder& programs, const std::map<std::string, uint64_t>& digests) {
  nlohmann::ordered_json document;
  document["version"] = kRecordVersion;
  document["programs"] = joinedDigest(Digests(programs, digests).ofAll());
  writeTextFile((fs::path(programs.folder()) / kProgramsRecordName).string(), document.dump() + "\n");
}

IdVector<RankId, std::string> requireSoundPrograms(ProgramFolder& programs,
                                                   const std::function<void(const std::string&)>& notice,
                                                   const std::function<void()>& look) {
  IdVector<RankId, std::string> digests = Digests(programs, {}, look).ofAll();
  const std::string recorded = recordedDigest(programs.folder());
  if (recorded == joinedDigest(digests)) return digests;
  for (const StepSize size : programs.sizes()) verifyTogether(programs, size);
  if (!recorded.empty() && notice) {
    notice(fmt::format(
        "the programs of {} were changed since they were made; they fit each other, and are run as they are",
        programs.folder()));
  }
  return digests;
}

}  // namespace pipeshard
