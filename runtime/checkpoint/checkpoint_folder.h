// The folder that a job writes its checkpoints into. The coordinator's side: it says where ranks write, and
// makes a checkpoint of what they have written.
//
// The order of commit() is what keeps a crash at any moment from losing anything: ranks have synced their
// files; then manifest.json, COMMIT, the folder and its new name reach the disk, each before the next; only
// then are older checkpoints removed, which get a partial name first. So what has a partial name is rubbish,
// and nothing else is: a folder with another name that has no COMMIT is a copy that was cut off, or is not
// pipeshard's; it is named, and stays.
//
// Where hosts write on disks of their own, each has such a folder. The coordinator's decides: it commits when
// all ranks of all hosts have synced their files, and the others do so after it. At least two checkpoints
// stay then: a host that has not done so yet, and is the coordinator's next, has the older one. What a crash
// has kept them from they do when the next job begins (`adopted`): the files are there, under their partial
// name.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {

class CheckpointFolder {
 public:
  // `companions`: further files of every checkpoint, by name.
  // Creates the folder where there is none, takes its lock, and removes what jobs that died have left
  // half-written, under partial names. `keep`: how many checkpoints stay, at least 1. Errors: kDiskFull;
  // kAddressInUse naming the process that writes here, when it has not ended within `patience`;
  // kConfiguration where `path` is itself a checkpoint. `adopted`: the text of the manifest of a checkpoint
  // that another host has committed. It is one here then, with as many of its files as there are; a copy that
  // says otherwise where its files are stays as it is, if it has all that it says. Error(kConfiguration)
  // where there is another one of its step.
  CheckpointFolder(std::string path, std::string job, int keep,
                   std::map<std::string, std::string> companions = {},
                   std::chrono::milliseconds patience = FolderLock::kPatience,
                   const std::string& adopted = "");

  // Where ranks write `step`: the first of them makes the folder, or commit() where none is on this host.
  // Touches no disk.
  std::string partialOf(int64_t step) const;
  // Every rank has written its file there and synced it: checks that the parts make whole tensors, which
  // fills `tensors` in where it is empty, and turns the folder into a checkpoint. Of the files `elsewhere`
  // none is looked for here: then the caller says what `tensors` are. Error(kDiskFull); kBadModel,
  // kMissingInput for files that are not what they should be; kConfiguration where something that is no
  // checkpoint has the checkpoint's name. After an error the folder of the step is gone, and the older
  // checkpoints are there. `notice`: told what could not be done beside a checkpoint that is there.
  Checkpoint commit(Checkpoint checkpoint, const std::function<void(const std::string&)>& notice = {});
  // The job goes on after this step: later checkpoints, which were no good, go away with the next commit
  // (kGo); or, where nobody has found them bad, with that of a step that is as late as theirs (kStay).
  enum class Later { kGo, kStay };
  void goOnAfter(int64_t step, Later later = Later::kGo) {
    resumed_step_ = step;
    later_ = later;
  }
  // Of a step that is not to be committed.
  void discard(int64_t step);

  const std::string& path() const { return path_; }
  // Of what has the name of a checkpoint and is none: what it is in the way of, for people.
  std::vector<std::string> describeObstacles() const;

 private:
  void adopt(const std::string& manifest) const;
  void sweep() const;
  void prune(int keep) const;
  void announce(const Checkpoint& checkpoint) const;
  void publish(const Checkpoint& checkpoint) const;

  std::string path_;
  std::string job_;
  int keep_;
  std::map<std::string, std::string> companions_;
  std::optional<int64_t> resumed_step_;
  Later later_ = Later::kGo;
  std::set<int64_t> committed_;
  FolderLock lock_;
};

// The further files of checkpoints of this plan: which model it is of, and what its files were.
std::map<std::string, std::string> companionsOf(const std::string& plan_directory);

// Where the parts of a checkpoint DIR/step-000120 are until it is one.
std::string partialName(const std::string& directory, const std::string& job);
// How names of files begin that hosts look for to find out whether they see the same folder.
inline constexpr const char* kDiskProbe = ".probe-";

// Removes a checkpoint, or a partial one. A crash leaves it whole, or under a partial name. Error(kDiskFull)
// where that is not allowed.
void removeCheckpoint(const std::string& directory);
// The same of one that people do not want any more: LATEST names the newest of those that are left.
void deleteCheckpoint(const std::string& directory);

}  // namespace pipeshard
