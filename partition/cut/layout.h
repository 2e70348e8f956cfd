// Who computes what: the stages of every rank, its place in their logical mesh, and its rows of every
// microbatch.
//
// Stages that list the same devices are the chunks of one pipeline rank: these devices are a *group*. Groups
// are numbered by their first stages. All stages of a group have one logical mesh, so that a device has the
// same rows in each.
//   stages 0..3 on devices [0], [1], [0], [1]: group 0 has the stages 0 and 2, group 1 the stages 1 and 3
//
// A stage's devices form a logical mesh [data, model], row-major. The rows of a microbatch are cut over the
// data axis (data parallelism); along the model axis every device has the same rows. A rank's rows of one
// microbatch are a *cell*.
//   stage on devices [1,2,3] with mesh [3,1], microbatch {4, 3} (rows 4, 5, 6): rank 1 has row 4, rank 2
//   row 5, rank 3 row 6
//
// Under asynchronous schedules the devices along the data axis may be replicas that take the microbatches in
// turn: microbatch k is a cell of replica k mod R, whole, and the others have nothing of it. Internal to
// partition/.
#pragma once

#include <vector>

#include "ir/base/ids.h"
#include "ir/plan/plan.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

struct Place {
  PipelineRankId group;
  DeviceId position;  // of its stages, in the list of devices: data * (model devices) + model
  int data = 0;
  int model = 0;
};

class Layout {
 public:
  // Errors: kConfiguration when the plan's devices are not 0..n-1; when stages share some of their devices
  // but not all, or have them in another order or mesh; when a mesh does not have as many places as the stage
  // has devices; when a microbatch has fewer rows than data-parallel devices; when the plan was made for
  // other microbatches. `in_turn`: replicas take microbatches in turn.
  Layout(const Plan& plan, const TrainingFamily& family, bool in_turn = false);

  int ranks() const { return places_.size(); }
  IdRange<RankId> rankIds() const { return places_.ids(); }
  int stages() const { return stages_.size(); }
  IdRange<StageId> stageIds() const { return stages_.ids(); }
  int groups() const { return group_stages_.size(); }
  IdRange<PipelineRankId> groupIds() const { return group_stages_.ids(); }
  PipelineRankId group(StageId stage) const { return groups_[stage]; }
  // ascending
  const std::vector<StageId>& stagesOf(PipelineRankId group) const { return group_stages_[group]; }
  StageId firstStage(PipelineRankId group) const { return stagesOf(group).front(); }
  const Place& place(RankId rank) const { return places_[rank]; }
  const std::vector<RankId>& devices(StageId stage) const { return stages_[stage].devices; }
  int width(StageId stage) const { return devices(stage).size(); }
  int dataWidth(StageId stage) const { return stages_[stage].mesh_shape[0]; }
  int modelWidth(StageId stage) const { return stages_[stage].mesh_shape[1]; }
  bool hasDataParallelism() const;  // rows of a microbatch are shared out
  bool inTurn() const { return in_turn_; }
  RankId rankAt(StageId stage, int data, int model) const {
    const int index = data * modelWidth(stage) + model;
    return devices(stage)[index];
  }

  // Ranks that compute the other rows of this rank's microbatches, itself included; ascending.
  std::vector<RankId> dataGroup(RankId rank) const;

  // The replica of the stage that has microbatch k; 0 where there are no turns. And whether the rank has a
  // cell of it.
  int replicaOf(StageId stage, int64_t k) const {
    return in_turn_ ? static_cast<int>(k % dataWidth(stage)) : 0;
  }
  bool takes(RankId rank, int64_t k) const {
    return !in_turn_ || place(rank).data == replicaOf(firstStage(place(rank).group), k);
  }

  // Rows of the whole batch; of microbatch k of a window, of the batches of all its updates together.
  Rows microbatch(int64_t k) const {
    const Rows rows = family_->microbatch(k % family_->microbatches());
    return {rows.first + k / family_->microbatches() * family_->batch(), rows.count};
  }
  Rows cell(StageId stage, int data, int64_t k) const {
    return in_turn_ ? microbatch(k) : shareOf(microbatch(k), data, dataWidth(stage));
  }
  Rows cell(RankId rank, int64_t k) const { return cell(firstStage(place(rank).group), place(rank).data, k); }

 private:
  const TrainingFamily* family_;
  bool in_turn_;
  IdVector<StageId, StagePlan> stages_;
  IdVector<StageId, PipelineRankId> groups_;
  IdVector<PipelineRankId, std::vector<StageId>> group_stages_;
  IdVector<RankId, Place> places_;
};

}  // namespace pipeshard
