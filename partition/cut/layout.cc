#include "partition/cut/layout.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/families/plan_schedule.h"

namespace pipeshard {
namespace {

// Stages of one group have one list of devices; all lists together are 0..n-1.
void checkDevices(const IdVector<StageId, StagePlan>& stages,
                  const IdVector<PipelineRankId, std::vector<StageId>>& group_stages) {
  std::vector<RankId> used;
  for (const std::vector<StageId>& group : group_stages) {
    const std::vector<RankId>& devices = stages[group.front()].devices;
    used.insert(used.end(), devices.begin(), devices.end());
  }
  const std::vector<RankId> expected = idsBelow<RankId>(used.size());
  std::vector<RankId> sorted = used;
  std::sort(sorted.begin(), sorted.end());
  if (sorted == expected) return;
  fail(ErrorCode::kConfiguration,
       "the stages are on devices [{}]; expected 0 to {}, and stages that share a device to list the same "
       "devices in the same order",
       fmt::join(used, ","), used.empty() ? 0 : used.size() - 1);
}

void checkGroup(const IdVector<StageId, StagePlan>& stages, const std::vector<StageId>& group) {
  const StagePlan& first = stages[group.front()];
  for (const StageId stage : group) {
    const StagePlan& other = stages[stage];
    if (other.mesh_shape == first.mesh_shape && other.sharding.has_value() == first.sharding.has_value())
      continue;
    fail(ErrorCode::kConfiguration,
         "stages {} and {} share the devices [{}], but cut their work differently over them (mesh [{}]{} and "
         "[{}]{}); stages of one pipeline rank need one logical mesh",
         group.front(), stage, fmt::join(first.devices, ","), fmt::join(first.mesh_shape, ","),
         first.sharding ? ", sharded" : "", fmt::join(other.mesh_shape, ","),
         other.sharding ? ", sharded" : "");
  }
}

void checkMesh(StageId stage, const StagePlan& plan) {
  const std::vector<int>& mesh = plan.mesh_shape;
  const bool fits = !plan.devices.empty() && mesh.size() == 2 && mesh[0] >= 1 && mesh[1] >= 1 &&
                    static_cast<size_t>(mesh[0]) * static_cast<size_t>(mesh[1]) == plan.devices.size();
  if (fits) return;
  fail(ErrorCode::kConfiguration,
       "stage {} has the logical mesh [{}] and {} device(s); expected [data, model] with as many places",
       stage, fmt::join(mesh, ","), plan.devices.size());
}

void checkRows(StageId stage, int data_width, const TrainingFamily& family) {
  const int64_t least = family.batch() / family.microbatches();
  if (data_width <= least) return;
  fail(ErrorCode::kConfiguration,
       "stage {} has {} data-parallel devices, but a microbatch has only {} example(s) (a batch of {} in {} "
       "microbatches); take fewer microbatches, a larger batch, or fewer data-parallel devices in the stage",
       stage, data_width, least, family.batch(), family.microbatches());
}

}  // namespace

Layout::Layout(const Plan& plan, const TrainingFamily& family, bool in_turn)
    : family_(&family), in_turn_(in_turn), stages_(plan.stages) {
  if (stages_.empty()) fail(ErrorCode::kConfiguration, "the plan has no stages");
  if (plan.microbatches != family.microbatches()) {
    fail(ErrorCode::kConfiguration, "the plan has {} microbatches, the training graph was built for {}",
         plan.microbatches, family.microbatches());
  }
  groups_ = deviceGroups(plan);
  group_stages_.resize(std::max_element(groups_.begin(), groups_.end())->index() + 1);
  for (const StageId s : stages_.ids()) group_stages_[groups_[s]].push_back(s);
  checkDevices(stages_, group_stages_);
  size_t ranks = 0;
  for (const StageId s : stages_.ids()) {
    checkMesh(s, stages_[s]);
    if (!in_turn_) checkRows(s, stages_[s].mesh_shape[0], family);
  }
  for (const std::vector<StageId>& group : group_stages_) {
    checkGroup(stages_, group);
    ranks += stages_[group.front()].devices.size();
  }
  places_.resize(ranks);
  for (const PipelineRankId group : groupIds()) {
    const std::vector<RankId>& of_group = devices(firstStage(group));
    const int of_replica = static_cast<int>(of_group.size()) / replicas(firstStage(group));
    for (int position = 0; position < std::ssize(of_group); ++position)
      places_[of_group[position]] = {group, DeviceId(position), position / of_replica};
  }
}

std::vector<RankId> Layout::devicesOf(StageId stage, int replica) const {
  const std::vector<RankId>& all = devices(stage);
  const size_t count = all.size() / replicas(stage);
  const auto first = all.begin() + replica * count;
  return {first, first + count};
}

std::vector<RankId> Layout::counterparts(RankId rank) const {
  const Place& own = place(rank);
  const StageId stage = firstStage(own.group);
  const size_t place_in_replica = own.position.index() % (devices(stage).size() / replicas(stage));
  std::vector<RankId> ranks;
  for (int replica = 0; replica < replicas(stage); ++replica)
    ranks.push_back(devicesOf(stage, replica)[place_in_replica]);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace pipeshard
