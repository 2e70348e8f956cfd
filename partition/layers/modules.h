// The search by pattern for the modules (of PyTorch, say) that operators came from (moduleScopes in
// ir/graph/exporter_marks.h). Internal to partition/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "partition/layers/layers.h"

namespace pipeshard {

// What a pattern matches: for each node the outermost module whose path or type it matches, or else the node
// itself if it matches the operator's type or name. The same module is one unit, however many nodes it has.
struct ModuleMatch {
  std::vector<int> unit;  // by position: the index of its unit, or -1
  // by unit, in the order of first appearance: the module's path or the operator's name
  std::vector<std::string> names;
};

// `pattern` is a regular expression (NamePattern), searched anywhere in the text, case-insensitive. Errors:
// kUsage (no regular expression), kConfiguration (nothing matches: the message lists what there is).
ModuleMatch matchModules(const Graph& graph, const std::vector<NodeId>& nodes, const std::string& pattern);

// Layers for units: one starts where each unit first appears, and another behind the unit's last node if
// nodes of no unit follow. Nodes before the first unit are a layer too. `weights`: how many units start in a
// layer, 0 or 1.
//   unitLayers({-1, 0, 0, 1, 1, -1}): ends {0, 2, 4, 5}, weights {0, 1, 1, 0}
struct UnitLayers {
  LayerEnds ends;
  IdVector<LayerId, int64_t> weights;
};
UnitLayers unitLayers(const std::vector<int>& unit);

}  // namespace pipeshard
