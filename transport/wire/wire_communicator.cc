#include "transport/wire/wire_communicator.h"

#include "transport/collectives/mesh_communicator.h"
#include "transport/wire/wire_mesh.h"

namespace pipeshard {

std::unique_ptr<Communicator> openWire(const WireOptions& options) {
  return std::make_unique<mesh::MeshCommunicator<wire::WireMesh>>(options);
}

}  // namespace pipeshard
