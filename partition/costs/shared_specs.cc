#include "partition/costs/shared_specs.h"

#include <cstdint>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

std::vector<SharedSpec> sharedSpecs(const Shape& shape, const LogicalMesh& mesh) {
  const ShardingSpec whole = replicated(shape.size());
  std::vector<int> all;  // axes of several devices
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (mesh.axisSize(axis) > 1) all.push_back(axis);
  }
  std::vector<SharedSpec> specs = {{whole, whole}};
  if (all.empty()) return specs;
  const auto add = [&](std::optional<size_t> axis, const std::vector<int>& cut_over,
                       const std::vector<int>& summed_over, bool parts_cut) {
    SharedSpec spec{whole, whole};
    const bool has_axis = !axis || *axis < shape.size();
    if (axis && has_axis) spec.parameter.axes[*axis] = cut_over;
    if (axis && has_axis && parts_cut) spec.parts = spec.parameter;
    spec.parts.partial = summed_over;
    const bool can = has_axis && specFault(spec.parameter, shape, mesh).empty() &&
                     specFault(spec.parts, shape, mesh).empty();
    specs.push_back(can ? spec : specs.front());
  };
  add(std::nullopt, {}, all, false);
  add(0, all, {}, true);
  add(1, all, {}, true);
  add(0, all, all, false);
  if (all.size() != 2) return specs;
  add(0, {all[1]}, {all[0]}, true);
  add(1, {all[1]}, {all[0]}, true);
  return specs;
}

std::optional<SharedChoice> chooseShared(
    const std::vector<const std::vector<std::optional<PricedStage>>*>& layers, int64_t microbatches) {
  PIPESHARD_CHECK(!layers.empty(), "no layers share parameters");
  std::optional<SharedChoice> choice;
  // time and bytes; bytes and time
  std::pair<int64_t, int64_t> fastest(INT64_MAX, 0), smallest(INT64_MAX, 0);
  for (size_t way = 0; way < layers.front()->size(); ++way) {
    int64_t time = 0, bytes = 0;
    bool possible = true;
    for (const std::vector<std::optional<PricedStage>>* layer : layers) {
      const std::optional<PricedStage>& of = (*layer)[way];
      possible = possible && of.has_value();
      if (!possible) break;
      time += microbatches * (of->forward_ns + of->backward_input_ns + of->backward_weight_ns) +
              of->update_ns + of->synchronization_ns;
      bytes += of->weight_bytes + of->gradient_bytes + of->optimizer_bytes + of->synchronized_bytes;
    }
    if (!possible) continue;
    const std::pair by_time(time, bytes), by_bytes(bytes, time);
    if (!choice) choice = SharedChoice{way, way};
    if (by_time < fastest) fastest = by_time, choice->fast = way;
    if (by_bytes < smallest) smallest = by_bytes, choice->small = way;
  }
  return choice;
}

}  // namespace pipeshard
