// The pieces of sharded stages as their devices run them: each is cut out of the training graph, rewritten
// and verified once, and rewritten again only for devices that run something else
// (LocalPiece::differs_along). Internal to partition/emit/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ir/graph/graph.h"
#include "partition/cut/stage_shardings.h"
#include "sharding/spmd/spmd_rewrite.h"

namespace pipeshard {

class ShardedPieces {
 public:
  // `shardings` outlives this.
  explicit ShardedPieces(const StageShardings& shardings) : shardings_(shardings) {}

  // The piece of a stage with this name, of microbatches of so many rows, on one device. `nodes`, of the
  // family's base, and `extract`, which gives the subgraph of them, are the same on all devices of the stage,
  // and so are `groups`. All devices' pieces have been verified together.
  const LocalPiece& of(StageId stage, const std::string& name, int64_t rows, const std::vector<NodeId>& nodes,
                       DeviceId device, const MeshGroups& groups, const std::function<Graph()>& extract);
  // Devices of which this is equal have the same graph of a piece that has been made.
  std::vector<int64_t> placeOf(StageId stage, const std::string& name, int64_t rows, DeviceId device) const;

 private:
  struct ShardedPiece {
    Graph whole;
    PieceSharding sharding;
    MeshAxes differs_along;
    std::map<std::vector<int64_t>, LocalPiece> local;  // by coordinates along these axes
  };
  ShardedPiece make(StageId stage, int64_t rows, const std::vector<NodeId>& nodes, const MeshGroups& groups,
                    Graph whole) const;

  const StageShardings& shardings_;
  std::map<std::tuple<StageId, std::string, int64_t>, ShardedPiece> pieces_;
};

}  // namespace pipeshard
