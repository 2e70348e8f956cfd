// The shardings of a plan's stages while programs are made: how each device of a stage of several has its
// part of a microbatch's values. A stage has the one that the plan says (StagePlan::sharding), or else shares
// the rows of every microbatch over the data axis of StagePlan::mesh_shape (rowSharding), and along the model
// axis its devices do the same. Where replicas take microbatches in turn no stage is sharded, and a stage of
// one device never is. Internal to partition/.
#pragma once

#include <map>
#include <memory>
#include <mutex>
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

// Several devices share the rows of microbatches, or all compute the same: nothing was chosen for them. What
// goes to or from them travels as it lies (planDirectTransfer), so stages with a choice keep it whole.
bool sharesRows(const StagePlan& stage);

class StageShardings {
 public:
  // `in_turn`: replicas take microbatches in turn. Errors: kConfiguration naming stage and entry when
  // plan.json's sharding does not fit the model, or when stages of one pipeline rank are on different meshes
  // or keep a value that both use in different ways.
  StageShardings(const TrainingFamily& family, const Plan& plan, const Cut& cut, bool in_turn);

  bool isSharded(StageId stage) const { return stages_[stage].has_value(); }
  // Its sharding follows from its rows: each part of a gradient is all-reduced by itself. Else it was chosen.
  bool sharesRows(StageId stage) const { return isSharded(stage) && shares_rows_[stage]; }
  bool isChosen(StageId stage) const { return isSharded(stage) && !shares_rows_[stage]; }
  // While a microbatch of so many rows runs: with LogicalMesh::rows, if it shares rows, or where a chosen
  // sharding fits all microbatches only when they are cut between rows.
  LogicalMesh mesh(StageId stage, int64_t rows) const;
  const CostModel& model(StageId stage) const { return of(stage).model; }
  // How the stage keeps a value of the family's base; one of several stages on the same devices: as that one
  // of them does that uses it.
  const ShardingSpec& kept(StageId stage, ValueId value) const {
    return of(stage).sharding->kept[value.index()];
  }

  // For a subgraph of the family's member of `rows` rows that holds `nodes` in this order.
  // Error(kConfiguration) when a strategy does not fit so many rows.
  PieceSharding pieceSharding(StageId stage, const std::vector<NodeId>& nodes, int64_t rows,
                              const Graph& subgraph) const;

  // Values between the stages go the cheapest way (planCrossMesh), since the sharding of one of the two was
  // chosen and none shares rows; else as they lie.
  bool transfersAreChosen(StageId from, StageId to) const;
  // How a value of a microbatch of so many rows gets from one stage to another. The reference stays valid.
  // May be asked by several threads, where the family has made the member of so many rows.
  // Error(kConfiguration) when the value cannot be kept so with so many rows.
  const CrossMeshPlan& transfer(ValueId value, int64_t rows, StageId from, StageId to) const;

 private:
  struct Stage {
    std::shared_ptr<const StageSharding> sharding;  // of rows: one for all stages on equal meshes
    CostModel model;
  };
  const Stage& of(StageId stage) const { return *stages_[stage]; }

  // Those of the plan, and those of rows.
  void takeChosen(const Plan& plan, const Cut& cut);
  void shareRows(const Plan& plan, const Cut& cut);
  // All stages of a group get to keep everything as those do that use it.
  void agree(const TrainingGraph& training, const Cut& cut);
  // Parts of gradients that other groups make come to the owner's as its update reads the gradient.
  void takeParts(const TrainingGraph& training, const Cut& cut);
  CrossMeshSide side(StageId stage, ValueId value, int64_t rows) const;

  const TrainingFamily& family_;
  Cluster cluster_;
  IdVector<StageId, std::optional<Stage>> stages_;
  IdVector<StageId, bool> shares_rows_;
  IdVector<StageId, std::vector<RankId>> devices_;
  CrossMeshPlan planTransfer(ValueId value, int64_t rows, StageId from, StageId to) const;

  struct Transfer {
    std::mutex mutex;
    std::optional<CrossMeshPlan> plan;
  };
  mutable std::mutex transfers_mutex_;
  mutable std::map<std::tuple<ValueId, int64_t, StageId, StageId>, Transfer> transfers_;
};

// What the plan says of its stages' shardings; nothing for a stage that is not sharded.
// Error(kConfiguration) naming stage and entry when it does not fit the model.
IdVector<StageId, std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan);

// The shardings that were chosen fit microbatches of all sizes of the family: what making the programs would
// find, for a plan without them. Error(kConfiguration) naming node or value and the rows.
void requireFittingMicrobatches(const TrainingFamily& family, const Plan& plan);

}  // namespace pipeshard
