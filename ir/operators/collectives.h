// Collectives inside a subgraph: operators of the pipeshard domain that all devices of a group run together.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/base/ids.h"
#include "ir/graph/graph.h"

namespace pipeshard {

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };

// the operator's name in the pipeshard domain: "AllReduce"
std::string_view collectiveName(CollectiveKind kind);
// Of a node; nullopt when it is no collective.
std::optional<CollectiveKind> collectiveKind(const Node& node);
// The group of the program over which it goes; invalid: it names none.
GroupId collectiveGroup(const Node& node);
// Of every collective, in node order (Subgraph::collectives).
std::vector<GroupId> collectiveGroups(const Graph& graph);

}  // namespace pipeshard
