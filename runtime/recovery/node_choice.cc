#include "runtime/recovery/node_choice.h"

#include <algorithm>
#include <map>

namespace pipeshard {
namespace {

using Ranks = std::vector<RankId>;

// Largest groups first: small ones fill what is left.
std::vector<std::pair<int, Ranks>> groupsOf(const IdVector<RankId, int>& planned) {
  std::map<int, Ranks> by_node;
  for (RankId rank : planned.ids()) by_node[planned[rank]].push_back(rank);
  std::vector<std::pair<int, Ranks>> groups(by_node.begin(), by_node.end());
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return groups;
}

// The node with the fewest free devices that are enough; nullptr: none has.
LiveNode* tightestFit(std::vector<LiveNode>& free, size_t ranks) {
  LiveNode* best = nullptr;
  for (LiveNode& node : free) {
    if (node.devices >= static_cast<int>(ranks) && (best == nullptr || node.devices < best->devices))
      best = &node;
  }
  return best;
}

bool placeGroups(const IdVector<RankId, int>& planned, std::vector<LiveNode> free,
                 IdVector<RankId, int>& placed) {
  const auto place = [&](const Ranks& ranks, LiveNode& node) {
    for (RankId rank : ranks) placed[rank] = node.number;
    node.devices -= static_cast<int>(ranks.size());
  };
  std::vector<Ranks> moved;
  for (const auto& [number, ranks] : groupsOf(planned)) {
    const auto own = std::find_if(free.begin(), free.end(),
                                  [n = number](const LiveNode& node) { return node.number == n; });
    if (own != free.end() && own->devices >= std::ssize(ranks)) {
      place(ranks, *own);
    } else {
      moved.push_back(ranks);
    }
  }
  for (const Ranks& ranks : moved) {
    LiveNode* const node = tightestFit(free, ranks.size());
    if (node == nullptr) return false;
    place(ranks, *node);
  }
  return true;
}

}  // namespace

std::optional<IdVector<RankId, int>> chooseNodes(const IdVector<RankId, int>& planned,
                                                 const std::vector<LiveNode>& live) {
  IdVector<RankId, int> placed = planned;
  if (placeGroups(planned, live, placed)) return placed;
  std::vector<int> devices;  // the node of each
  for (const LiveNode& node : live) devices.insert(devices.end(), std::max(0, node.devices), node.number);
  if (devices.size() < planned.size()) return std::nullopt;
  for (RankId rank : planned.ids()) placed[rank] = devices[rank.index()];
  return placed;
}

}  // namespace pipeshard
