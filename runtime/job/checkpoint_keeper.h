// When a job's ranks save, and what becomes of what they report. Internal to the coordinator.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_committer.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/resume_check.h"
#include "runtime/checkpoint/save_shares.h"
#include "runtime/disks/disk_exchange.h"
#include "runtime/job/job.h"

namespace pipeshard {

class ProgramFolder;  // runtime/execute/rank_image.h

class CheckpointKeeper {
 public:
  using Notice = std::function<void(const std::string&)>;

  // Takes the folder, and finds what to go on from. `programs`: the plan's. `job`: its name. Errors as
  // CheckpointFolder, newestGoodCheckpoint, requireFits and requireSameExtent; kConfiguration where the one
  // found was made with another seed, or with data where this job is to do steps without any; kMissingInput
  // where a job without nodes has work to do, and what it needs of the one found is on other hosts' disks.
  CheckpointKeeper(const JobSpec& spec, ProgramFolder& programs, const std::string& job, int ranks,
                   Notice notice);

  // The programs that ranks load, before the first save: what they keep is what checkpoints have, whatever
  // becomes of the plan's folder meanwhile.
  void holdPrograms(ProgramSet programs);

  const std::optional<Checkpoint>& resumed() const { return resumed_; }

  // For the nodes.
  CheckpointPlace place() const;

  // The last step that may be asked for together with step `after` + 1, so that a checkpoint can follow it.
  int64_t lastBeforeSave(int64_t after) const;
  // Whether ranks are to save after `step`.
  bool isDue(int64_t step) const;
  // Where ranks write the step that they have been asked to save.
  std::string begin(int64_t step);
  // What each of them saves. `diskOf` is asked at the first call: disks do not change in a job. Error as
  // shareSaves.
  const SaveShares& shares(const std::function<DiskOfNode(RankId)>& diskOf);
  // What a rank reports, and on which disk. When it was the last one to do so, the checkpoint is made beside
  // what follows.
  void take(RankId rank, SavedPart part, const DiskOfNode& disk = {});
  // For people, of a part that is not finite (CheckpointWriter). `newest`: the newest checkpoint; "": none.
  std::string describeSpoiled(RankId rank, const SavedPart& part, const std::string& newest) const;
  // The checkpoints that are there by now, and the steps that there is none of; failures are noticed. There
  // is something to take while descriptor() can be read.
  struct Ended {
    std::vector<Checkpoint> committed;
    std::vector<int64_t> dropped;
  };
  Ended takeEnded();
  int descriptor() const { return committer_.descriptor(); }

  bool isSaving() const { return !pending_.empty() || committing_ > 0; }
  int64_t lastBegun() const { return last_begun_; }  // step; -1: none
  // Why the newest of the checkpoints is not there; "" if it is.
  const std::string& failure() const { return failure_; }

 private:
  // Whether the plan can go on from what was found, and what there is to say of it.
  void checkResumed(ProgramFolder& programs, bool needs_all_here) const;
  void checkData() const;
  // Of a job without nodes: all of `kept` that the checkpoint has is on this disk.
  void requireAllHere(const KeptTensors& kept) const;

  struct Pending {
    std::vector<std::optional<CheckpointFile>> files;  // by rank
    std::vector<int> elsewhere;                        // of these, on disks that are not the coordinator's
    int reported = 0;
    std::string error;
  };
  CheckpointSpec spec_;
  bool finds_nan_;
  ProgramSet programs_;  // as far as saving needs them; none behind shares()
  std::optional<SaveShares> shares_;
  Checkpoint common_;
  int ranks_;
  Notice notice_;
  CheckpointFolder folder_;
  std::optional<Checkpoint> resumed_;
  CheckpointCommitter committer_;
  int committing_ = 0;
  std::map<int64_t, Pending> pending_;  // by step
  int64_t last_begun_ = -1;
  std::chrono::steady_clock::time_point last_begun_at_ = std::chrono::steady_clock::now();
  std::string failure_;
};

}  // namespace pipeshard
