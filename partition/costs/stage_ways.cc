#include "partition/costs/stage_ways.h"

#include <algorithm>

#include "ir/base/error.h"
#include "sharding/stage/shard_stage.h"

namespace pipeshard {
namespace {

constexpr int kBoundaries = 3;

// The numbers of boundaries that a method goes with.
std::vector<int> boundariesOf(const ShardingMethod& method) {
  switch (method.batchAxes()) {
    case BatchAxes::kFree: return {0, 1, 2};
    case BatchAxes::kAll: return {0};
    case BatchAxes::kFirst: return {1};
    case BatchAxes::kNone: return {2};
  }
  PIPESHARD_CHECK(false, "a method that cuts the batch in no way");
}

int partsOf(const LogicalMesh& mesh, int boundary) {
  return boundary == 0 ? mesh.deviceCount() : boundary == 1 ? mesh.axisSize(0) : 1;
}

// The meshes, of those given, that a method is tried on. Those that cut the batch alone need one.
std::vector<LogicalMesh> meshesOfMethod(const ShardingMethod& method, const std::vector<LogicalMesh>& meshes,
                                        int devices) {
  if (method.isAnyGrid()) {
    std::vector<LogicalMesh> result;
    for (const LogicalMesh& mesh : meshes) {
      if (mesh.rank() == 2) result.push_back(mesh);
      if (mesh.rank() == 1) result.push_back({{1, devices}});
    }
    return result;
  }
  if (method.hasGrid()) {
    if (int64_t{method.data} * method.tensor != devices) return {};
    return {{{method.data, method.tensor}}};
  }
  if (method.batchAxes() != BatchAxes::kAll) return meshes;
  const auto flat =
      std::find_if(meshes.begin(), meshes.end(), [](const LogicalMesh& mesh) { return mesh.rank() == 1; });
  return {flat == meshes.end() ? meshes.front() : *flat};
}

ShardingMethod methodOn(const ShardingMethod& method, const LogicalMesh& mesh) {
  return method.isAnyGrid() ? ShardingMethod{method.kind, mesh.shape.at(0), mesh.shape.at(1)} : method;
}

}  // namespace

std::vector<StageWay> waysOn(const Submesh& submesh, const StageCostOptions& options) {
  const int devices = submesh.deviceCount();
  if (devices == 1) return {{{{1}}, {}, 0, 1}};
  std::vector<LogicalMesh> meshes;
  if (options.meshes) {
    for (const std::vector<int>& shape : options.meshes(submesh)) {
      meshes.push_back({shape});
      PIPESHARD_CHECK(meshes.back().deviceCount() == devices, "mesh {} for {} devices",
                      printMesh(meshes.back()), devices);
    }
  } else {
    meshes = meshesFor(devices, {});
  }
  std::vector<StageWay> ways;
  for (const ShardingMethod& method : options.methods) {
    if (meshes.empty()) break;
    for (const LogicalMesh& mesh : meshesOfMethod(method, meshes, devices)) {
      std::vector<int> seen;
      for (int boundary : boundariesOf(method)) {
        const int parts = partsOf(mesh, boundary);
        if (std::find(seen.begin(), seen.end(), parts) != seen.end()) continue;
        seen.push_back(parts);
        ways.push_back({mesh, methodOn(method, mesh), boundary, parts});
      }
    }
  }
  return ways;
}

std::vector<StageWay> wayOf(const StageConfig& config, int devices) {
  const LogicalMesh mesh{config.mesh};
  if (mesh.shape.empty() || mesh.deviceCount() != devices || config.boundary < 0 ||
      config.boundary >= kBoundaries)
    return {};
  if (devices == 1) return {{{{1}}, {}, 0, 1}};
  if (config.method.isAnyGrid() && mesh.rank() != 2) return {};
  return {
      {mesh, methodOn(config.method, mesh), config.boundary, partsOf(mesh, config.boundary), config.shared}};
}

ShardingSpec boundarySpec(size_t rank, int batch_axis, const LogicalMesh& mesh, int boundary) {
  ShardingSpec spec = replicated(rank);
  if (batch_axis < 0) return spec;
  std::vector<int>& axes = spec.axes[batch_axis];
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (boundary == 0 || (boundary == 1 && axis == 0)) axes.push_back(axis);
  }
  return spec;
}

std::vector<int> boundaryParts(int devices) {
  std::vector<int> parts;
  for (int count = 1; count <= devices; ++count) {
    if (devices % count == 0) parts.push_back(count);
  }
  if (parts.size() > kMostBoundaries) parts.erase(parts.begin() + kMostBoundaries - 1, parts.end() - 1);
  return parts;
}

LogicalMesh meshOfParts(int devices, int parts) {
  if (parts == 1 || parts == devices) return {{devices}};
  return {{parts, devices / parts}};
}

}  // namespace pipeshard
