#include "partition/layout.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "ir/error.h"

namespace pipeshard {
namespace {

void checkDevices(const std::vector<StagePlan>& stages) {
  std::vector<int> used;
  for (const StagePlan& stage : stages) used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  std::vector<int> expected(used.size());
  std::iota(expected.begin(), expected.end(), 0);
  std::vector<int> sorted = used;
  std::sort(sorted.begin(), sorted.end());
  if (sorted == expected) return;
  fail(ErrorCode::kConfiguration, "the stages are on devices [{}]; expected each of 0 to {} in exactly one stage", fmt::join(used, ","),
       used.empty() ? 0 : used.size() - 1);
}

void checkMesh(size_t stage, const StagePlan& plan) {
  const std::vector<int>& mesh = plan.mesh_shape;
  const bool fits = !plan.devices.empty() && mesh.size() == 2 && mesh[0] >= 1 && mesh[1] >= 1 &&
                    static_cast<size_t>(mesh[0]) * static_cast<size_t>(mesh[1]) == plan.devices.size();
  if (fits) return;
  fail(ErrorCode::kConfiguration, "stage {} has the logical mesh [{}] and {} device(s); expected [data, model] with as many places", stage,
       fmt::join(mesh, ","), plan.devices.size());
}

void checkRows(size_t stage, int data_width, const TrainingFamily& family) {
  const int64_t least = family.batch() / family.microbatches();
  if (data_width <= least) return;
  fail(ErrorCode::kConfiguration,
       "stage {} has {} data-parallel devices, but a microbatch has only {} example(s) (a batch of {} in {} microbatches); take fewer "
       "microbatches, a larger batch, or fewer data-parallel devices in the stage",
       stage, data_width, least, family.batch(), family.microbatches());
}

}  // namespace

Layout::Layout(const Plan& plan, const TrainingFamily& family) : family_(&family), stages_(plan.stages) {
  if (stages_.empty()) fail(ErrorCode::kConfiguration, "the plan has no stages");
  if (plan.microbatches != family.microbatches()) {
    fail(ErrorCode::kConfiguration, "the plan has {} microbatches, the training graph was built for {}", plan.microbatches,
         family.microbatches());
  }
  checkDevices(stages_);
  size_t ranks = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    checkMesh(s, stages_[s]);
    checkRows(s, stages_[s].mesh_shape[0], family);
    ranks += stages_[s].devices.size();
  }
  places_.resize(ranks);
  for (size_t s = 0; s < stages_.size(); ++s) {
    const int model_width = stages_[s].mesh_shape[1];
    for (int position = 0; position < static_cast<int>(stages_[s].devices.size()); ++position) {
      places_[static_cast<size_t>(stages_[s].devices[static_cast<size_t>(position)])] = {static_cast<int>(s), position,
                                                                                         position / model_width, position % model_width};
    }
  }
}

bool Layout::hasDataParallelism() const {
  return std::any_of(stages_.begin(), stages_.end(), [](const StagePlan& stage) { return stage.mesh_shape[0] > 1; });
}

std::vector<int> Layout::dataGroup(int rank) const {
  const Place& own = place(rank);
  std::vector<int> group;
  for (int data = 0; data < dataWidth(own.stage); ++data) group.push_back(rankAt(own.stage, data, own.model));
  std::sort(group.begin(), group.end());
  return group;
}

}  // namespace pipeshard
