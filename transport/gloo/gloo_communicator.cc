#include "transport/gloo/gloo_communicator.h"

#include <gloo/transport/unbound_buffer.h>

#include "transport/collectives/mesh_communicator.h"
#include "transport/gloo/gloo_mesh.h"

namespace pipeshard {

std::unique_ptr<Communicator> openGloo(const GlooOptions& options, RendezvousStore& store) {
  return std::make_unique<mesh::MeshCommunicator<mesh::GlooMesh>>(options, store);
}

}  // namespace pipeshard
