// Weights that a file keeps in Constant nodes become initializers: everything behind sees one form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ir/graph/graph.h"

namespace pipeshard {

// Where the .onnx file has the raw bytes of a Constant node of its main graph, offset and length, by the name
// of the node's output.
using ConstantPlaces = std::map<std::string, std::pair<uint64_t, uint64_t>>;

// To be called on the graph of a model, once.
//   * A Constant node of the main graph that holds a floating-point tensor (`value`, `value_floats`) becomes
//     an initializer of its output's name: what `places` lists as a reference into `file`. One whose output
//     is an output of the graph stays, and so do numbers (`value_float`).
//   * In the body of a function, such a tensor of several elements becomes a further input of the function,
//     and an initializer "FUNCTION.NAME" that every call is given: calls share a weight, as in the file.
//     A function that a subgraph calls stays as it is.
//   * In a subgraph (branch, loop body), such a tensor of several elements becomes an initializer of the main
//     graph, which the subgraph reads, unless its name means something else elsewhere.
// All of these are marked (isOfConstantNode): some exporters keep in Constant nodes only what is no
// parameter.
void liftConstantNodes(Graph& graph, const ConstantPlaces& places = {}, const std::string& file = "");

bool isOfConstantNode(const Value& value);

}  // namespace pipeshard
