#include "runtime/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial-";
constexpr const char* kRemoved = "removed";  // in the place of a job's name: is being removed
constexpr const char* kLatest = "LATEST";
constexpr const char* kUnfinishedLatest = "LATEST.tmp.";  // writeDurably's, while it writes

void writeManifest(const fs::path& folder, const std::string& manifest) {
  writeDurably(folder / kManifestFile, manifest);
  writeDurably(folder / kCommitFile, hashText(contentHash(manifest)) + "\n");
}

// "step-000140.partial-4f2a"
bool isPartialName(std::string_view name) {
  const size_t end = name.find(kPartial);
  if (end == std::string_view::npos) return false;
  const std::optional<int64_t> step = stepOfCheckpoint(name.substr(0, end));
  return step && name.substr(0, end) == checkpointName(*step);
}

// A new checkpoint of the step may not take its place.
bool isSomebodyElses(const fs::path& path) {
  if (!fs::exists(fs::symlink_status(path)) || isCheckpoint(path.string())) return false;
  return !fs::is_directory(path) || !fs::is_empty(path);
}

std::string describeObstacle(const fs::path& path) {
  return fmt::format(
      "{} is no checkpoint of pipeshard, and in the way of the one of that step, which cannot be saved: move "
      "it away, or name another folder by --checkpoint",
      path.string());
}

[[noreturn]] void refuseOneCheckpoint(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::optional<int64_t> named = stepOfCheckpoint(path.filename().string());
  const int64_t step = named ? *named : readManifest(path.string()).step;
  fail(ErrorCode::kConfiguration,
       "{0} is a checkpoint, and --checkpoint names the folder that has them. To go on from the newest: "
       "--checkpoint {1}. To go on from step {2}: copy this one into a folder of its own (`mkdir from-{2} && "
       "cp -r {0} from-{2}/{3}`) and give --checkpoint from-{2}",
       path.string(), folder.string(), step, checkpointName(step));
}

bool hasAllFiles(const fs::path& directory, const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.files,
                             [&](const CheckpointFile& file) { return fs::exists(directory / file.name); });
}

// Whether what is there is this checkpoint. One that says that all of it is there, and has not all, was no
// good by itself; from now on it says where the rest is.
bool adoptCopy(const fs::path& directory, const Checkpoint& adopted) {
  Checkpoint found;
  try {
    found = checkpointFromJson(requireTextFile((directory / kManifestFile).string()));
  } catch (const Error&) {
    return false;
  }
  if (manifestWithoutHosts(found) != manifestWithoutHosts(adopted)) return false;
  if (isInOneFolder(found) && !hasAllFiles(directory, found)) {
    std::error_code ignored;                       // where it cannot be removed it cannot be written, either
    fs::remove(directory / kCommitFile, ignored);  // first: a crash leaves a copy that was cut off, no damage
    syncFolder(directory);
    writeManifest(directory, checkpointToJson(adopted));
  }
  return true;
}

void requireParts(const Checkpoint& checkpoint) {
  for (size_t i = 0; i < checkpoint.files.size(); ++i) {
    const CheckpointFile& file = checkpoint.files[i];
    const bool is_here = !std::ranges::binary_search(checkpoint.elsewhere, static_cast<int>(i));
    if (is_here && !fs::exists(fs::path(checkpoint.directory) / file.name)) {
      fail(ErrorCode::kMissingInput,
           "{} is not in {}, where its rank has written it; has somebody removed it?", file.name,
           checkpoint.directory);
    }
  }
}

}  // namespace

std::map<std::string, std::string> companionsOf(const std::string& plan_directory) {
  std::map<std::string, std::string> companions;
  // The weights of the reference are the model's files, also where ranks have copies of their own.
  for (const std::string folder : {"", "reference"}) {
    for (const std::string name : {"plan.json", kWeightFilesName}) {
      std::optional<std::string> text = readTextFile((fs::path(plan_directory) / folder / name).string());
      if (text) companions.insert_or_assign(name, std::move(*text));  // one made by hand may lack them
    }
  }
  return companions;
}

std::string partialName(const std::string& directory, const std::string& job) {
  return directory + kPartial + job;
}

void removeCheckpoint(const std::string& directory) {
  std::error_code error;
  std::string gone = directory;
  if (!isPartialName(fs::path(directory).filename().string())) {
    gone = partialName(directory, kRemoved);
    fs::remove_all(gone, error);
    if (!error) fs::rename(directory, gone, error);
  }
  if (!error) fs::remove_all(gone, error);
  if (error) fail(ErrorCode::kDiskFull, "cannot remove {}: {}", directory, error.message());
}

void deleteCheckpoint(const std::string& directory) {
  const fs::path path(directory);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string latest = (folder / kLatest).string();
  removeCheckpoint(directory);
  if (readTextFile(latest) != path.filename().string() + "\n") return;
  const std::vector<std::string> left = listCheckpoints(folder.string());
  if (left.empty()) {
    fs::remove(latest);
  } else {
    writeDurably(latest, fs::path(left.front()).filename().string() + "\n");
  }
}

CheckpointFolder::CheckpointFolder(std::string path, std::string job, int keep,
                                   std::map<std::string, std::string> companions,
                                   std::chrono::milliseconds patience, const std::string& adopted)
    : path_(std::move(path)), job_(std::move(job)), keep_(keep), companions_(std::move(companions)) {
  PIPESHARD_CHECK(keep_ >= 1, "{} checkpoints are to be kept", keep_);
  if (isCheckpoint(path_)) refuseOneCheckpoint(path_);
  makeFolder(path_, FileAccess::kOwner);
  lock_ = FolderLock(fs::path(path_) / "lock", path_, "another job writes its checkpoints into", patience);
  if (!adopted.empty()) adopt(adopted);
  sweep();
}

