#include "sharding/specs/direct_transfer.h"

#include <algorithm>

namespace pipeshard {
namespace {

// Of a side's devices, (summand, copy) in row-major order.
struct Summands {
  int count = 1;
  int copies = 1;
};

// Not cut, and partial over mesh axis 0 at most.
bool isWholeOrSum(const ShardingSpec& spec) {
  const bool plain = spec.partial.empty() || spec.partial == std::vector<int>{0};
  return plain && std::all_of(spec.axes.begin(), spec.axes.end(),
                              [](const std::vector<int>& axes) { return axes.empty(); });
}

Summands summandsOf(const CrossMeshSide& side) {
  const int count = side.spec.partial.empty() ? 1 : side.mesh.axisSize(0);
  return {count, side.mesh.deviceCount() / count};
}

CrossMeshTransfer planSum(const Shape& shape, DataType type, const CrossMeshSide& from,
                          const CrossMeshSide& to, const LinkCost& between) {
  const Summands sent = summandsOf(from), received = summandsOf(to);
  CrossMeshTransfer transfer;
  transfer.adds = true;
  const Shard whole{Shape(shape.size(), 0), shape};
  for (const DeviceId receiver : to.mesh.devices()) {
    CrossMeshAssembly& assembly = transfer.assemblies.emplace_back();
    const int wanted = receiver.index() / received.copies;
    const int copy = receiver.index() % received.copies % sent.copies;
    for (int summand = wanted; summand < sent.count; summand += received.count) {
      assembly.pieces.push_back(transfer.pieces.size());
      transfer.pieces.push_back({DeviceId(summand * sent.copies + copy), receiver, whole});
    }
  }
  const int64_t bytes = byteCount(type, shape);
  transfer.bytes = bytes * std::ssize(transfer.pieces);
  transfer.cost_ns = linkTime(between, static_cast<double>(bytes)) *
                     ((std::ssize(transfer.pieces) + from.mesh.deviceCount() - 1) / from.mesh.deviceCount());
  return transfer;
}

}  // namespace

CrossMeshPlan planDirectTransfer(const Shape& shape, DataType type, const CrossMeshSide& from,
                                 const CrossMeshSide& to, const LinkCost& between) {
  CrossMeshPlan plan;
  plan.sent = from.spec;
  plan.received = to.spec;
  const bool sum = !from.spec.partial.empty() || !to.spec.partial.empty();
  if (sum && (!isWholeOrSum(from.spec) || !isWholeOrSum(to.spec)))
    return planCrossMesh(shape, type, from, to, between);
  plan.transfer = sum ? planSum(shape, type, from, to, between)
                      : planTransfer(shape, type, from.mesh, from.spec, to.mesh, to.spec, between);
  plan.cost_ns = plan.transfer.cost_ns;
  return plan;
}

}  // namespace pipeshard
