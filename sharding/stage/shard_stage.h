// Chooses the sharding of a stage: builds the problem (a variable per node and per kept value, reshardings on
// the edges, memory rows), reduces it, solves it (solver/solver.h), and says what was chosen and why.
//
// Methods are constraints on the same problem:
//   auto                  none
//   data-parallel         whatever depends on the batch is cut along it, over all mesh axes; parameters,
//                         states and updates are replicated
//   zero2                 as data-parallel, but updates and states are cut (gradients reduce-scattered,
//                         parameters all-gathered)
//   zero3                 as zero2, and parameters are kept cut
//   tensor-parallel       nothing is cut along the batch
//   megatron:DP,TP        mesh [DP,TP]: the batch over axis 0; over axis 1 matrix products column- then
//                         row-parallel, heads, vocabulary
//   megatron-zero2:DP,TP  the same, but updates and states are cut over axis 0 too
//   manual                the given specs; the rest is solved
//   exhaustive            none; shardStages (partition/) goes through all combinations
// Weights whose narrower copies alone are read (ir/graph/weight_copies.h) are kept cut where updates are: the
// copies are gathered.
//
// Objective, per step, in nanoseconds: microbatches * (passes) + copies, update and synchronisation. Memory
// rows: persistent values, then at every point of the list of nodes the live values, those that wait for
// their backward pass times the microbatches in flight.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/shard_constraint.h"
#include "ir/plan/sharding_method.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/specs/cost_model.h"
#include "sharding/stage/stage_sharding.h"

namespace pipeshard {

// What it costs per microbatch, in nanoseconds, that a value goes to other stages, or comes from one, when it
// is kept so.
using CrossingCost = std::function<int64_t(const ShardingSpec&)>;

struct ShardStageOptions {
  ShardingMethod method;
  std::vector<ShardConstraint> constraints;  // with every method
  std::vector<ValueId> replicated;           // values that stages share: kept replicated
  // values that other stages send or receive; part of the communication
  std::map<ValueId, CrossingCost> crossings;
  int64_t microbatches = 1;
  int64_t in_flight = 1;  // microbatches whose activations are alive together
  bool whole_backward = false;  // backward passes are not in halves
  // By node of the training graph its layer, where layers make again what they alone read, just before their
  // backward passes; else empty.
  std::vector<LayerId> recomputed_layers = {};
  // By value: what such layers keep all the same, though they alone read it; empty: nothing.
  std::vector<bool> kept_anyway = {};
  // Of what is priced (priced_stage.h), by node: forward nodes that run again where layers recompute; and
  // where kept_anyway is kept. Empty: that is not asked.
  std::vector<bool> again_by_layers = {};
  std::vector<bool> again_selectively = {};
  std::optional<int64_t> memory_bytes;  // per device
  uint64_t seed = 1;
  // followBatch(training), for who has it; else methods that need it find it
  std::shared_ptr<const BatchDependence> batch = {};
};

struct ShardingResult {
  StageSharding sharding;
  int64_t compute_ns = 0;  // per step
  int64_t communication_ns = 0;
  int64_t memory_bytes = 0;  // predicted peak of the device with the largest shards
  int64_t lower_bound_ns = 0;
  bool optimal = false;
  std::vector<std::string> replicated_operators;  // without a rule, each with a node's name
  int64_t total_ns() const { return compute_ns + communication_ns; }
};

// `nodes`: the stage's, in order, all phases. Errors: kConfiguration when the method or a constraint cannot
// be met (the message names it and near matches), kOutOfMemory when no sharding fits: at which point, which
// values, how many bytes too many.
ShardingResult shardStage(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                          const LogicalMesh& mesh, const CostModel& model, const ShardStageOptions& options);

// Logical meshes worth a try for so many devices: 1-D and 2-D; 1-D for a method that cuts the batch alone,
// and for exhaustive, which goes through all shardings on one; with megatron:DP,TP the one given.
// Error(kConfiguration) when that one has another number of devices.
std::vector<LogicalMesh> meshesFor(int devices, const ShardingMethod& method);

}  // namespace pipeshard
