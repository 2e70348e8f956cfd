// The ways in which stages on a submesh may be run: logical meshes, methods, and how what crosses their ends
// is kept. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "partition/costs/stage_costs.h"

namespace pipeshard {

struct StageWay {
  LogicalMesh mesh;
  std::string method;
  int boundary = 0;  // StageConfig::boundary
  int parts = 1;     // that what crosses the ends is cut into
  int shared = 0;    // StageConfig::shared
  friend bool operator==(const StageWay&, const StageWay&) = default;
};

// In order: meshes, methods, boundaries. No two are the same in effect: on one device there is one.
std::vector<StageWay> waysOn(const Submesh& submesh, const StageCostOptions& options);

// The way that a config says; empty: it cannot be on so many devices.
std::vector<StageWay> wayOf(const StageConfig& config, int devices);

// A value with the batch axis (-1: none), as it crosses the ends.
ShardingSpec boundarySpec(size_t rank, int batch_axis, const LogicalMesh& mesh, int boundary);

// The numbers of parts that boundaries of so many devices are told apart by, ascending: the divisors, at most
// kMostBoundaries (then those in the middle are missing).
std::vector<int> boundaryParts(int devices);

// The mesh of so many devices on which a value cut into so many parts is cut along the first axis.
LogicalMesh meshOfParts(int devices, int parts);

}  // namespace pipeshard
