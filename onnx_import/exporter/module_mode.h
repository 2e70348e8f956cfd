// The mode that modules of a file are trained in, where the exporter has written another one (`--mode`).
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

struct ChangedModes {
  int normalizations = 0;
  int dropouts = 0;
  int in_evaluation = 0;  // normalisations that stay as they are
  int standing = 0;       // of those changed: normalisations whose running statistics do not move
};

// A batch normalisation in inference mode that the module had in training mode, as the exporter's mark tells.
bool losesTraining(const Node& node);

// Puts batch normalisations and dropouts that the file has in inference mode into training mode:
//   BatchNormalization(x, scale, bias, mean, var)  normalises by the moments of a microbatch, and keeps
//                                                  running statistics (autodiff/forward_states.h)
//   Dropout(x, ratio)                              drops
// Where the file tells that some normalisations were in training mode, others were in evaluation mode (those
// of a frozen backbone), and stay so. A dropout that the exporter has left out is not in the file, and stays
// out. To be called on the graph as read. Error(kBadModel) for a file whose opset has no training mode (below
// 14 and 12);
// Error(kConfiguration) where a converter has folded the normalisations (converter_traps.h).
ChangedModes setTrainingMode(Graph& graph);

}  // namespace pipeshard
