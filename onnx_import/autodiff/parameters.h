// Which weights of a model are trained.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Which initializers are trained: those that the exporter marks as PARAMETER; if it marks none, every
// floating-point weight of the graph that is no constant of the arithmetic (heuristic documented in the
// source). What overrideParameters says goes before both. In order of id.
std::vector<ValueId> trainableParameters(const Graph& graph);

// Trains the floating-point weights whose names contain a match of one of the regular expressions in `train`,
// and does not train those of `freeze`; `train` wins where both match ("--freeze . --train ^head" trains the
// head alone). To be called on the graph as read. `lost`: names of parameters that the file has no more,
// which a pattern may mean. Error(kUsage) for a pattern that is no regular expression or found in no name.
void overrideParameters(Graph& graph, const std::vector<std::string>& train,
                        const std::vector<std::string>& freeze, const std::vector<std::string>& lost = {});

// "trains 115008 of 115008 parameters in 21 tensors": elements; of all that are marked as parameters, are
// trained, or were frozen by the user.
std::string trainedSummary(const Graph& graph);

// What the user should know about the choice: frozen weights, those taken for constants, those of one element
// that are trained.
std::vector<std::string> parameterNotes(const Graph& graph);

}  // namespace pipeshard
