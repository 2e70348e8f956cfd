#include "partition/emit/sharded_pieces.h"

#include <utility>

#include "ir/base/error.h"
#include "sharding/spmd/spmd_verify.h"

namespace pipeshard {

const LocalPiece& ShardedPieces::of(StageId stage, const std::string& name, int64_t rows,
                                    const std::vector<NodeId>& nodes, DeviceId device,
                                    const MeshGroups& groups, const std::function<Graph()>& extract) {
  const auto key = std::tuple(stage, name, rows);
  auto found = pieces_.find(key);
  if (found == pieces_.end()) found = pieces_.emplace(key, make(stage, rows, nodes, groups, extract())).first;
  const ShardedPiece& piece = found->second;
  return piece.local.at(markedCoordinates(device, piece.sharding.mesh, piece.differs_along));
}

std::vector<int64_t> ShardedPieces::placeOf(StageId stage, const std::string& name, int64_t rows,
                                            DeviceId device) const {
  const ShardedPiece& piece = pieces_.at(std::tuple(stage, name, rows));
  return markedCoordinates(device, piece.sharding.mesh, piece.differs_along);
}

ShardedPieces::ShardedPiece ShardedPieces::make(StageId stage, int64_t rows, const std::vector<NodeId>& nodes,
                                                const MeshGroups& groups, Graph whole) const {
  ShardedPiece piece;
  piece.whole = std::move(whole);
  piece.sharding = shardings_.pieceSharding(stage, nodes, rows, piece.whole);
  const LogicalMesh& mesh = piece.sharding.mesh;
  LocalPiece first = rewriteForDevice(piece.whole, piece.sharding, DeviceId(0), groups);
  piece.differs_along = first.differs_along;
  DevicePieces devices;
  for (const DeviceId device : devicesThatDiffer(mesh, piece.differs_along)) {
    const auto [made, is_new] = piece.local.try_emplace(
        markedCoordinates(device, mesh, piece.differs_along),
        device == DeviceId(0) ? std::move(first)
                              : rewriteForDevice(piece.whole, piece.sharding, device, groups));
    PIPESHARD_CHECK(is_new && made->second.differs_along == piece.differs_along,
                    "devices of stage {} disagree about where they differ", stage.index());
    devices[device] = &made->second;
  }
  verifyLocalPieces(piece.whole, piece.sharding, devices);
  return piece;
}

}  // namespace pipeshard
