#include "runtime/job/checkpoint_keeper.h"

#include <filesystem>
#include <limits>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"

namespace pipeshard {

namespace {

std::map<std::string, std::string> companionsOf(const std::string& plan_directory) {
  std::map<std::string, std::string> companions;
  for (const std::string name : {"plan.json", kWeightFilesName}) {
    std::optional<std::string> text = readTextFile((std::filesystem::path(plan_directory) / name).string());
    if (text) companions.emplace(name, std::move(*text));  // a directory made by hand may lack them
  }
  return companions;
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(const JobSpec& spec, const std::string& job, int ranks, Notice notice)
    : spec_(spec.checkpoint),
      ranks_(ranks),
      notice_(std::move(notice)),
      folder_(spec_.directory, job, spec_.keep, companionsOf(spec.plan_directory)),
      resumed_(newestGoodCheckpoint(spec_.directory, notice_)) {
  common_.job = job;
  const auto plan = readTextFile((std::filesystem::path(spec.plan_directory) / "plan.json").string());
  common_.plan = hashText(contentHash(plan.value_or("")));
  common_.data = printData(spec.data);
  common_.seed = spec.data.seed;
  if (!resumed_) return;
  last_begun_ = resumed_->step;
  folder_.goOnAfter(resumed_->step);
  if (resumed_->seed != common_.seed) {
    pipeshard::fail(
        ErrorCode::kConfiguration,
        "checkpoint {} was made with --seed {}, this run has --seed {}: the random numbers would be others; "
        "give the same seed, or another --checkpoint folder",
        resumed_->directory, resumed_->seed, common_.seed);
  }
  if (resumed_->plan != common_.plan) {
    notice_(fmt::format(
        "checkpoint {} was saved under another plan; its optimizer's states go on as far as this one has "
        "them",
        resumed_->directory));
  }
  if (resumed_->data != common_.data) {
    notice_(fmt::format("checkpoint {} was made with the data '{}'; going on with '{}'", resumed_->directory,
                        resumed_->data, common_.data));
  }
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

std::optional<std::string> CheckpointKeeper::begin(int64_t step) {
  last_begun_ = step;
  last_begun_at_ = std::chrono::steady_clock::now();
  try {
    std::string folder = folder_.begin(step);
    pending_[step].files.resize(ranks_);
    return folder;
  } catch (const Error& error) {
    fail(step, error.message());
    return std::nullopt;
  }
}

std::optional<Checkpoint> CheckpointKeeper::take(RankId rank, SavedPart part) {
  const auto found = pending_.find(part.step);
  PIPESHARD_CHECK(found != pending_.end() && !found->second.files.at(rank.index()),
                  "rank {} reports a part of the checkpoint of step {}", rank, part.step);
  Pending& pending = found->second;
  if (!part.error.empty() && pending.error.empty())
    pending.error = fmt::format("rank {}: {}", rank, part.error);
  pending.files[rank.index()] = std::move(part.file);
  if (++pending.reported < ranks_) return std::nullopt;
  const int64_t step = part.step;
  const Pending whole = std::move(pending);
  pending_.erase(found);
  if (!whole.error.empty()) {
    folder_.discard(step);
    fail(step, whole.error);
    return std::nullopt;
  }
  Checkpoint checkpoint = common_;
  checkpoint.step = step;
  for (const std::optional<CheckpointFile>& file : whole.files) checkpoint.files.push_back(*file);
  try {
    checkpoint = folder_.commit(std::move(checkpoint));
    failure_.clear();
    return checkpoint;
  } catch (const Error& error) {
    fail(step, error.message());
    return std::nullopt;
  }
}

void CheckpointKeeper::fail(int64_t step, const std::string& why) {
  failure_ = why;
  notice_(fmt::format("warning: there is no checkpoint of step {}: {}", step, why));
}

}  // namespace pipeshard
