// Outputs of a prepared model that no operator makes: what preparation has computed beforehand (the sizes of
// an input, zeros of its shape), a weight, an input that is handed through. What an evaluation gives comes
// from operators, so each of them is copied by an Identity: then its rows are cut, compared and listed like
// all others.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Appends an Identity for each of these outputs, by name, that no node makes, and lists what it makes as an
// output of the graph, too. All values keep their names. Every output is a value of the graph.
void copyUnmadeOutputs(Graph& graph, const std::vector<std::string>& outputs);

// The value of the graph that a node makes of the output of this name: the output itself, or its copy.
// Invalid: there is neither.
ValueId madeOutput(const Graph& graph, const std::string& name);

// A weight or constant of the graph: no batch input is in it.
bool isConstantOutput(const Graph& graph, const std::string& name);

}  // namespace pipeshard