void CheckpointFolder::adopt(const std::string& manifest) const {
  const Checkpoint checkpoint = checkpointFromJson(manifest);
  const fs::path directory = fs::path(path_) / checkpointName(checkpoint.step);
  const fs::path partial = partialName(directory.string(), checkpoint.job);
  const bool is_there = fs::exists(directory / kCommitFile);
  if (is_there && adoptCopy(directory, checkpoint)) return;
  if (fs::exists(partial) && isSomebodyElses(directory))
    fail(ErrorCode::kConfiguration, "{}", describeObstacle(directory));
  if (fs::exists(partial)) {  // the crash came before this host had heard of the commit, or while it did it
    writeManifest(partial, manifest);
    exchangeNames(partial, directory);
    syncFolder(path_);
    if (fs::exists(partial)) removeCheckpoint(partial.string());
  } else if (!is_there) {
    const bool has_files = fs::exists(directory);  // somebody has copied them
    const fs::path place = has_files ? directory : partial;
    makeFolder(place, FileAccess::kOwner);
    writeManifest(place, manifest);
    if (!has_files) exchangeNames(place, directory);
    syncFolder(path_);
  } else {
    fail(ErrorCode::kConfiguration,
         "{} on this host's own disk is not the checkpoint of that step which the coordinator goes on from; "
         "remove one of the two, or name another folder",
         directory.string());
  }
}

void CheckpointFolder::sweep() const {
  std::vector<fs::path> rubbish;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (std::error_code ignored; name.starts_with(kDiskProbe) || name.starts_with(kUnfinishedLatest))
      fs::remove(entry.path(), ignored);
    if (entry.is_directory() && isPartialName(name)) rubbish.push_back(entry.path());
  }
  for (const fs::path& path : rubbish) removeCheckpoint(path.string());
}

std::vector<std::string> CheckpointFolder::describeObstacles() const {
  std::vector<std::string> texts;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    const std::optional<int64_t> step = stepOfCheckpoint(name);
    if (step && name == checkpointName(*step) && isSomebodyElses(entry.path()))
      texts.push_back(describeObstacle(entry.path()));
  }
  std::ranges::sort(texts);
  return texts;
}

std::string CheckpointFolder::partialOf(int64_t step) const {
  return partialName((fs::path(path_) / checkpointName(step)).string(), job_);
}

void CheckpointFolder::discard(int64_t step) {
  std::error_code ignored;  // the next job sweeps what is left
  fs::remove_all(partialOf(step), ignored);
}

Checkpoint CheckpointFolder::commit(Checkpoint checkpoint,
                                    const std::function<void(const std::string&)>& notice) {
  const int64_t step = checkpoint.step;
  try {
    checkpoint.directory = partialOf(step);
    requireParts(checkpoint);
    if (checkpoint.tensors.empty()) checkpoint.tensors = describeTensors(openTensors(checkpoint));
    publish(checkpoint);
    checkpoint.directory = (fs::path(path_) / checkpointName(step)).string();
  } catch (const std::exception&) {
    discard(step);
    throw;
  }
  committed_.insert(step);
  // It is there now, whatever becomes of the rest.
  for (const auto& work : {std::function<void()>([&] { announce(checkpoint); }), std::function<void()>([&] {
                             prune(checkpoint.elsewhere.empty() ? keep_ : std::max(2, keep_));
                           })}) {
    try {
      work();
    } catch (const std::exception& error) {
      if (notice) notice(fmt::format("{} is there, but: {}", checkpoint.directory, error.what()));
    }
  }
  return checkpoint;
}

void CheckpointFolder::publish(const Checkpoint& checkpoint) const {
  const fs::path partial = checkpoint.directory;
  const fs::path final_name = fs::path(path_) / checkpointName(checkpoint.step);
  if (isSomebodyElses(final_name)) fail(ErrorCode::kConfiguration, "{}", describeObstacle(final_name));
  const std::string manifest = checkpointToJson(checkpoint);
  makeFolder(partial, FileAccess::kOwner);  // no rank may have written on this host
  for (const auto& [name, text] : companions_) writeDurably(partial / name, text);
  writeManifest(partial, manifest);
  exchangeNames(partial, final_name);
  syncFolder(path_);
}

// Of a step that had a checkpoint, that one has the partial name now.
void CheckpointFolder::announce(const Checkpoint& checkpoint) const {
  if (fs::exists(partialOf(checkpoint.step))) removeCheckpoint(partialOf(checkpoint.step));
  writeDurably(fs::path(path_) / kLatest, checkpointName(checkpoint.step) + "\n");
}

void CheckpointFolder::prune(int keep) const {
  std::vector<std::string> good;
  for (const std::string& directory : listCheckpoints(path_)) {
    const int64_t step = *stepOfCheckpoint(fs::path(directory).filename().string());
    const bool abandoned = resumed_step_ && step > *resumed_step_ && !committed_.contains(step);
    const bool is_reached = !committed_.empty() && *committed_.rbegin() > step;
    if (abandoned) {
      if (later_ == Later::kGo || is_reached) removeCheckpoint(directory);
    } else {
      good.push_back(directory);
    }
  }
  for (size_t i = keep; i < good.size(); ++i) removeCheckpoint(good[i]);
}

}  // namespace pipeshard
