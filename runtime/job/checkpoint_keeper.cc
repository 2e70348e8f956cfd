#include "runtime/job/checkpoint_keeper.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "runtime/data/row_lengths.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/content_hash.h"
#include "runtime/job/host_name.h"

namespace pipeshard {

namespace {

// What decides which rows a step has.
std::string describeData(const JobSpec& spec, ProgramFolder& programs) {
  const ShorterInputs shorter = shorterInputs(programs, RankId(0));
  if (shorter.empty()) return printData(spec.data);
  const RowLengths lengths(spec.data, programs.program(RankId(0)).inputs, shorter);
  return fmt::format("{}, in sequences of {}", printData(spec.data), lengths.describeLengths());
}

// What describeData says where no data were given.
bool saysRandomNumbers(const std::string& data) { return data.empty() || data.starts_with(", "); }

// For people.
std::string nameData(const std::string& data) {
  return saysRandomNumbers(data) ? "random numbers" + data : fmt::format("the data '{}'", data);
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(const JobSpec& spec, ProgramFolder& programs, const std::string& job,
                                   int ranks, Notice notice)
    : spec_(spec.checkpoint),
      finds_nan_(spec.find_nan),
      ranks_(ranks),
      notice_(std::move(notice)),
      folder_(spec_.directory, job, spec_.keep, companionsOf(spec.plan_directory)),
      resumed_(newestGoodCheckpoint(spec_.directory, notice_, spec_.before)),
      committer_(folder_) {
  for (const std::string& text : folder_.describeObstacles()) notice_(fmt::format("warning: {}", text));
  common_.job = job;
  const auto plan = readTextFile((std::filesystem::path(spec.plan_directory) / "plan.json").string());
  common_.plan = hashText(contentHash(plan.value_or("")));
  common_.data = describeData(spec, programs);
  common_.seed = spec.data.seed;
  const Program program = programs.program(RankId(0));
  common_.extent = StepExtent{batchRows(program), program.updates_per_step};
  if (!resumed_) return;
  last_begun_ = resumed_->step;
  folder_.goOnAfter(resumed_->step);
  const bool has_work = spec.steps > resumed_->step || spec.evaluation.asked();
  checkResumed(programs, spec.nodes == nullptr && has_work);
  if (spec.steps > resumed_->step) checkData();
}

// Instructions are most of a program, and not needed.
void CheckpointKeeper::holdPrograms(ProgramSet programs) {
  for (ProgramKind& kind : programs.kinds) {
    Program kept;
    kept.rank = kind.program.rank;
    kept.world_size = kind.program.world_size;
    kept.buffers = std::move(kind.program.buffers);
    kept.results = std::move(kind.program.results);
    kind.program = std::move(kept);
    kind.own_constants.clear();
  }
  for (RankBinding& rank : programs.ranks) rank.constants.clear();
  programs_ = std::move(programs);
}

void CheckpointKeeper::checkResumed(ProgramFolder& programs, bool needs_all_here) const {
  if (resumed_->seed != common_.seed) {
    fail(ErrorCode::kConfiguration,
         "checkpoint {} was made with --seed {}, this run has --seed {}: the random numbers would be others; "
         "give the same seed, or another --checkpoint folder",
         resumed_->directory, resumed_->seed, common_.seed);
  }
  const KeptTensors kept = keptTensors(programs);
  const std::vector<std::string> left = requireFits(kept, *resumed_);
  requireSameExtent(*common_.extent, *resumed_);
  if (needs_all_here) requireAllHere(kept);
  if (resumed_->plan != common_.plan) {
    notice_(fmt::format(
        "checkpoint {} was saved under another plan; {}", resumed_->directory,
        left.empty() ? "all of it goes on"
                     : fmt::format("this one does not keep {}, the rest goes on", fmt::join(left, ", "))));
  }
  if (resumed_->plan != common_.plan && !resumed_->extent) {
    notice_(fmt::format(
        "warning: checkpoint {} does not say how many examples its steps took (an older pipeshard wrote it); "
        "if they were not {}, data are left out or used again now",
        resumed_->directory, common_.extent->examples));
  }
}

void CheckpointKeeper::requireAllHere(const KeptTensors& kept) const {
  std::set<int> missing;
  for (const CheckpointTensor& tensor : resumed_->tensors) {
    if (!kept.contains(tensor.name)) continue;
    for (const CheckpointSlice& slice : tensor.slices) {
      if (std::ranges::binary_search(resumed_->elsewhere, slice.file)) missing.insert(slice.file);
    }
  }
  if (missing.empty()) return;
  fail(ErrorCode::kMissingInput,
       "checkpoint {}: what this run needs of it is not all on this host's disk; copy the rest: {}",
       resumed_->directory, describeElsewhere(*resumed_, {missing.begin(), missing.end()}));
}

// Of steps that are to be done. Random numbers would spoil what was learned of data.
void CheckpointKeeper::checkData() const {
  if (resumed_->data == common_.data) return;
  if (saysRandomNumbers(common_.data) && !saysRandomNumbers(resumed_->data)) {
    fail(ErrorCode::kConfiguration,
         "checkpoint {} was made with {}, and without --data this run would go on with random numbers; give "
         "data as then (--data, --data-command), or another --checkpoint folder",
         resumed_->directory, nameData(resumed_->data));
  }
  notice_(fmt::format("checkpoint {} was made with {}; going on with {}", resumed_->directory,
                      nameData(resumed_->data), nameData(common_.data)));
}

int64_t CheckpointKeeper::lastBeforeSave(int64_t after) const {
  if (spec_.every_steps <= 0) return std::numeric_limits<int64_t>::max();
  return (after / spec_.every_steps + 1) * spec_.every_steps;
}

bool CheckpointKeeper::isDue(int64_t step) const {
  if (step == last_begun_) return false;
  if (spec_.every_steps > 0) return step % spec_.every_steps == 0;
  return spec_.every_time.count() > 0 &&
         std::chrono::steady_clock::now() - last_begun_at_ >= spec_.every_time;
}

std::string CheckpointKeeper::begin(int64_t step) {
  last_begun_ = step;
  last_begun_at_ = std::chrono::steady_clock::now();
  pending_[step].files.resize(ranks_);
  return folder_.partialOf(step);
}

const SaveShares& CheckpointKeeper::shares(const std::function<DiskOfNode(RankId)>& diskOf) {
  if (!shares_) {
    IdVector<RankId, std::string> disks;
    for (const RankId rank : idsBelow<RankId>(ranks_)) disks.push_back(diskOf(rank).host);
    shares_ = shareSaves(std::exchange(programs_, {}), disks);
  }
  return *shares_;
}

CheckpointPlace CheckpointKeeper::place() const {
  CheckpointPlace place{std::filesystem::absolute(spec_.directory).string(), hostName(), common_.job,
                        spec_.keep, ""};
  if (resumed_)
    place.resumed = requireTextFile((std::filesystem::path(resumed_->directory) / kManifestFile).string());
  return place;
}

void CheckpointKeeper::take(RankId rank, SavedPart part, const DiskOfNode& disk) {
  const auto found = pending_.find(part.step);
  PIPESHARD_CHECK(found != pending_.end() && !found->second.files.at(rank.index()),
                  "rank {} reports a part of the checkpoint of step {}", rank, part.step);
  Pending& pending = found->second;
  if (!part.error.empty() && pending.error.empty())
    pending.error = fmt::format("rank {}: {}", rank, part.error);
  part.file.host = disk.host;
  if (!disk.is_ours) pending.elsewhere.push_back(static_cast<int>(rank.index()));
  pending.files[rank.index()] = std::move(part.file);
  if (++pending.reported < ranks_) return;
  const int64_t step = part.step;
  Pending whole = std::move(pending);
  pending_.erase(found);
  ++committing_;
  if (!whole.error.empty()) return committer_.discard(step, whole.error);
  Checkpoint checkpoint = common_;
  checkpoint.step = step;
  for (const std::optional<CheckpointFile>& file : whole.files) checkpoint.files.push_back(*file);
  if (!whole.elsewhere.empty()) {
    checkpoint.tensors = shares_.value().tensors;
    std::ranges::sort(whole.elsewhere);
    checkpoint.elsewhere = std::move(whole.elsewhere);
  }
  committer_.commit(std::move(checkpoint));
}

std::string CheckpointKeeper::describeSpoiled(RankId rank, const SavedPart& part,
                                              const std::string& newest) const {
  return fmt::format(
      "there is no checkpoint of step {}: rank {}: {}. The updates up to this step have been applied, and "
      "nothing can be trained from what they have left; {}. Lower the learning rate, or look at the data{}",
      part.step, rank, part.error,
      newest.empty() ? "there is no older checkpoint"
                     : fmt::format("the newest good checkpoint is {}", newest),
      finds_nan_ ? ""
                 : "; `pipeshard run --on-nan find` names the first value that is no number, or infinite");
}

CheckpointKeeper::Ended CheckpointKeeper::takeEnded() {
  Ended ended;
  for (CheckpointCommitter::Outcome& outcome : committer_.take()) {
    --committing_;
    failure_ = outcome.error;
    if (!outcome.checkpoint) {
      notice_(fmt::format("warning: there is no checkpoint of step {}: {}", outcome.step, outcome.error));
      ended.dropped.push_back(outcome.step);
      continue;
    }
    for (const std::string& notice : outcome.notices) notice_(fmt::format("warning: {}", notice));
    ended.committed.push_back(std::move(*outcome.checkpoint));
  }
  return ended;
}

}  // namespace pipeshard
