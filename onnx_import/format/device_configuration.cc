#include "onnx_import/format/device_configuration.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "onnx_import/format/graph_to_proto.h"

namespace pipeshard {
namespace {

constexpr int64_t kFirstIrVersion = 11;
constexpr int kNoStage = -1;
constexpr int32_t kMostDevices = 1 << 20;  // a file of a few bytes must not make us allocate gigabytes

onnx::ModelProto residueOf(const Graph& graph) {
  onnx::ModelProto residue;
  PIPESHARD_CHECK(residue.ParseFromString(graph.opaque), "graph '{}' carries bytes that are no ModelProto",
                  graph.name);
  return residue;
}

template <typename Entries, typename NameOf>
void removeNamed(Entries* entries, const std::string& name, const NameOf& nameOf) {
  entries->erase(std::remove_if(entries->begin(), entries->end(),
                                [&](const auto& entry) { return nameOf(entry) == name; }),
                 entries->end());
}

void addConfiguration(Graph& graph, const DeviceConfiguration& configuration) {
  onnx::ModelProto residue = residueOf(graph);
  removeNamed(residue.mutable_configuration(), configuration.name,
              [](const auto& entry) { return entry.name(); });
  auto* added = residue.add_configuration();
  added->set_name(configuration.name);
  added->set_num_devices(static_cast<int32_t>(configuration.devices.size()));
  const bool named = std::any_of(configuration.devices.begin(), configuration.devices.end(),
                                 [](const auto& name) { return !name.empty(); });
  if (named) added->mutable_device()->Add(configuration.devices.begin(), configuration.devices.end());
  graph.opaque = residue.SerializeAsString();
}

void setStage(Node& node, const std::string& configuration, int stage) {
  if (node.opaque.empty() && stage == kNoStage) return;
  onnx::NodeProto residue = residueOf(node);
  removeNamed(residue.mutable_device_configurations(), configuration,
              [](const auto& entry) { return entry.configuration_id(); });
  if (stage != kNoStage) {
    auto* added = residue.add_device_configurations();
    added->set_configuration_id(configuration);
    added->set_pipeline_stage(stage);
  }
  node.opaque = residue.SerializeAsString();
}

DeviceConfiguration configurationFromProto(const onnx::DeviceConfigurationProto& proto) {
  if (proto.name().empty())
    fail(ErrorCode::kBadModel, "the model has a device configuration without a name; give it one");
  if (proto.num_devices() < 1 || proto.num_devices() > kMostDevices) {
    fail(ErrorCode::kBadModel, "device configuration '{}' has num_devices = {}; 1 to {} are supported",
         proto.name(), proto.num_devices(), kMostDevices);
  }
  if (proto.device_size() > 0 && proto.device_size() != proto.num_devices()) {
    fail(ErrorCode::kBadModel,
         "device configuration '{}' names {} devices, but num_devices is {}; name all of them or none",
         proto.name(), proto.device_size(), proto.num_devices());
  }
  DeviceConfiguration configuration{proto.name(), {proto.device().begin(), proto.device().end()}};
  configuration.devices.resize(proto.num_devices());
  return configuration;
}

std::string listed(const std::set<std::string>& names) {
  return names.empty() ? "none" : fmt::format("'{}'", fmt::join(names, "', '"));
}

// The stage of the node under `configuration`; every entry is checked.
int stageOf(const Node& node, const std::string& configuration, const std::set<std::string>& known) {
  int stage = kNoStage;
  std::set<std::string> seen;
  const onnx::NodeProto residue = residueOf(node);
  for (const auto& entry : residue.device_configurations()) {
    const std::string& id = entry.configuration_id();
    if (!known.contains(id)) {
      fail(ErrorCode::kBadModel,
           "{} is annotated for the device configuration '{}', which the model does not have; it has {}",
           describeNode(node), id, listed(known));
    }
    if (!seen.insert(id).second)
      fail(ErrorCode::kBadModel, "{} is annotated twice for the device configuration '{}'",
           describeNode(node), id);
    if (!entry.has_pipeline_stage()) continue;
    if (entry.pipeline_stage() < 0) {
      fail(ErrorCode::kBadModel,
           "{} has the pipeline stage {} under the device configuration '{}'; stages count from 0",
           describeNode(node), entry.pipeline_stage(), id);
    }
    if (id == configuration) stage = entry.pipeline_stage();
  }
  return stage;
}

}  // namespace

void annotatePipelineStages(Graph& graph, const DeviceConfiguration& configuration,
                            const std::vector<int>& stages) {
  PIPESHARD_CHECK(!configuration.name.empty(), "a device configuration needs a name");
  PIPESHARD_CHECK(!configuration.devices.empty(), "device configuration '{}' has no devices",
                  configuration.name);
  PIPESHARD_CHECK(stages.size() == graph.nodes.size(), "{} stages for the {} nodes of graph '{}'",
                  stages.size(), graph.nodes.size(), graph.name);
  for (size_t n = 0; n < stages.size(); ++n) {
    PIPESHARD_CHECK(stages[n] >= kNoStage, "{} has the pipeline stage {}", describeNode(graph.nodes[n]),
                    stages[n]);
    setStage(graph.nodes[n], configuration.name, isMarkedInitializer(graph.nodes[n]) ? kNoStage : stages[n]);
  }
  addConfiguration(graph, configuration);
  graph.ir_version = std::max(graph.ir_version, kFirstIrVersion);
}

std::vector<DeviceConfiguration> deviceConfigurations(const Graph& graph) {
  std::vector<DeviceConfiguration> configurations;
  std::set<std::string> names;
  const onnx::ModelProto residue = residueOf(graph);
  for (const auto& proto : residue.configuration()) {
    configurations.push_back(configurationFromProto(proto));
    if (!names.insert(proto.name()).second)
      fail(ErrorCode::kBadModel, "the model has two device configurations '{}'", proto.name());
  }
  return configurations;
}

std::vector<int> pipelineStages(const Graph& graph, const std::string& configuration) {
  std::set<std::string> known;
  for (const DeviceConfiguration& each : deviceConfigurations(graph)) known.insert(each.name);
  if (!known.contains(configuration)) {
    fail(ErrorCode::kBadModel, "the model has no device configuration '{}'; it has {}", configuration,
         listed(known));
  }
  std::vector<int> stages;
  stages.reserve(graph.nodes.size());
  for (const Node& node : graph.nodes) stages.push_back(stageOf(node, configuration, known));
  return stages;
}

}  // namespace pipeshard
