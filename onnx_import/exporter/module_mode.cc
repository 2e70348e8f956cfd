#include "onnx_import/exporter/module_mode.h"

#include "ir/base/error.h"

namespace pipeshard {
namespace {

void requireMode(const Node& node, int version) {
  if (node.opset_version >= version) return;
  fail(ErrorCode::kBadModel,
       "{}: its opset, {}, has no training mode (--mode training); export the model with opset_version={} or "
       "more",
       describeNode(node), node.opset_version, version);
}

bool isTrue(const Graph& graph, ValueId value) {
  const Constant* constant = graph.constant(value);
  return constant != nullptr && !constant->bytes.empty() && constant->bytes[0] != std::byte{0};
}

}  // namespace

ChangedModes setTrainingMode(Graph& graph) {
  ChangedModes changed;
  GraphBuilder builder(graph);
  ValueId yes;
  for (Node& node : graph.nodes) {
    if (node.is("BatchNormalization") && node.intAttribute("training_mode", 0) == 0) {
      requireMode(node, 14);
      node.attributes["training_mode"] = int64_t{1};
      node.outputs.resize(3);
      for (const size_t statistic : {size_t{1}, size_t{2}}) {  // behind the scale and bias, mean and variance
        const Value state = graph.value(node.inputs.at(statistic + 2));
        node.outputs[statistic] =
            builder.addValue(state.name + ".updated", state.data_type, state.shape.value_or(Shape{}));
        graph.value(node.outputs[statistic]).shape = state.shape;
      }
      ++changed.normalizations;
    }
    if (!node.is("Dropout")) continue;
    const bool has_mode = node.inputs.size() > 2 && node.inputs[2].valid();
    if (has_mode && (graph.constant(node.inputs[2]) == nullptr || isTrue(graph, node.inputs[2]))) continue;
    requireMode(node, 12);
    if (!yes.valid())
      yes = builder.addConstant("training_mode", Constant{DataType::kBool, {}, {std::byte{1}}});
    node.inputs.resize(3);
    node.inputs[2] = yes;
    ++changed.dropouts;
  }
  return changed;
}

}  // namespace pipeshard
