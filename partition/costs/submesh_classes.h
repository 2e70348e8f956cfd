// Submeshes of a cluster by class: those of one class have devices of the same kinds in nodes with the same
// links. Internal to partition/.
#pragma once

#include <vector>

#include "ir/base/ids.h"
#include "ir/cluster/cluster.h"
#include "partition/costs/stage_costs.h"

namespace pipeshard {

class SubmeshClasses {
 public:
  explicit SubmeshClasses(const Cluster& cluster);

  // What sharding a stage on it depends on; -1: no submesh of the cluster (nodes that have unequally many
  // devices).
  int shape(const Submesh& submesh) const;
  int count() const { return samples_.size(); }
  const Submesh& sample(int shape) const { return samples_[shape]; }
  // Transfers depend on whether a submesh is in the same node as the one before it, too: it is unless it
  // begins a node.
  int transferClass(const Submesh& submesh) const;

 private:
  void addParts();
  void addRuns();

  const Cluster& cluster_;
  std::vector<int> alike_;               // by node: the first node that is equal
  std::vector<std::vector<int>> part_;   // by node and devices
  std::vector<std::vector<int>> run_;    // by first node and further nodes
  std::vector<Submesh> samples_;         // by shape
  std::vector<int> node_of_, first_of_;  // by device: its node, its node's first device
};

// The devices of a submesh, in order.
std::vector<RankId> devicesOf(const Submesh& submesh);

}  // namespace pipeshard
