// Types and axes of inner values of a graph as read, whose dimensions are not bound yet.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Gives the values of these names their type and shape where the graph does not have them (a file without
// value_info), and an open axis that has no name of an input's dimension its size, or such a name:
//   input X [?,4], value MatMul(X, W [4,3]) [?,3]     its axis 0 becomes 'X_axis0'
//   input ids [batch,8], value logits [batch,n,23]    its axis 1 becomes 8
//   value Reshape(x [batch,tokens,5], [-1,5])         its axis 0 becomes 'batch*tokens'
// What does not follow stays as it is, as do names that are no values. Error(kBadModel) for a node whose
// types contradict each other.
void nameAxes(Graph& graph, const std::vector<std::string>& names);

// Outputs that the file gives no rank get it: a loss is known by being a scalar.
void findRanksOfOutputs(Graph& graph);

}  // namespace pipeshard
