// What stages of a model cost on submeshes of a cluster: the StageCosts of stage_costs.h, from the
// sharding of layers.
//
// A stage costs what its layers cost. Each layer is sharded alone (sharding/stage/shard_stage.h), and the
// values that cross its two ends are kept as the option's boundary says: cut along the batch over some mesh
// axes, or replicated. All layers of a stage keep them alike, so what one layer hands to the next needs no
// resharding, and times and memory add up. Layers of one kind (Clustering::kinds) are priced once. A stage
// that was chosen is sharded as a whole afterwards, which is at least as fast.
//
// A parameter that several layers read (tied embeddings) is kept in one way by all layers of a stage. A stage
// that has all these layers holds it once; else the stages that have some of them exchange it once a step. It
// is replicated, or, with `cut_shared`, kept in one of the ways of shared_specs.h. Of these two are options:
// the way of the least time and that of the least memory.
//
// A value that crosses several cuts counts in the transfer of each of them: too much where no stage lies
// between. Everything is evaluated when it is first asked for, a class of submeshes at a time, by `threads`
// threads.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/cluster/cluster.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/costs/stage_costs.h"
#include "partition/layers/layer_clustering.h"

namespace pipeshard {

// What an option's `config` stands for.
struct StageConfig {
  std::vector<int> mesh;  // the logical mesh; {1} for one device
  ShardingMethod method = {};
  Recomputation recomputation = Recomputation::kNever;
  // index into the mesh's ways to cut the batch: 0: over all axes, 1: over axis 0, 2: not at all
  int boundary = 0;
  // parameters that several layers read: 0: kept as takes the least time, 1: the least memory
  int shared = 0;
  friend auto operator<=>(const StageConfig&, const StageConfig&) = default;
};

struct StageCostOptions {
  // tried for every mesh; those that cut the batch alone on one of them, those with a grid on theirs
  std::vector<ShardingMethod> methods = {ShardingMethod{}};
  std::vector<Recomputation> recomputations = {Recomputation::kNever};  // not kExceptLast: it has no cost
  // Which logical meshes are tried for so many devices (Alpa's submesh_logical_shape_space); empty:
  // meshesFor.
  std::function<std::vector<std::vector<int>>(const Submesh&)> meshes = {};
  // parameters that several layers read are cut, too (shared_specs.h); else replicated
  bool cut_shared = false;
  // All schedules that the options are for have the backward passes in halves; else they are priced whole
  // where they may be.
  bool halves = false;
  int64_t memory_bytes = 0;               // of each device; 0: as the cluster says
  GivenOptions given = defaultOptions();  // what programs will be made with
  int threads = 1;
  std::function<void(const std::string&)> progress = {};
  const std::atomic<bool>* interrupted = nullptr;
};

// The parts of a stage's cost, for people and for the simulator.
struct StageCostParts {
  int64_t forward_ns = 0;  // per microbatch, collectives included, recomputation not
  int64_t backward_input_ns = 0;
  int64_t backward_weight_ns = 0;
  int64_t recomputation_ns = 0;
  int64_t communication_ns = 0;  // collectives' share of the three passes
  int64_t update_ns = 0;         // per step
  int64_t synchronization_ns = 0;
  int64_t weight_bytes = 0;  // of the device with the largest shards
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t activation_bytes = 0;  // per microbatch in flight
  int64_t transient_bytes = 0;   // where the schedule has backward passes whole
  // Until the first gradient comes nothing proves that what was sent has come: per microbatch in flight then,
  // and what is transient beside it: while a forward pass runs, and while one runs again.
  int64_t sent_bytes = 0;
  int64_t forward_transient_bytes = 0;
  int64_t again_transient_bytes = 0;
  // the same of gradients, per microbatch whose backward pass is over, until the last one's
  int64_t sent_gradient_bytes = 0;
  // Where backward passes are halved: what there is more between the halves than before them, per microbatch:
  // what a recomputation and the input half leave for the weight half; and what is then transient beside it.
  int64_t remade_bytes = 0;
  int64_t halved_transient_bytes = 0;
};

class ShardedStageCosts : public StageCosts {
 public:
  // The training graph is of one microbatch; microbatches counts into step costs only. All are kept by
  // reference.
  ShardedStageCosts(const TrainingGraph& training, const Clustering& clustering, const Cluster& cluster,
                    StageCostOptions options);
  ~ShardedStageCosts() override;

  int layers() const override;
  int submeshClass(const Submesh& submesh) const override;
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override;
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                   int to_boundary) const override;
  int64_t memoryBytes(const Submesh& submesh) const override;

  // Costs that no stage's are below, in time or memory, and that are known much sooner: those of the kind of
  // layers that most layers are of, others for nothing. nullptr: there is no such kind. Refers to this
  // object.
  std::shared_ptr<const StageCosts> leastCosts() const;

  const StageConfig& config(int index) const;
  StageCostParts parts(int first_layer, int last_layer, const Submesh& submesh,
                       const StageOption& option) const;
  // For tests: the cost of exactly this way; nullptr when it cannot be.
  const StageOption* optionFor(int first_layer, int last_layer, const Submesh& submesh,
                               const StageConfig& config) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeshard
