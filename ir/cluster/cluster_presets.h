// Clusters that need no file: devices and nodes with published numbers. docs/clusters.md has the source of
// each.
#pragma once

#include <string>
#include <vector>

#include "ir/cluster/cluster.h"

namespace pipeshard {

struct ClusterPreset {
  std::string name;         // "p3.16xlarge", "v100"
  std::string description;  // one line
  bool of_device = false;   // a count is of devices: "v100:8"
  Cluster one;              // one whole node
};
const std::vector<ClusterPreset>& clusterPresets();

}  // namespace pipeshard
