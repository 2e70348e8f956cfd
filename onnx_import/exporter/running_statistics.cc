#include "onnx_import/exporter/running_statistics.h"

#include <map>
#include <string>
#include <vector>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

constexpr size_t kFirstStatistic = 3;  // inputs of a BatchNormalization: mean, and variance behind it

}  // namespace

int separateStatistics(Graph& graph) {
  std::map<std::string, std::string> name_of;  // by argument
  for (const SignatureParameter& buffer : signatureBuffers(graph)) name_of[buffer.argument] = buffer.name;
  GraphBuilder builder(graph);
  int made = 0;
  for (Node& node : graph.nodes) {
    if (!node.is("BatchNormalization") || node.inputs.size() != 5) continue;
    std::vector<std::string> names;
    for (const std::string& argument : exportedCall(node).arguments) {
      if (const auto found = name_of.find(argument); found != name_of.end()) names.push_back(found->second);
    }
    if (names.size() != 2) continue;
    for (size_t i = 0; i < 2; ++i) {
      ValueId& statistic = node.inputs[kFirstStatistic + i];
      const auto content = graph.initializers.find(statistic);
      if (content == graph.initializers.end() || graph.value(statistic).name == names[i]) continue;
      std::optional<ValueId> own = builder.find(names[i]);
      if (!own) {
        own = builder.addValue(names[i], graph.dataType(statistic), graph.shape(statistic));
        graph.initializers[*own] = content->second;
        setExportedKind(graph.value(*own), "BUFFER");
        ++made;
      } else if (!graph.initializers.contains(*own)) {
        continue;  // the name of something else
      }
      statistic = *own;
    }
  }
  return made;
}

}  // namespace pipeshard
