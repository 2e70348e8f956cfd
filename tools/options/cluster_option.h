// What --cluster may be: NODESxDEVICES, a preset, "this" or a file (docs/clusters.md).
#pragma once

#include <string>

#include "ir/cluster/cluster.h"

namespace pipeshard {

// "this" (or "this machine"): one node with a device for every core. A name with a slash or ".json", or of a
// file that exists: read. Else parseCluster. Errors: kUsage, kMissingInput, and those of parseClusterFile.
Cluster readCluster(const std::string& text);

// For --help: the forms in a few lines.
std::string clusterHelp();

}  // namespace pipeshard
