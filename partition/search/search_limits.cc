#include "partition/search/search_limits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Meshes = std::vector<std::vector<int>>;

// By limit.
constexpr std::array<std::string_view, 3> kSubmeshLimits = {"all", "power-of-two", "small-power-of-two"};
constexpr std::array<std::string_view, 5> kLogicalMeshLimits = {
    "all", "single-node-model-parallel", "same-as-physical", "data-parallel-only", "model-parallel-only"};

// The place of the text among the names, in which it may have _ for -. Error(kUsage) that lists them.
template <size_t kCount>
size_t placeOf(const std::string& text, const std::array<std::string_view, kCount>& names,
               const char* option) {
  std::string dashed = text;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const auto found = std::find(names.begin(), names.end(), dashed);
  if (found == names.end())
    fail(ErrorCode::kUsage, "{} {}: there is no such choice; expected one of {}", option, text,
         fmt::join(names, ", "));
  return found - names.begin();
}

bool isPowerOfTwo(int number) { return std::has_single_bit(static_cast<unsigned>(number)); }

// {n}, then {n/k, k} for every k from 2 to `most` and less than n that divides n.
Meshes meshesOfTwoAxes(int devices, int most) {
  Meshes meshes = {{devices}};
  for (int second = 2; second <= most && second < devices; ++second) {
    if (devices % second == 0) meshes.push_back({devices / second, second});
  }
  return meshes;
}

// Across nodes a single axis may cut a model, too: it is left where there is no other mesh.
Meshes singleNodeModelParallel(const Submesh& submesh) {
  Meshes meshes = meshesOfTwoAxes(submesh.deviceCount(), submesh.devices_per_node);
  if (submesh.nodes > 1 && meshes.size() > 1) meshes.erase(meshes.begin());
  return meshes;
}

// Those that cut the batch alone; all that there are, where none of them does.
std::vector<ShardingMethod> onlyByBatch(const std::vector<ShardingMethod>& methods) {
  std::vector<ShardingMethod> kept;
  for (const ShardingMethod& method : methods) {
    if (method.batchAxes() == BatchAxes::kAll) kept.push_back(method);
  }
  if (!kept.empty()) return kept;
  return {{ShardingKind::kDataParallel}, {ShardingKind::kZero2}, {ShardingKind::kZero3}};
}

}  // namespace

SubmeshLimit parseSubmeshLimit(const std::string& text) {
  return static_cast<SubmeshLimit>(placeOf(text, kSubmeshLimits, "--submeshes"));
}

SubmeshLimit usualSubmeshes(const Cluster& cluster) {
  constexpr int kMostDevices = 16;
  const bool powers = std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                                  [](const ClusterNode& node) { return isPowerOfTwo(node.devices); });
  return cluster.deviceCount() > kMostDevices && powers ? SubmeshLimit::kPowerOfTwo : SubmeshLimit::kAll;
}

std::function<bool(const Submesh&)> allowedSubmeshes(SubmeshLimit limit) {
  if (limit == SubmeshLimit::kAll) return {};
  return [small = limit == SubmeshLimit::kSmallPowerOfTwo](const Submesh& submesh) {
    constexpr int kMostNodes = 4;
    if (submesh.nodes > 1) return isPowerOfTwo(submesh.nodes) && (!small || submesh.nodes <= kMostNodes);
    return isPowerOfTwo(submesh.devices_per_node);
  };
}

LogicalMeshLimit parseLogicalMeshLimit(const std::string& text) {
  return static_cast<LogicalMeshLimit>(placeOf(text, kLogicalMeshLimits, "--logical-meshes"));
}

void limitLogicalMeshes(LogicalMeshLimit limit, StageCostOptions& options) {
  const auto one_axis = [](const Submesh& submesh) { return Meshes{{submesh.deviceCount()}}; };
  switch (limit) {
    case LogicalMeshLimit::kAll:
      options.meshes = [](const Submesh& submesh) {
        return meshesOfTwoAxes(submesh.deviceCount(), submesh.deviceCount());
      };
      return;
    case LogicalMeshLimit::kSingleNodeModelParallel: options.meshes = singleNodeModelParallel; return;
    case LogicalMeshLimit::kSameAsPhysical:
      options.meshes = [](const Submesh& submesh) {
        return submesh.nodes == 1 ? Meshes{{submesh.devices_per_node}}
                                  : Meshes{{submesh.nodes, submesh.devices_per_node}};
      };
      return;
    case LogicalMeshLimit::kDataParallelOnly:
      options.methods = onlyByBatch(options.methods);
      options.meshes = one_axis;
      return;
    case LogicalMeshLimit::kModelParallelOnly:
      options.methods = {ShardingMethod{ShardingKind::kTensorParallel}};
      options.meshes = one_axis;
      return;
  }
}

}  // namespace pipeshard
