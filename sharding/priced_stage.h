// A part of a model (a layer, or a stage) sharded with given values at its ends kept in given ways, and what it then costs by phase and
// holds by kind: the parts that costs of runs of layers add up from. One problem is built, and solved once for every way.
#pragma once

#include <optional>
#include <vector>

#include "sharding/shard_stage.h"

namespace pipeshard {

struct PricedStage {
  // Nanoseconds on the device with the largest shards: of passes per microbatch, communication included.
  int64_t forward_ns = 0;
  int64_t backward_input_ns = 0;
  int64_t backward_weight_ns = 0;
  int64_t communication_ns = 0;    // collectives of the three
  int64_t update_ns = 0;           // per step: what the optimizer computes
  int64_t synchronization_ns = 0;  // per step: all communication outside of passes
  // Bytes of that device.
  int64_t weight_bytes = 0;         // parameters and other weights
  int64_t optimizer_bytes = 0;      // states
  int64_t gradient_bytes = 0;       // accumulators
  int64_t waiting_bytes = 0;        // of one microbatch: what waits for the backward passes
  int64_t input_bytes = 0;          // of one microbatch: inputs of the model
  int64_t waiting_input_bytes = 0;  // those of them that wait
  // The most that passes hold of one microbatch: what waits, as far as it is there, and what comes and goes. With one microbatch,
  // accumulators too, from their first summand on.
  int64_t pass_bytes = 0;
  // The same where the passes run as they are emitted: a subgraph each for forward pass, input half and weight half of the backward pass.
  // What goes into a subgraph or comes out of it is there from its beginning to its end; what is between its nodes is in the workspace,
  // which is as large as the largest subgraph's.
  int64_t emitted_bytes = 0;
  int64_t update_bytes = 0;  // the most that comes and goes during the update
  bool optimal = false;      // no sharding costs less; proven
};

// A value that is kept in ways[k] in the k-th answer.
struct StageEnd {
  ValueId value;
  bool goes_on = false;  // what runs after this part reads it, too: it is held until the part's pass is over
  std::vector<ShardingSpec> ways = {};
};

// By way; nullopt: it cannot be (a spec that the value cannot have, what is given leaves nothing, the method does not fit). `ways`: how
// many there are. `phases`: by node, in which pass a backward node runs. `options`: without memory_bytes and crossings; in_flight is one.
// Errors: kConfiguration for a method that does not exist.
std::vector<std::optional<PricedStage>> priceStageInWays(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                                         const std::vector<Phase>& phases, const LogicalMesh& mesh, const CostModel& model,
                                                         const ShardStageOptions& options, const std::vector<StageEnd>& ends, int ways);

}  // namespace pipeshard
