// What each layer of a training graph runs (its nodes of all phases), and the values that pass from layer to
// layer. Every layer is looked at as if it were a stage of its own. For a stage of several layers the same
// holds, layer by layer: a backward node or an update is in the stage that has its layer (node_stages.h).
// Internal to partition/.
#pragma once

#include <utility>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/layers/layer_clustering.h"

namespace pipeshard {

// A value that several layers make or read.
struct CrossingValue {
  ValueId value;
  int made = -1;             // layer; -1: an input of the model
  bool gradient = false;     // made in a backward pass: it goes to earlier layers
  int axis = -1;             // of the batch; -1: none
  std::vector<int> readers;  // layers other than `made`, ascending
  std::vector<int> forward;  // those of them with a forward node that reads it
  // layers, `made` included, that keep it from a forward for a backward pass, ascending
  std::vector<int> waits;

  // First and last layer that make or read it.
  int first() const;
  int last() const;
};

// A parameter that several layers read or add a gradient to. The first layer that reads it owns it.
struct SharedParameter {
  ValueId value;
  std::vector<int> layers;                     // that hold it, ascending
  std::vector<int> gradients;                  // that have an accumulator for it
  std::vector<std::pair<ValueId, int>> parts;  // of its gradient, with the layer that makes each
};

struct LayerPieces {
  std::vector<std::vector<NodeId>> nodes;  // by layer, in order; prologues are in none
  // by node: what another layer waits for is made in the input part of a backward pass
  std::vector<Phase> phases;
  std::vector<CrossingValue> crossings;
  // by layer: the crossings that it makes or reads, in order of their values
  std::vector<std::vector<int>> of_layer;
  // by layer: those that cross the cut behind it, which are no inputs of the model
  std::vector<std::vector<int>> at_cut;
  std::vector<SharedParameter> shared;
  std::vector<ValueId> replicated;  // other weights that several layers read: kept replicated
  // By layer: Clustering::kinds, with layers told apart that pass other values on. Numbered from 0 as they
  // come.
  std::vector<int> kinds;
  int kind_count = 0;
  std::vector<int> cut_kinds;  // by layer: cuts behind which equal shapes cross have equal numbers
};

// Errors: kConfiguration when a state is read and updated in different layers (cut_training.h).
LayerPieces layerPieces(const TrainingGraph& training, const Clustering& clustering,
                        const std::vector<int>& batch_axes);

}  // namespace pipeshard
