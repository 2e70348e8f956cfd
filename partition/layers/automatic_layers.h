// How many layers a model gets when nobody says, and where its equal blocks begin and end. Internal to
// layer_clustering.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/layers/layer_clustering.h"

namespace pipeshard {

// Forward nodes in an order, and what clustering needs to know of each, by position.
struct LayerMaterial {
  std::vector<int> keys;           // structuralNumbers
  std::vector<int64_t> flops;      // forward
  std::vector<int64_t> cut_bytes;  // partition/layers/layers.h
  int64_t count() const { return std::ssize(keys); }
};
LayerMaterial layerMaterial(const TrainingGraph& training, const std::vector<NodeId>& order);

// Of positions [begin, end) the run of repeats that covers the most FLOPs. Where blocks may begin at several
// places (a rotation of the same nodes), they begin where the fewest bytes cross between them.
RepeatedBlocks repeatsWithin(const LayerMaterial& material, int64_t begin, int64_t end);

// That of the whole, then those of what is left before and behind, and so on, as far as a run covers a
// twentieth of all FLOPs; in order.
std::vector<RepeatedBlocks> allRepeats(const LayerMaterial& material);

// Layers as clusterTraining's head comment says.
LayerEnds automaticEnds(const LayerMaterial& material, const std::vector<RepeatedBlocks>& repeats,
                        int most_layers, double tolerance);

}  // namespace pipeshard
