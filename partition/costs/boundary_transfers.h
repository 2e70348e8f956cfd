// How long the values take that cross a cut, from one stage to the next: all of one microbatch, activations
// and gradients, from the way in which the first stage keeps them (its boundary) to that of the second.
// Internal to partition/.
//
// A value that crosses several cuts is counted at each of them, since at one cut nobody knows where the
// others are. In programs it travels once to each stage that reads it. So where a value passes a stage by,
// this is too much.
#pragma once

#include <map>
#include <memory>
#include <shared_mutex>
#include <tuple>
#include <vector>

#include "partition/costs/layer_pieces.h"
#include "partition/costs/submesh_classes.h"
#include "sharding/specs/cost_model.h"
#include "sharding/specs/cross_mesh.h"

namespace pipeshard {

// Functions may be called by several threads.
class BoundaryTransfers {
 public:
  BoundaryTransfers(const TrainingGraph& training, const LayerPieces& pieces, const Cluster& cluster,
                    const SubmeshClasses& classes);

  // Per microbatch, both directions, of what crosses the cut behind a layer. Boundaries are numbers of
  // boundaryParts (stage_ways.h). kNever (stage_costs.h): a value has fewer rows than one of them has
  // parts.
  int64_t cost(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const;

  // Per step, of a parameter that stages exchange over the slowest link, with the parts of its gradient if it
  // has any: what one device sends.
  int64_t exchange(int64_t parameter_bytes, int64_t part_bytes) const;

 private:
  using Key = std::tuple<int, int, int, int, int>;
  // Shape and type, batch axis, class of submesh, boundary, whether it sends.
  using EndKey = std::tuple<Shape, DataType, int, int, int, bool>;
  int64_t plan(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const;
  // nullptr: it cannot be cut so.
  std::shared_ptr<const CrossMeshEnd> endOf(const CrossingValue& crossing, const Submesh& submesh,
                                            int boundary, bool is_sender) const;

  const TrainingGraph& training_;
  const LayerPieces& pieces_;
  const Cluster& cluster_;
  const SubmeshClasses& classes_;
  LinkCost link_;  // between the first device and the last
  mutable std::shared_mutex mutex_;
  mutable std::map<Key, int64_t> known_;  // kind of cut, classes and boundaries on both sides
  mutable std::map<EndKey, std::shared_ptr<const CrossMeshEnd>> ends_;
};

}  // namespace pipeshard
