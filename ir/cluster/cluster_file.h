// Cluster files: a cluster described by hand, for `--cluster FILE`.
#pragma once

#include <string>
#include <string_view>

#include "ir/cluster/cluster.h"

namespace pipeshard {

// A cluster described in JSON, with // comments (docs/clusters.md). `what` is the file's name, for messages:
// "c.json.nodes[1].nics: found 0; expected an integer from 1 to 1048576". The cluster is named by the file's
// "name", else `what`. Errors: kConfiguration, kVersionMismatch.
Cluster parseClusterFile(std::string_view text, std::string_view what);
// The same as such a file, every number written out. parseClusterFile gives back an equal cluster.
std::string clusterFileText(const Cluster& cluster);

}  // namespace pipeshard
