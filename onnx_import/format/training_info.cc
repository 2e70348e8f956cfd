#include "onnx_import/format/training_info.h"

#include "ir/base/error.h"
#include "onnx_import/format/external_data.h"
#include "onnx_import/format/graph_to_proto.h"
#include "onnx_import/format/proto_to_graph.h"

namespace pipeshard {
namespace {

onnx::ModelProto carriedBy(const Graph& graph) {
  onnx::ModelProto carried;
  PIPESHARD_CHECK(carried.ParseFromString(graph.opaque), "graph '{}' carries bytes that are no ModelProto",
                  graph.name);
  return carried;
}

template <typename Entries>
Metadata bindingFrom(const Entries& entries) {
  Metadata binding;
  for (const auto& entry : entries) binding.emplace_back(entry.key(), entry.value());
  return binding;
}

template <typename Entries>
void bindingToProto(const Metadata& binding, Entries* entries) {
  for (const auto& [initializer, output] : binding) {
    auto* entry = entries->Add();
    entry->set_key(initializer);
    entry->set_value(output);
  }
}

bool isEmpty(const Graph& graph) {
  return graph.nodes.empty() && graph.initializers.empty() && graph.inputs.empty() && graph.outputs.empty();
}

}  // namespace

std::vector<TrainingInfo> trainingInfo(const Graph& graph) {
  onnx::ModelProto carried = carriedBy(graph);
  const ImportLimits limits;
  ExternalData external(graph.directory, "", "", false);
  const ProtoSource source{limits, &external, "", {}};
  Graph nothing;
  nothing.opset_imports = graph.opset_imports;
  std::vector<TrainingInfo> infos;
  for (auto& proto : *carried.mutable_training_info()) {
    try {
      infos.push_back({graphInside(*proto.mutable_initialization(), nothing, source),
                       graphInside(*proto.mutable_algorithm(), graph, source),
                       bindingFrom(proto.initialization_binding()), bindingFrom(proto.update_binding())});
    } catch (Error& error) {
      error.addContext(fmt::format("TrainingInfoProto {}", infos.size()));
      throw;
    }
  }
  return infos;
}

void setTrainingInfo(Graph& graph, const std::vector<TrainingInfo>& infos) {
  onnx::ModelProto carried = carriedBy(graph);
  carried.clear_training_info();
  for (const TrainingInfo& info : infos) {
    auto& proto = *carried.add_training_info();
    if (!isEmpty(info.initialization)) graphToProto(info.initialization, *proto.mutable_initialization());
    if (!isEmpty(info.algorithm)) graphToProto(info.algorithm, *proto.mutable_algorithm());
    bindingToProto(info.initialization_binding, proto.mutable_initialization_binding());
    bindingToProto(info.update_binding, proto.mutable_update_binding());
  }
  graph.opaque = carried.ByteSizeLong() > 0 ? carried.SerializeAsString() : std::string();
}

}  // namespace pipeshard
