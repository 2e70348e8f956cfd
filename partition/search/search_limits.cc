#include "partition/search/search_limits.h"

#include <algorithm>
#include <bit>

#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Meshes = std::vector<std::vector<int>>;

std::string dashed(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

[[noreturn]] void refuse(const char* option, const std::string& text, const std::vector<std::string>& names) {
  fail(ErrorCode::kUsage, "{} {}: there is no such choice; expected one of {}", option, text,
       fmt::join(names, ", "));
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

}  // namespace

std::string usualSubmeshes(const Cluster& cluster) {
  constexpr int kMostDevices = 16;
  const bool powers = std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                                  [](const ClusterNode& node) { return isPowerOfTwo(node.devices); });
  return cluster.deviceCount() > kMostDevices && powers ? "power-of-two" : "all";
}

std::function<bool(const Submesh&)> allowedSubmeshes(const std::string& text) {
  const std::string name = dashed(text);
  if (name == "all") return {};
  const bool small = name == "small-power-of-two";
  if (!small && name != "power-of-two")
    refuse("--submeshes", text, {"all", "power-of-two", "small-power-of-two"});
  return [small](const Submesh& submesh) {
    constexpr int kMostNodes = 4;
    if (submesh.nodes > 1) return isPowerOfTwo(submesh.nodes) && (!small || submesh.nodes <= kMostNodes);
    return isPowerOfTwo(submesh.devices_per_node);
  };
}

void limitLogicalMeshes(const std::string& text, StageCostOptions& options) {
  const std::string name = dashed(text);
  const auto one_axis = [](const Submesh& submesh) { return Meshes{{submesh.deviceCount()}}; };
  if (name == "all") {
    options.meshes = [](const Submesh& submesh) {
      return meshesOfTwoAxes(submesh.deviceCount(), submesh.deviceCount());
    };
  } else if (name == "single-node-model-parallel") {
    options.meshes = singleNodeModelParallel;
  } else if (name == "same-as-physical") {
    options.meshes = [](const Submesh& submesh) {
      return submesh.nodes == 1 ? Meshes{{submesh.devices_per_node}}
                                : Meshes{{submesh.nodes, submesh.devices_per_node}};
    };
  } else if (name == "data-parallel-only") {
    const std::vector<ShardingMethod> ways = {
        {ShardingKind::kDataParallel}, {ShardingKind::kZero2}, {ShardingKind::kZero3}};
    std::vector<ShardingMethod> kept;
    for (const ShardingMethod& method : options.methods) {
      if (std::find(ways.begin(), ways.end(), method) != ways.end()) kept.push_back(method);
    }
    options.methods = kept.empty() ? ways : kept;
    options.meshes = one_axis;
  } else if (name == "model-parallel-only") {
    options.methods = {ShardingMethod{ShardingKind::kTensorParallel}};
    options.meshes = one_axis;
  } else {
    refuse("--logical-meshes", text,
           {"all", "single-node-model-parallel", "same-as-physical", "data-parallel-only",
            "model-parallel-only"});
  }
}

}  // namespace pipeshard
