#include "planning/model/unmade_outputs.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

bool isMadeByNode(const Graph& graph, ValueId value) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [value](const Node& node) {
    return std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
  });
}

// By what it reads, since the name of what it makes may have had to differ.
std::string copyName(const std::string& output) { return "output " + output; }

}  // namespace

void copyUnmadeOutputs(Graph& graph, const std::vector<std::string>& outputs) {
  for (const std::string& name : outputs) {
    const ValueId output = findValue(graph, name);
    PIPESHARD_CHECK(output.valid(), "the output '{}' was lost in preparation", name);
    if (isMadeByNode(graph, output)) continue;
    GraphBuilder builder(graph);
    const ValueId copy = builder.addValue(name + ".output", graph.dataType(output), graph.shape(output));
    const NodeId node = builder.addNode("", "Identity", {output}, {copy});
    graph.node(node).name = copyName(name);
    graph.outputs.push_back(copy);
  }
}

ValueId madeOutput(const Graph& graph, const std::string& name) {
  const ValueId output = findValue(graph, name);
  if (!output.valid() || isMadeByNode(graph, output)) return output;
  for (const Node& node : graph.nodes) {
    if (node.is("Identity") && node.name == copyName(name) && node.inputs[0] == output)
      return node.outputs[0];
  }
  return {};
}

bool isConstantOutput(const Graph& graph, const std::string& name) {
  return graph.initializers.contains(findValue(graph, name));
}

}  // namespace pipeshard
