#include "sharding/pricing/kernel_memory.h"

#include <algorithm>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

bool isOneMatrix(const Shape& shape) {
  return shape.size() <= 2 ||
         std::all_of(shape.begin(), shape.end() - 2, [](int64_t size) { return size == 1; });
}

// Parts of a tensor along this axis are not one behind the other as they are, or not equally long: a
// collective packs them.
bool isPacked(const Shape& shape, const ShardingSpec& spec, int axis, const LogicalMesh& mesh) {
  const auto parts = [&](int of_axis) {
    int64_t count = 1;
    for (int mesh_axis : spec.axes[of_axis]) count *= mesh.axisSize(mesh_axis);
    return count;
  };
  for (int before = 0; before < axis; ++before) {
    if (shape[before] > parts(before)) return true;
  }
  return shape[axis] % mesh.deviceCount() != 0;
}

// That the gradient of a weight is computed in (runtime/kernels/products/blocked_convolution.h).
int64_t weightPieces(int64_t features) {
  constexpr int64_t kMany = 512, kBlock = 16;
  for (int64_t pieces = std::min<int64_t>(features >= kMany ? 8 : 4, features / kBlock); pieces > 1; --pieces)
    if (features % (pieces * kBlock) == 0) return pieces;
  return 1;
}

}  // namespace

bool addsToResult(const Graph& graph, const Node& node) {
  switch (operatorFacts(node).adds_up) {
    case AddsUp::kNever: return false;
    case AddsUp::kAlways: return true;
    case AddsUp::kOneProduct: return isOneMatrix(graph.shape(node.outputs.at(0)));
    case AddsUp::kWithoutBias: return node.inputs.size() < 3 || !node.inputs[2].valid();
  }
  return false;
}

bool overwritesInput(const Node& node, size_t input) {
  return operatorFacts(node).overwrites.contains(input);
}

int64_t kernelWorkspace(const Node& node, const std::vector<int64_t>& inputs, int64_t output, int64_t rows,
                        int64_t features) {
  if (inputs.size() < 2) return 0;
  rows = std::max<int64_t>(1, rows);
  switch (operatorFacts(node).workspace) {
    case Workspace::kNone: return 0;
    case Workspace::kConvolution: return inputs[1] + (inputs[0] + output) / rows;
    case Workspace::kConvolutionWeights: return inputs[1] + (inputs[0] + output) / weightPieces(features);
  }
  return 0;
}

int64_t reshardingWorkspace(ShardingSpec before, const std::vector<ReshardingStep>& steps, const Shape& shape,
                            int64_t element, const LogicalMesh& mesh) {
  const auto shard = [&](const ShardingSpec& spec) {
    return placedBytes(largestShard(spec, shape, mesh) * element);
  };
  int64_t most = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const ReshardingStep& step = steps[i];
    const bool scatters =
        step.kind == ReshardingStep::Kind::kReduceScatter || step.kind == ReshardingStep::Kind::kAllToAll;
    const bool gathers =
        step.kind == ReshardingStep::Kind::kAllGather || step.kind == ReshardingStep::Kind::kAllToAll;
    int64_t bytes = (i > 0 ? shard(before) : 0) + (i + 1 < steps.size() ? shard(step.after) : 0);
    if (scatters && isPacked(shape, before, step.to_axis, mesh)) bytes += shard(before);
    if (gathers && isPacked(shape, step.after, step.from_axis, mesh)) bytes += shard(step.after);
    most = std::max(most, bytes);
    before = step.after;
  }
  return most;
}

}  // namespace pipeshard
