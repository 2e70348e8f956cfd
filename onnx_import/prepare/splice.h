// Putting the body of a function or of a branch in the place of the node that calls it. Internal to
// onnx_import.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Appends copies of `body`'s nodes to `nodes` (of the graph that `builder` builds), so that together they do
// what `call` did: they read call.inputs and write call.outputs, which keep their names. Body initializers
// become initializers of the graph; values and nodes get names that start with the call's; metadata of the
// call is added where the body's node has none under that key. `attributes` replaces AttributeReferences (one
// that is not in it goes away). `captures`: values that the body reads from outside by name (branches), by
// name.
void spliceBody(GraphBuilder& builder, const Graph& body, const Node& call,
                const std::map<std::string, Attribute>& attributes,
                const std::map<std::string, ValueId>& captures, std::vector<Node>& nodes);

// Values of a subgraph that it reads but does not define: name -> id in the subgraph.
std::map<std::string, ValueId> capturedValues(const Graph& subgraph);

// The names that the subgraphs of a node read from outside, at any depth.
void collectCaptures(const Node& node, std::vector<std::string>& names);

}  // namespace pipeshard
