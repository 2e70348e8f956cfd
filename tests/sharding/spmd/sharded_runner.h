// Runs local pieces of all devices of a mesh in one process, node by node in step.
#pragma once

#include <random>
#include <vector>

#include "sharding/spmd/spmd_rewrite.h"
#include "tests/sharding/graph_runner.h"

namespace pipeshard::testing {

// Replaces operators without a kernel by their bodies, where ONNX has them.
void makeRunnable(Graph& graph);
bool isRunnable(const Graph& graph);

// float64 becomes float32; other types stay.
Constant singlePrecision(const Constant& tensor);
Graph singlePrecision(Graph graph);

// Forgets all shapes that nodes give: ONNX's shape inference must find the same from the inputs (as of
// float32: it has no mean of a LayerNormalization in float64). Says where it does not; "" if it does.
std::string shapeFault(const Graph& graph);

// Groups of a mesh: those of axis 0, then axis 1, ...; each line of devices has one.
MeshGroups groupsOf(const LogicalMesh& mesh, DeviceId device);

// A device's part of a tensor. Of a partial sum: random summands, which add up to it.
std::vector<Constant> distribute(const Constant& whole, const ShardingSpec& spec, const LogicalMesh& mesh,
                                 std::mt19937_64& generator);

// The tensor of these parts. Devices that should hold the same must: their parts are compared bit by bit
// (`what` names it in failures).
Constant collect(const std::vector<Constant>& parts, const ShardingSpec& spec, const Shape& shape,
                 const LogicalMesh& mesh, const std::string& what);

// All values by device and name. `given`: the graph inputs, by device. Collectives are the reference: their
// definition, element by element.
std::vector<Tensors> runPieces(const std::vector<LocalPiece>& pieces, const std::vector<Tensors>& given);

// Any strategy of each node, any spec of each value; inputs are partial sums only if `partial_inputs`.
PieceSharding randomSharding(std::mt19937_64& generator, const Graph& graph, const LogicalMesh& mesh,
                             bool partial_inputs = true);

// The pieces of all devices, proven.
IdVector<DeviceId, LocalPiece> rewriteAll(const Graph& graph, const PieceSharding& sharding);

// Runs the pieces on inputs cut as they are kept, and compares what they give with `outputs` (distance <=
// tolerance).
void checkPieces(const Graph& graph, const Tensors& inputs, const Tensors& outputs,
                 const PieceSharding& sharding, std::vector<LocalPiece> pieces, double tolerance);

}  // namespace pipeshard::testing
