// Types and axes of inner values of a graph as read, whose dimensions are not bound yet.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Sizes that dimensions of a graph as read are going to be bound to, by the names that it has.
struct AskedSizes {
  std::map<std::string, int64_t> sizes;  // with those of names that no input has
  // Of these, what takes other sizes, too: the batch under each of its names (parts of it), and the length of
  // sequences, "" where there is one.
  std::set<std::string> batch = {};
  std::string length = {};
};

// Gives the values of these names their type and shape where the graph does not have them (a file without
// value_info), and an open axis that has no name of an input's dimension its size, or such a name:
//   input X [?,4], value MatMul(X, W [4,3]) [?,3]     its axis 0 becomes 'X_axis0'
//   input ids [batch,8], value logits [batch,n,23]    its axis 1 becomes 8
//   value Reshape(x [batch,tokens,5], [-1,5])         its axis 0 becomes 'batch*tokens'
// An axis that is no such expression, or another one at the sizes that are asked for, gets its size there, if
// batch and length do not change it:
//   value Concat(x [batch,h,w], y [batch,h/2,w/2]), each flat, at h = w = 64     its axis 1 becomes 5120
// What does not follow stays as it is, as do names that are no values. Error(kBadModel) for a node whose
// types contradict each other.
//
// An axis of an output that has another size than its name says gets what follows, too (not axis 0, the rows
// of the batch), and an output of another rank all of its axes:
//   output logits [batch,5,height], found to be [batch,5,height/4]     its axis 2 becomes 'height/4'
// Returns a line for each such output.
std::vector<std::string> nameAxes(Graph& graph, const std::vector<std::string>& names,
                                  const AskedSizes& asked = {});

// Exporters name an axis of past and present together "past + 1" when they trace one token; the operators
// take "past + tokens". Where they contradict the first and agree with the second, the axis gets that name,
// everywhere. Names that `given` has a size for stay. Returns a line for each name that was changed.
std::vector<std::string> correctDimensionNames(Graph& graph, const std::map<std::string, int64_t>& given);

// Outputs that the file gives no rank get it, at the sizes asked for where it does not follow without: a loss
// is known by being a scalar.
void findRanksOfOutputs(Graph& graph, const AskedSizes& asked = {});

}  // namespace pipeshard
