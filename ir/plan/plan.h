// Plan: what was decided and why. Written as plan.json: versioned, deterministic (same input, same bytes),
// diffable, editable. `run` and `validate` on a plan directory solve nothing again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/ids.h"
#include "ir/cluster/cluster.h"
#include "ir/plan/given_options.h"
#include "ir/plan/recomputation.h"
#include "ir/plan/schedule_spec.h"
#include "ir/plan/search_record.h"
#include "ir/plan/shard_constraint.h"
#include "ir/plan/sharding_method.h"

namespace pipeshard {

inline constexpr int kPlanVersion = 2;

// A run of consecutive forward nodes; the unit that stages are made of.
struct LayerPlan {
  std::string first_node;  // names, for people; the assignment below uses positions
  std::string last_node;
  int64_t first = 0;  // positions in the forward nodes of the training graph, inclusive
  int64_t last = 0;
  int64_t flops = 0;  // forward, one microbatch
};

// How a stage's tensors lie on its devices, by name; what is not listed is replicated
// (sharding/stage/sharding_plan.h). In plan.json every entry has a line of its own:
//   "shardings":  {"stage":0,"method":"auto","mesh":[2,2],
//                  "predicted":{"compute_ns":51,...,"lower_bound_ns":60},"optimal":true}
//   "strategies": {"stage":0,"node":"matmul_1","uses":"0:k 1:j"}
//   "specs":      {"stage":0,"value":"w1","spec":"S0,R"}
struct ShardingPlan {
  ShardingMethod method;  // as given: --method
  std::vector<int> mesh;  // the logical mesh, product StagePlan::devices.size()
  // by a node's first output: printUses (sharding/spmd/strategy.h)
  std::map<std::string, std::string> strategies;
  std::map<std::string, std::string> specs;  // by value: printSpec
  // Of one step, as the cost model predicts it: on the device with the largest shards.
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;
  int64_t memory_bytes = 0;    // the largest peak of a device
  int64_t lower_bound_ns = 0;  // no choice costs less than this; of compute and communication together
  bool optimal = false;        // proven: the bound is met
  // To explain the choice: --shard as given, and what each device was planned to hold at most (0: no limit).
  std::vector<ShardConstraint> constraints = {};
  int64_t memory_limit = 0;
};

struct StagePlan {
  LayerId first_layer = LayerId(0);  // inclusive
  LayerId last_layer = LayerId(0);
  // Ranks, in the mesh's order; 0..n-1 in all stages together. Stages that share a device share all of them:
  // they are the chunks of one pipeline rank.
  std::vector<RankId> devices;
  // (data, model), product devices.size(): the rows of microbatches are shared along the data axis; under
  // asynchronous schedules it is that of replicas. With a chosen sharding (1, n): its mesh is in `sharding`.
  std::vector<int> mesh_shape = {1, 1};
  int64_t forward_flops = 0;  // one microbatch
  int64_t backward_flops = 0;
  int64_t parameter_bytes = 0;
  int64_t peak_activations = 0;  // microbatches in flight under the schedule
  Recomputation recomputation = Recomputation::kNever;
  std::optional<ShardingPlan> sharding = {};  // as chosen; nothing: see mesh_shape
};

struct Plan {
  std::string model_path;                     // absolute
  std::map<std::string, int64_t> dimensions;  // symbolic dimensions as bound, at the full batch
  std::string batch_dimension;                // the one that is cut into microbatches; "" if none
  std::string loss;                           // as given, or the model output that is the loss
  GivenOptions given;
  Cluster cluster;
  // profileDigest of the measured operators that it was made with (ir/cluster/profile.h); "": none
  std::string profile;
  int64_t memory = 0;  // of each device, as given: --memory; 0: what the cluster says of each
  int64_t microbatches = 1;
  // The loss is a sum over parts of the batch: microbatches, rows that devices share, or what a chosen
  // sharding cuts. False: the batch is computed whole.
  bool cut_batch = false;
  // The shorter batch that ends an epoch of data which is no multiple of the batch: its rows and
  // microbatches. 0: there is none.
  int64_t last_batch = 0;
  int64_t last_microbatches = 0;
  // Lengths of sequences that there are programs for beside the longest, which `dimensions` has and all else
  // here is of: further sizes of that dimension, descending. "": sequences have one length.
  std::string length_dimension;
  std::vector<int64_t> shorter_lengths;
  bool copies_weights = false;  // `--copy-weights`: its directory holds every rank's parts of the weights
  // As given, to plan the same again: values of --boundary (or "until" of a stage file), --balance (of a
  // stage file with layers the number of each stage's, "3,5"; "": not given), --layers (0: not given).
  std::vector<std::string> boundaries;
  std::string balance;
  int layer_count = 0;
  ScheduleSpec schedule;  // as the family names itself: {"interleaved", {{"v", 2}}}; or ofFile()
  // The orders, a line per pipeline rank in the form of scheduleToCsv; empty where `schedule` alone gives
  // them. A file's, and those of schedules that were made for measured or predicted times.
  std::vector<std::string> schedule_orders;
  // Asynchronous schedules: a step of a program is a window of so many updates, of `microbatches`
  // microbatches each, and drains at its end.
  int64_t updates_per_step = 1;
  IdVector<LayerId, LayerPlan> layers;
  IdVector<StageId, StagePlan> stages;
  std::vector<std::string> notes;           // what the user should know: operators replicated, defaults taken
  std::optional<SearchRecord> search = {};  // of plans that were searched for (--stages auto)
};

// Some stage has a chosen sharding.
bool hasShardedStage(const Plan& plan);

// The mesh of a stage for people, by what its axes are for: "16" (one axis, which the stage's method or the
// rows of microbatches are shared over), "2x4" (of a chosen sharding), "2 copies" (all compute the same), "3
// x 2 copies" (three share the rows).
std::string meshText(const StagePlan& stage);

// A table for people.
std::string printPlan(const Plan& plan);

}  // namespace pipeshard
