#include "runtime/identity/job_identity.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/graph/weight_files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// A folder with more files is one part: a control message holds so many.
constexpr size_t kMostDataParts = 256;

class IdentityReading {
 public:
  IdentityReading(const IdentityRequest& request, ReadingProgress* progress)
      : request_(request), folder_(request.plan_directory), progress_(progress) {}

  JobIdentity run() {
    const bool is_unmade = isUnmade();
    if (!is_unmade && !fs::is_directory(folder_)) {
      fail(ErrorCode::kMissingInput,
           "the plan directory {} is not on this host; plan, model and data must have the same path on all "
           "hosts (a shared folder)",
           request_.plan_directory);
    }
    if (!is_unmade || hasPlan(folder_)) addFile("plan", (folder_ / "plan.json").string());
    if (!is_unmade) {
      ProgramFolder programs(folder_.string());
      addPrograms(programs);
      addWeights(programs);
    }
    addEvaluation();
    addData("data", request_.data);
    addData("held-out data", request_.held_out);
    addData("adopted values", request_.adopted);
    if (!request_.checkpoint.empty()) addCheckpoint();
    return std::move(parts_);
  }

 private:
  static bool hasPlan(const fs::path& folder) { return fs::exists(folder / "plan.json"); }
  // A plan for fewer devices lies two folders below the one that it is made of.
  bool isUnmade() const {
    return request_.may_be_unmade && !fs::exists(folder_ / kRanksFileName) &&
           (hasPlan(folder_) || hasPlan(folder_.parent_path().parent_path()));
  }

  template <typename Digest>
  void add(const std::string& what, const std::string& path, Digest digest) {
    parts_.push_back({what, path, ""});
    try {
      parts_.back().digest = hashText(digest());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kMissingInput) throw;
    }
  }
  void addFile(const char* what, const std::string& path) {
    add(what, path, [&] { return digestOfFile(path, progress_); });
  }

  // Hosts on disks of their own may say in other ways where its files are.
  void addCheckpoint() {
    const std::string path = (fs::path(request_.checkpoint) / kManifestFile).string();
    add("checkpoint", path,
        [&] { return contentHash(manifestWithoutHosts(checkpointFromJson(requireTextFile(path)))); });
  }

  void addPrograms(ProgramFolder& programs) {
    std::set<std::string> paths;
    for (const RankId rank : request_.ranks) {
      for (std::string& path : programs.files(rank)) paths.insert(std::move(path));
    }
    for (const std::string& path : paths) addFile("program", path);
  }

  // Those that these ranks read, of those that the plan knows.
  void addWeights(ProgramFolder& programs) {
    std::set<std::string> paths;
    std::set<KindId> seen;
    for (const RankId rank : request_.ranks) {
      const KindId kind = programs.kindOf(rank);
      if (seen.contains(kind)) continue;
      const Program program = programs.program(rank);
      const bool copies = std::any_of(program.buffers.begin(), program.buffers.end(),
                                      [](const Buffer& buffer) { return buffer.own_copy; });
      if (!copies) seen.insert(kind);  // copies are each rank's own
      for (const Buffer& buffer : program.buffers) {
        const auto* weight = buffer.source ? std::get_if<WeightReference>(&*buffer.source) : nullptr;
        if (weight != nullptr && !weight->drawn)
          paths.insert((fs::path(programs.folder()) / weight->location).string());
      }
    }
    uint64_t bytes = 0;
    for (const std::string& path : paths) {
      std::error_code ignored;
      const uintmax_t size = fs::file_size(path, ignored);
      if (!ignored) bytes += size;
    }
    if (progress_ != nullptr) progress_->bytes_in_all = progress_->bytes_done + bytes;
    for (const std::string& path : paths) addFile("weights", path);
  }

  // They work on the tensors of those that train, and may have constants of their own.
  void addEvaluation() {
    if (request_.evaluation.empty()) return;
    if (!fs::exists(fs::path(request_.evaluation) / kRanksFileName)) {
      if (request_.may_be_unmade) return;
      fail(ErrorCode::kMissingInput,
           "the programs that evaluate held-out data, {}, are not on this host; copy the folder from the "
           "coordinator's host",
           request_.evaluation);
    }
    ProgramFolder programs(request_.evaluation);
    addPrograms(programs);
    addWeights(programs);
  }

  void addData(const char* what, const std::string& data) {
    if (data.empty()) return;
    std::error_code ignored;
    if (!fs::is_directory(data, ignored)) {
      add(what, data, [&] { return sampledDigestOfFile(data); });
      return;
    }
    std::vector<std::string> files;
    for (auto entry = fs::recursive_directory_iterator(data, ignored);
         !ignored && entry != fs::recursive_directory_iterator(); entry.increment(ignored)) {
      std::error_code gone;
      if (entry->is_regular_file(gone)) files.push_back(entry->path().string());
    }
    std::sort(files.begin(), files.end());
    const bool one_by_one = files.size() <= kMostDataParts;
    if (one_by_one) {
      for (const std::string& file : files) add(what, file, [&] { return sampledDigestOfFile(file); });
    }
    // A file that one host alone has makes other data, too.
    add(what + std::string(kFolderSuffix), data, [&] {
      RunningHash hash;
      for (const std::string& file : files) {
        const std::string line =
            fmt::format("{} {}\n", file, one_by_one ? "" : hashText(sampledDigestOfFile(file)));
        hash.add(line.data(), line.size());
      }
      return hash.value();
    });
  }

  const IdentityRequest& request_;
  fs::path folder_;
  ReadingProgress* progress_;
  JobIdentity parts_;
};

}  // namespace

JobIdentity readJobIdentity(const IdentityRequest& request, ReadingProgress* progress) {
  return IdentityReading(request, progress).run();
}

}  // namespace pipeshard
