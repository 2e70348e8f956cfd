#include "onnx_import/patterns/match.h"

#include <fmt/format.h>

namespace pipeshard {

std::string obstacle(const PatternGraph& patterns, const Match& match) {
  const Graph& graph = patterns.graph;
  for (const NodeId id : match.nodes) {
    const Node& node = graph.node(id);
    if (!node.opaque.empty()) return fmt::format("the file gives {} a sharding", describeNode(node));
    const ValueId made = node.outputs[0];
    if (made == match.output) continue;
    const std::string& name = graph.value(made).name;
    if (patterns.is_output[made.index()]) return fmt::format("'{}' is also an output", name);
    for (const NodeId user : patterns.uses.consumers[made.index()]) {
      if (!match.nodes.contains(user))
        return fmt::format("'{}' is also read by {}", name, describeNode(graph.node(user)));
    }
  }
  return "";
}

}  // namespace pipeshard
