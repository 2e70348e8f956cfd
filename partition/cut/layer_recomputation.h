// What stages that recompute layer by layer keep, and what runs again. "layers" keeps what layers hand on:
// what backward nodes, or nodes that run again, of another layer read. "selective" also keeps what products,
// attention and convolutions made; normalisations, activations, sums and copies run again. (Korthikanti et
// al. 2022 choose by hand what is dear to make of a transformer's layer; here it follows from the graph.)
//
//   h -> LayerNorm -> n -> MatMul -> u -> Gelu -> g -> MatMul -> y, all in one layer; backward nodes read n,
//   u and g; h is handed on by the layer before, y to the next one. Kept: h, y; and of selective ones u.
//   Again: LayerNorm, Gelu; the first MatMul, unless selective; never the second: nothing here reads y.
#pragma once

#include <vector>

#include "ir/base/ids.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

struct LayerRecomputation {
  std::vector<bool> kept;   // by value: though only its own layer reads it
  std::vector<bool> again;  // by node: it runs again
};
// `layers`: by node of the training graph.
LayerRecomputation recomputationByLayers(const TrainingGraph& training, const std::vector<LayerId>& layers);
LayerRecomputation selectiveRecomputation(const TrainingGraph& training, const std::vector<LayerId>& layers);

}  // namespace pipeshard
