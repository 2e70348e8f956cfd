#include "ir/operators/collectives.h"

#include <algorithm>
#include <array>

namespace pipeshard {
namespace {

// by kind
constexpr std::array<std::string_view, 4> kCollectiveNames{"AllReduce", "AllGather", "ReduceScatter",
                                                           "AllToAll"};

}  // namespace

std::string_view collectiveName(CollectiveKind kind) { return kCollectiveNames[static_cast<size_t>(kind)]; }

std::optional<CollectiveKind> collectiveKind(const Node& node) {
  if (node.domain != kPipeshardDomain) return std::nullopt;
  const auto found = std::find(kCollectiveNames.begin(), kCollectiveNames.end(), node.op_type);
  if (found == kCollectiveNames.end()) return std::nullopt;
  return static_cast<CollectiveKind>(found - kCollectiveNames.begin());
}

GroupId collectiveGroup(const Node& node) {
  const int64_t group = node.intAttribute("group", -1);
  return group < 0 ? GroupId() : GroupId(group);
}

std::vector<GroupId> collectiveGroups(const Graph& graph) {
  std::vector<GroupId> groups;
  for (const Node& node : graph.nodes) {
    if (collectiveKind(node)) groups.push_back(collectiveGroup(node));
  }
  return groups;
}

}  // namespace pipeshard
