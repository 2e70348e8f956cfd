// TrainingInfoProto: how a model is trained, beside its graph. A Graph carries it as bytes (Graph::opaque);
// here it is taken apart and put together.
//
// A step of training is the algorithm behind the model's graph. Afterwards the initializers that
// update_binding names (of the model or of the algorithm: weights, states, counters) get new content:
//
//   model       x, w -> h           algorithm   h, labels -> loss; Gradient(w; y=loss) -> g; w - 0.1 g -> w2
//   update_binding  w: w2
//
// Several are steps that follow each other. `initialization`, which reads nothing, makes the content that
// training starts with.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The domain of the operators Gradient, Adam, Adagrad and Momentum.
inline constexpr const char* kTrainingDomain = "ai.onnx.preview.training";

struct TrainingInfo {
  Graph initialization;
  // Values of the model that it reads are values of it, with the same name and type, that nothing in it
  // defines.
  Graph algorithm;
  Metadata initialization_binding;  // initializer, output of `initialization`
  Metadata update_binding;          // initializer, output of the algorithm or the model
};

// In order. Error(kBadModel) for one whose graphs are none, or read what nothing defines. Whether bindings
// name what there is says onnx_import/forms/combined_step.h.
std::vector<TrainingInfo> trainingInfo(const Graph& graph);

// In the place of what the graph had. The names of the algorithm's own values must be none of the graph's.
void setTrainingInfo(Graph& graph, const std::vector<TrainingInfo>& infos);

}  // namespace pipeshard
