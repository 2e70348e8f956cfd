#include "partition/costs/submesh_classes.h"

#include <map>

#include "ir/base/error.h"

namespace pipeshard {

SubmeshClasses::SubmeshClasses(const Cluster& cluster) : cluster_(cluster) {
  for (int node = 0; node < cluster.nodeCount(); ++node) {
    int first = 0;
    while (!(cluster.nodes[first] == cluster.nodes[node])) ++first;
    alike_.push_back(first);
    const int first_device = node_of_.size();
    node_of_.insert(node_of_.end(), static_cast<size_t>(cluster.nodes[node].devices), node);
    first_of_.resize(node_of_.size(), first_device);
  }
  addParts();
  addRuns();
}

void SubmeshClasses::addParts() {
  int first_device = 0;
  for (size_t node = 0; node < alike_.size(); ++node) {
    const int devices = cluster_.nodes[node].devices;
    std::vector<int>& classes = part_.emplace_back(static_cast<size_t>(devices) + 1, -1);
    const size_t like = alike_[node];
    if (like != node) classes = part_[like];
    for (int count = 1; like == node && count <= devices; ++count) {
      classes[count] = this->count();
      samples_.push_back({first_device, 1, count});
    }
    first_device += devices;
  }
}

void SubmeshClasses::addRuns() {
  std::map<std::vector<int>, int> known;
  int first_device = 0;
  for (size_t node = 0; node < alike_.size(); ++node) {
    std::vector<int>& runs = run_.emplace_back();
    std::vector<int> key = {alike_[node]};
    for (size_t next = node + 1;
         next < alike_.size() && cluster_.nodes[next].devices == cluster_.nodes[node].devices; ++next) {
      key.push_back(alike_[next]);
      const auto [place, is_new] = known.try_emplace(key, count());
      if (is_new)
        samples_.push_back({first_device, static_cast<int>(key.size()), cluster_.nodes[node].devices});
      runs.push_back(place->second);
    }
    first_device += cluster_.nodes[node].devices;
  }
}

int SubmeshClasses::shape(const Submesh& submesh) const {
  const size_t first = submesh.first_device;
  PIPESHARD_CHECK(first < node_of_.size() && submesh.nodes >= 1, "a submesh from device {}, of {} nodes",
                  first, submesh.nodes);
  const size_t node = node_of_[first];
  const size_t devices = submesh.devices_per_node;
  if (submesh.nodes == 1) return devices < part_[node].size() ? part_[node][devices] : -1;
  const auto further = static_cast<size_t>(submesh.nodes) - 2;
  const bool whole = first_of_[first] == submesh.first_device && devices + 1 == part_[node].size();
  return whole && further < run_[node].size() ? run_[node][further] : -1;
}

int SubmeshClasses::transferClass(const Submesh& submesh) const {
  return 2 * shape(submesh) + (first_of_[submesh.first_device] == submesh.first_device ? 1 : 0);
}

std::vector<RankId> devicesOf(const Submesh& submesh) {
  const RankId first(submesh.first_device);
  return IdRange(first, RankId(first.index() + submesh.deviceCount()));
}

}  // namespace pipeshard
