// Who computes what: the stages of every rank, its place among their devices, and which microbatches it
// takes.
//
// Stages that list the same devices are the chunks of one pipeline rank: these devices are a *group*. Groups
// are numbered by their first stages. All stages of a group have one logical mesh, so that a device has the
// same part of a value in each.
//   stages 0..3 on devices [0], [1], [0], [1]: group 0 has the stages 0 and 2, group 1 the stages 1 and 3
//
// How the devices of a stage share the work on a microbatch, stage_shardings.h says. But under asynchronous
// schedules they may be replicas that take the microbatches in turn: their mesh is [replicas, devices of
// one], row-major, and replica k mod R has all of microbatch k, the others nothing of it. Internal to
// partition/.
#pragma once

#include <vector>

#include "ir/base/ids.h"
#include "ir/plan/plan.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

struct Place {
  PipelineRankId group;
  DeviceId position;  // of its stages, in the list of devices
  int replica = 0;    // where they take turns
};

class Layout {
 public:
  // Errors: kConfiguration when the plan's devices are not 0..n-1; when stages share some of their devices
  // but not all, or have them in another order or mesh; when a mesh does not have as many places as the stage
  // has devices; when a microbatch has fewer rows than places along the data axis; when the plan was made for
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
  bool inTurn() const { return in_turn_; }

  // Replicas that take turns; 1 where there are no turns.
  int replicas(StageId stage) const { return in_turn_ ? stages_[stage].mesh_shape[0] : 1; }
  // The replica of the stage that has microbatch k; and whether the rank has it.
  int replicaOf(StageId stage, int64_t k) const { return static_cast<int>(k % replicas(stage)); }
  bool takes(RankId rank, int64_t k) const {
    return place(rank).replica == replicaOf(firstStage(place(rank).group), k);
  }
  // The devices of one replica, in the order of the stage's.
  std::vector<RankId> devicesOf(StageId stage, int replica) const;
  // This rank and those in its place in the other replicas; ascending.
  std::vector<RankId> counterparts(RankId rank) const;

  // The rows of microbatch k in the step's data; the batches of a window lie one behind the other.
  Rows microbatch(int64_t k) const {
    const Rows rows = family_->microbatch(k % family_->microbatches());
    return {rows.first + k / family_->microbatches() * family_->batch(), rows.count};
  }

 private:
  const TrainingFamily* family_;
  bool in_turn_;
  IdVector<StageId, StagePlan> stages_;
  IdVector<StageId, PipelineRankId> groups_;
  IdVector<PipelineRankId, std::vector<StageId>> group_stages_;
  IdVector<RankId, Place> places_;
};

}  // namespace pipeshard
