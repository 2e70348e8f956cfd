// The devices of a logical mesh as threads that run graphs with the CPU kernels, their collectives over a
// real communicator.
#pragma once

#include <functional>
#include <memory>

#include "ir/base/sharding_spec.h"
#include "runtime/kernels/base/kernel.h"
#include "sharding/specs/resharding_emit.h"
#include "transport/collectives/communicator.h"

namespace pipeshard::testing {

// Group a of a device is its line along mesh axis a.
MeshGroups meshGroups(const LogicalMesh& mesh);

// Of a rank that is device rank - first_rank of the mesh. The communicator must outlive it.
std::unique_ptr<Collectives> meshCollectives(Communicator& communicator, const LogicalMesh& mesh,
                                             RankId first_rank);

// Runs body(device, collectives) once per device, all at the same time.
void runDevices(const LogicalMesh& mesh,
                const std::function<void(DeviceId device, Collectives& collectives)>& body);

// The shard of `whole` that a device holds under a spec. Along mesh axes of a partial sum: a summand of
// pseudo-random integers of at most 1000 in size, the same for all devices of equal coordinates along those
// axes; together they are the shard.
Constant shardOfTensor(const Constant& whole, const ShardingSpec& spec, const LogicalMesh& mesh,
                       DeviceId device);

// Fails the current test unless the devices' tensors are the shards of `whole` under this spec, bit for bit
// (partial sums: their sum), and devices that differ only along mesh axes that the spec does not use hold the
// same bits.
void expectShards(const std::vector<Constant>& shards, const Constant& whole, const ShardingSpec& spec,
                  const LogicalMesh& mesh);

// Integers from -1000 to 1000 of any numeric type of 4 or 8 bytes.
Constant integerTensor(DataType type, const Shape& shape, uint64_t seed);

}  // namespace pipeshard::testing
