// Clusters in JSON documents, for the sources of ir/ only. The form is that of cluster files
// (docs/clusters.md).
#pragma once

#include "ir/base/json_reader.h"
#include "ir/cluster/cluster.h"

namespace pipeshard {

// "name", "kinds" and "nodes", every number written out, equal nodes once with a count.
Json clusterToJson(const Cluster& cluster);

// Of an object that may have `name` and the keys above, and "version" beside them where `versioned`.
Cluster clusterFromJson(const JsonReader& json, std::string_view default_name, bool versioned);

}  // namespace pipeshard
