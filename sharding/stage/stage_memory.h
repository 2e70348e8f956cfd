// What a device holds while it runs a step of a stage. Internal to shard_stage.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "sharding/stage/stage_sharding.h"
#include "sharding/stage/stage_values.h"

namespace pipeshard {

// Bytes of one value, on the device with the largest shards, while the nodes at positions [from, to) run.
struct MemoryUse {
  ValueId value;
  int64_t bytes = 0;
  int64_t from = 0;
  int64_t to = 0;
};

// Between which positions a value is needed, and how often.
struct LiveInterval {
  int64_t from = 0;
  int64_t to = 0;
  bool waits = false;  // from a forward to a backward pass: one copy per microbatch in flight
  // Of what a layer makes again for its backward pass, which is the interval above: its forward pass.
  int64_t first_from = 0;
  int64_t first_to = 0;
};

// Behind the node at this position of `order`, or, as elementwise nodes that follow each other run as one
// (runtime/kernels/fusion), behind the last of those that it is one of. Nodes that do not run with it,
// runsWith(position), are as if they were not there.
template <class RunsWith>
int64_t behindElementwise(const Graph& graph, const std::vector<NodeId>& order, int64_t position,
                          const RunsWith& runsWith) {
  const auto isElementwise = [&](int64_t at) {
    const Node& node = graph.node(order[at]);
    return isView(node) || operatorFacts(node).work == WorkClass::kElementwise;
  };
  int64_t behind = position + 1;
  if (!isElementwise(position)) return behind;
  for (int64_t at = behind; at < std::ssize(order); ++at) {
    if (!runsWith(at)) continue;
    if (!isElementwise(at)) break;
    behind = at + 1;
  }
  return behind;
}

struct MemoryOptions {
  int64_t microbatches = 1;
  int64_t in_flight = 1;
  std::vector<LayerId> recomputed_layers = {};  // ShardStageOptions
  std::vector<bool> kept_anyway = {};           // ShardStageOptions
  bool whole_backward = false;                  // ShardStageOptions
  // As programs will run it: a pass (of each layer that is recomputed) is a piece; of a backward pass that is
  // not whole its two halves, one behind the other. What is made in one piece and read in another is there
  // from its maker, or, of another stage, the piece's beginning on, and to its last reader, or, of a forward
  // pass, the piece's end. Else every node is a piece, in the order of the list.
  bool in_pieces = false;
};

class StageMemory {
 public:
  StageMemory(const TrainingGraph& training, const std::vector<NodeId>& nodes,
              const std::vector<StageValue>& values, const MemoryOptions& options);

  // Of a held value as it is kept; empty (from == to) if it has no memory of its own (a constant; a
  // gradient's further parts). What comes from another stage is there from the beginning, a gradient from its
  // first reader.
  const LiveInterval& interval(ValueId value) const { return intervals_[value.index()]; }
  // Everything, with copies of what waits, and what stands beside it while a node runs: outputs before and
  // inputs after a resharding.
  std::vector<MemoryUse> uses(const StageSharding& sharding) const;
  int64_t nodeCount() const { return std::ssize(order_); }
  // The stage's nodes in the order that positions count in.
  const std::vector<NodeId>& order() const { return order_; }

 private:
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
  };
  using PieceKey = std::array<int64_t, 3>;

  PieceKey pieceKey(NodeId node) const;
  void orderNodes(const std::vector<NodeId>& nodes);
  void findRecomputedLayers();
  LiveInterval intervalOf(ValueId id) const;
  int64_t lastEnd(int64_t last) const;  // of what the node at this position is the last to read
  void recompute(ValueId id, LiveInterval& live) const;
  void keepAnyway(ValueId id, LiveInterval& live) const;
  void placeGradients();
  int64_t bytes(ValueId value, const ShardingSpec& spec, const LogicalMesh& mesh) const;

  const TrainingGraph& training_;
  const std::vector<StageValue>& values_;
  MemoryOptions options_;
  std::vector<NodeId> order_;
  std::vector<Piece> pieces_;      // by position: of the piece that it is in
  std::vector<int64_t> position_;  // by node index
  // by layer: where its forward nodes end, and its backward nodes begin
  std::map<LayerId, std::pair<int64_t, int64_t>> recomputed_;
  int64_t passes_end_ = 0;  // position of the first update node
  // by value index: a backward pass makes it, of this stage or of another one
  std::vector<bool> gradient_;
  std::vector<LiveInterval> intervals_;
};

struct MemoryPeak {
  int64_t bytes = 0;
  int64_t time = 0;             // the node that runs then, by position in the list
  std::vector<MemoryUse> uses;  // at that time, the largest first
};
MemoryPeak peakOf(const std::vector<MemoryUse>& uses, int64_t node_count);

// `order`: StageMemory::order.
// "at MatMul 'fc' 1500 bytes are needed where 1000 fit, 500 too many; the largest: 'w' 800 (kept S0,R), ..."
std::string describePeak(const TrainingGraph& training, const std::vector<NodeId>& order,
                         const MemoryPeak& peak, int64_t limit);

}  // namespace pipeshard
