// A part of a model (a layer, or a stage), sharded for every way in which the values at its ends can be kept:
// what it costs then, by phase, and what it holds, by kind. The costs of runs of layers are added up from
// these. One problem is built, and solved once for every way.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sharding/pricing/kernel_memory.h"
#include "sharding/stage/shard_stage.h"

namespace pipeshard {

// The most that is there while a subgraph runs.
struct PricedPeak {
  int64_t alone = 0;   // where ends are buffers
  int64_t inside = 0;  // where the parts beside this one run in the same subgraphs
};

// What runs as subgraphs, each with a buffer for all that goes in or comes out. By piece: the forward pass,
// the backward pass or its input half, its weight half.
struct PricedPasses {
  std::array<PricedPeak, 3> workspaces;  // of what is between the nodes
  // With what waits for the backward pass, which the forward pass makes bit by bit, and a backward pass is
  // done with bit by bit; and with what a backward pass hands on, and gradients, as they come to be. Less all
  // of that, so often negative. No ends.
  std::array<PricedPeak, 3> excesses;
  // Of the neediest subgraph all, where ends are buffers; with one microbatch, accumulators, too.
  int64_t peak_bytes = 0;
};

struct PricedStage {
  // Nanoseconds on the device with the largest shards: of passes per microbatch, communication included.
  int64_t forward_ns = 0;
  int64_t backward_input_ns = 0;
  int64_t backward_weight_ns = 0;
  // Of the forward pass, what does not run again (again_by_layers, again_selectively).
  int64_t once_by_layers_ns = 0;
  int64_t once_selectively_ns = 0;
  int64_t communication_ns = 0;    // collectives of the three
  int64_t update_ns = 0;           // per step: what the optimizer computes
  int64_t synchronization_ns = 0;  // per step: all communication outside of passes
  // Bytes of that device, as placedBytes; of passes, of one microbatch. "Ends" are the values that cross the
  // part's ends (StageEnd).
  int64_t weight_bytes = 0;          // parameters and other weights
  int64_t optimizer_bytes = 0;       // states
  int64_t gradient_bytes = 0;        // accumulators
  int64_t whole_gradient_bytes = 0;  // the tensors that these are shards of
  // gradients as the update reads them, where these are not the accumulators
  int64_t synchronized_bytes = 0;
  int64_t synchronization_workspace = 0;  // while they come to be
  // gradients of a microbatch that have no place in accumulators, and are added to them: there all together
  int64_t summand_bytes = 0;
  int64_t waiting_bytes = 0;  // what waits for the backward passes
  // What is kept though its layer recomputes (kept_anyway), no ends; and of it, what is among waiting_bytes.
  int64_t kept_bytes = 0;
  int64_t kept_waiting_bytes = 0;
  int64_t early_bytes = 0;          // of it, what only the input half of the backward pass reads; no ends
  int64_t handed_bytes = 0;         // what waits for the weight half from the input half on
  int64_t handed_end_bytes = 0;     // of it, ends that this part does not make
  int64_t input_bytes = 0;          // inputs of the model
  int64_t waiting_input_bytes = 0;  // those of them that wait
  int64_t output_bytes = 0;         // what the forward pass gives to nobody here: the loss
  int64_t constant_bytes = 0;       // constants inside subgraphs
  PricedPasses halved;              // forward pass, input half and weight half of the backward pass
  PricedPasses whole;               // forward pass, backward pass
  PricedPeak discarding;            // of a forward pass that keeps nothing but ends
  int64_t update_bytes = 0;  // the most that comes and goes during the update
  bool optimal = false;      // no sharding costs less; proven
};

// A value that is kept in ways[k] in the k-th answer.
struct StageEnd {
  ValueId value;
  bool goes_on = false;  // what runs after this part reads it, too: it is held until the part's pass is over
  std::vector<ShardingSpec> ways = {};
  bool as_method = false;  // cut only as the method would keep it
};

// By way; nullopt: it cannot be (a spec that the value cannot have, what is given leaves nothing, the method
// does not fit). `ways`: how many there are. `phases`: by node, in which pass a backward node runs.
// `options`: without memory_bytes and crossings; in_flight is one.
std::vector<std::optional<PricedStage>> priceStageInWays(const TrainingGraph& training,
                                                         const std::vector<NodeId>& nodes,
                                                         const std::vector<Phase>& phases,
                                                         const LogicalMesh& mesh, const CostModel& model,
                                                         const ShardStageOptions& options,
                                                         const std::vector<StageEnd>& ends, int ways);

}  // namespace pipeshard
