// The mode of modules in a file: which are in training mode, and the other mode in its place (`--mode` of
// `plan` and of `export`).
#pragma once

#include <string>

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

// Of the batch normalisations that the file itself has in training mode, how many have running statistics of
// the module (by name or mark) that stay as they are: what is read is computed of them, or the momentum is 1.
int standingNormalizations(const Graph& graph);

// What is in training mode.
struct TrainingModes {
  int normalizations = 0;  // batch normalisations that take the statistics of a batch
  int dropouts = 0;        // that drop at random
  bool any() const { return normalizations + dropouts > 0; }
};

// Of a graph as read, functions, branches and loops included, or of a prepared one, where a dropout is the
// mask that it draws. A dropout whose mode the file computes is not counted.
TrainingModes trainingModes(const Graph& graph);

// "3 batch normalizations and 1 dropout", without what there is none of.
std::string trainingModesToString(const TrainingModes& modes);

// Batch normalisations in training mode, of a graph as read or prepared, read their running statistics. Who
// reads an updated one reads the statistic itself; what only hands one on goes away, and so do graph outputs
// that are updated statistics. Error(kConfiguration) where a branch or loop reads one.
void dropUpdatedStatistics(Graph& graph);

// Puts batch normalisations (dropUpdatedStatistics) and dropouts, which hand their input on then, of a graph
// as read into inference mode, and returns how many. Ids of values stay. Error(kConfiguration) where
// functions, branches or loops have some of them or read updated statistics, and where a mask of a dropout is
// read (by a backward pass).
TrainingModes setInferenceMode(Graph& graph);

}  // namespace pipeshard
