// The shardings of a plan's stages while programs are made. A stage without one (StagePlan::sharding) shares
// rows, as layout.h says. A sharded stage's devices all have the rows of the whole microbatch, cut inside as
// its StageSharding says. Internal to partition/.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "partition/cut/cut_training.h"
#include "sharding/batch/training_family.h"
#include "sharding/specs/cross_mesh.h"
#include "sharding/spmd/spmd_rewrite.h"
#include "sharding/stage/sharding_plan.h"

namespace pipeshard {

// The nodes of a stage that a sharding is about: forward, backward and update, in order. Prologues are
// replicated.
std::vector<NodeId> shardedNodes(const Cut& cut, StageId stage);

// By group of devices (Cut::groups) the values that nodes of several of its stages read or make. Such a value
// has one buffer on a device: sharded stages of one pipeline rank keep it whole, so that all keep it in one
// way.
IdVector<PipelineRankId, std::vector<ValueId>> valuesOfSeveralStages(const TrainingGraph& training,
                                                                     const Cut& cut);

// Whether several devices share the rows of microbatches or all compute the same. What goes to or from them
// is kept whole and travels as shipments.h says.
bool hasUnshardedDevices(const StagePlan& stage);

class StageShardings {
 public:
  // Errors: kConfiguration naming stage and entry when plan.json's sharding does not fit the model, or when
  // stages of one pipeline rank are on different meshes or keep a value that both use in different ways.
  StageShardings(const TrainingFamily& family, const Plan& plan, const Cut& cut);

  bool isSharded(StageId stage) const { return stages_[stage].has_value(); }
  const LogicalMesh& mesh(StageId stage) const { return of(stage).sharding.mesh; }
  const CostModel& model(StageId stage) const { return of(stage).model; }
  // How the stage keeps a value of the family's base; one of several stages on the same devices: as that one
  // of them does that uses it.
  const ShardingSpec& kept(StageId stage, ValueId value) const {
    return of(stage).sharding.kept[value.index()];
  }

  // For a subgraph of the family's member of `rows` rows that holds `nodes` in this order.
  // Error(kConfiguration) when a strategy does not fit so many rows.
  PieceSharding pieceSharding(StageId stage, const std::vector<NodeId>& nodes, int64_t rows,
                              const Graph& subgraph) const;

  // How a value of a microbatch of so many rows gets from one stage to another. nullptr: as shipments.h says,
  // since neither stage is sharded, or one has several devices that are not. The pointer stays valid.
  // Error(kConfiguration) when the value cannot be kept so with so many rows.
  const CrossMeshPlan* transfer(ValueId value, int64_t rows, StageId from, StageId to) const;

 private:
  struct Stage {
    StageSharding sharding;
    CostModel model;
  };
  const Stage& of(StageId stage) const { return *stages_[stage]; }

  // All stages of a group get to keep everything as those do that use it.
  void agree(const TrainingGraph& training, const Cut& cut);
  // Parts of gradients that other groups make come to the owner's as its update reads the gradient.
  void takeParts(const TrainingGraph& training, const Cut& cut);
  CrossMeshSide side(StageId stage, ValueId value) const;

  const TrainingFamily& family_;
  Cluster cluster_;
  IdVector<StageId, std::optional<Stage>> stages_;
  IdVector<StageId, bool> has_unsharded_devices_;
  IdVector<StageId, std::vector<RankId>> devices_;
  mutable std::map<std::tuple<ValueId, int64_t, StageId, StageId>, CrossMeshPlan> transfers_;
};

// What the plan says of its stages' shardings; nothing for a stage that is not sharded.
// Error(kConfiguration) naming stage and entry when it does not fit the model.
IdVector<StageId, std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan);

}  // namespace pipeshard
