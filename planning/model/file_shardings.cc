#include "planning/model/file_shardings.h"

#include <algorithm>

#include <fmt/format.h>

#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/device_sharding.h"
#include "onnx_import/prepare/inference.h"
#include "sharding/stage/shard_stage.h"

namespace pipeshard {
namespace {

// The shardings of the stages that have as many devices as the mesh.
ReadShardings readOn(const Graph& graph, const std::string& configuration,
                     const std::vector<std::vector<int>>& devices, const LogicalMesh& mesh) {
  std::vector<StageDevices> stages;
  for (const std::vector<int>& of_stage : devices) {
    const bool fits = std::ssize(of_stage) == mesh.deviceCount();
    stages.push_back(fits ? StageDevices{mesh, of_stage} : StageDevices{});
  }
  return nodeShardings(graph, configuration, stages);
}

FileShardings readConfiguration(Graph graph, const std::string& configuration,
                                const std::vector<std::vector<int>>& devices,
                                const std::optional<LogicalMesh>& mesh) {
  inferShapes(graph);
  const auto first =
      std::find_if(devices.begin(), devices.end(), [](const auto& of_stage) { return !of_stage.empty(); });
  std::vector<LogicalMesh> meshes;
  if (mesh) meshes = {*mesh};
  if (!mesh) meshes = meshesFor(first->size(), {ShardingKind::kManual});
  std::optional<ReadShardings> best;
  FileShardings shardings;
  for (const LogicalMesh& candidate : meshes) {
    ReadShardings read = readOn(graph, configuration, devices, candidate);
    if (best && best->skipped <= read.skipped) continue;
    best = std::move(read);
    shardings.mesh = candidate;
  }
  shardings.specs = valueShardings(graph, best->nodes);
  shardings.notes = {
      fmt::format("the model's device configuration '{}' gives the shardings of {} values, read on mesh {}",
                  configuration, shardings.specs.size(), printMesh(shardings.mesh))};
  shardings.notes.insert(shardings.notes.end(), best->notes.begin(), best->notes.end());
  return shardings;
}

}  // namespace

std::optional<FileShardings> readFileShardings(const Graph& graph, const std::optional<LogicalMesh>& mesh) {
  for (const DeviceConfiguration& configuration : deviceConfigurations(graph)) {
    const std::vector<std::vector<int>> devices = shardedDevices(graph, configuration.name);
    const bool says =
        std::any_of(devices.begin(), devices.end(), [](const auto& of_stage) { return !of_stage.empty(); });
    if (says) return readConfiguration(graph, configuration.name, devices, mesh);
  }
  return std::nullopt;
}

}  // namespace pipeshard
