#include "runtime/checkpoint/checkpoint_folder.h"

#include <filesystem>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/files/content_hash.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial-";

}  // namespace

void removeCheckpoint(const std::string& directory) {
  std::error_code error;
  fs::remove(fs::path(directory) / kCommitFile, error);
  if (!error) fs::remove_all(directory, error);
  if (error) fail(ErrorCode::kDiskFull, "cannot remove {}: {}", directory, error.message());
}

CheckpointFolder::CheckpointFolder(std::string path, std::string job, int keep,
                                   std::map<std::string, std::string> companions,
                                   std::chrono::milliseconds patience)
    : path_(std::move(path)), job_(std::move(job)), keep_(keep), companions_(std::move(companions)) {
  PIPESHARD_CHECK(keep_ >= 1, "{} checkpoints are to be kept", keep_);
  makeFolder(path_);
  lock_ = FolderLock(fs::path(path_) / "lock", path_, "another job writes its checkpoints into", patience);
  sweep();
}

void CheckpointFolder::sweep() const {
  std::vector<fs::path> rubbish;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("step-") && !fs::exists(entry.path() / kCommitFile))
      rubbish.push_back(entry.path());
    if (entry.is_directory() && name.find(kPartial) != std::string::npos &&
        fs::exists(entry.path() / kCommitFile))
      rubbish.push_back(entry.path());  // it died between COMMIT and the new name
  }
  for (const fs::path& path : rubbish) removeCheckpoint(path.string());
}

std::string CheckpointFolder::partialOf(int64_t step) const {
  return (fs::path(path_) / (checkpointName(step) + kPartial + job_)).string();
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
    for (const CheckpointFile& file : checkpoint.files) {
      if (!fs::exists(fs::path(checkpoint.directory) / file.name)) {
        fail(ErrorCode::kMissingInput,
             "{} of checkpoint {} was written on another host; --checkpoint needs a folder that all hosts "
             "share",
             file.name, checkpoint.directory);
      }
    }
    checkpoint.tensors = describeTensors(openTensors(checkpoint));
    publish(checkpoint);
    checkpoint.directory = (fs::path(path_) / checkpointName(step)).string();
  } catch (const std::exception&) {
    discard(step);
    throw;
  }
  committed_.insert(step);
  // It is there now, whatever becomes of the rest.
  for (const auto& work :
       {std::function<void()>([&] { announce(checkpoint); }), std::function<void()>([&] { prune(); })}) {
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
  const std::string manifest = checkpointToJson(checkpoint);
  for (const auto& [name, text] : companions_) writeDurably(partial / name, text);
  writeDurably(partial / kManifestFile, manifest);
  writeDurably(partial / kCommitFile, hashText(contentHash(manifest)) + "\n");
  exchangeNames(partial, final_name);
  syncFolder(path_);
}

// Of a step that had a checkpoint, that one has the partial name now.
void CheckpointFolder::announce(const Checkpoint& checkpoint) const {
  if (fs::exists(partialOf(checkpoint.step))) removeCheckpoint(partialOf(checkpoint.step));
  writeDurably(fs::path(path_) / "LATEST", checkpointName(checkpoint.step) + "\n");
}

void CheckpointFolder::prune() const {
  std::vector<std::string> good;
  for (const std::string& directory : listCheckpoints(path_)) {
    const int64_t step = *stepOfCheckpoint(fs::path(directory).filename().string());
    const bool abandoned = resumed_step_ && step > *resumed_step_ && !committed_.contains(step);
    if (abandoned) {
      removeCheckpoint(directory);
    } else {
      good.push_back(directory);
    }
  }
  for (size_t i = keep_; i < good.size(); ++i) removeCheckpoint(good[i]);
}

}  // namespace pipeshard
