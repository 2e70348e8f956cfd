#include "onnx_import/forms/element_function.h"

#include <algorithm>
#include <utility>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/autodiff/update.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"

namespace pipeshard {
namespace {

constexpr int64_t kResultBytes = 1 << 20;
constexpr int kOpset = 18;

bool isUniform(const Constant& constant) {
  const size_t size = dataTypeSize(constant.data_type);
  for (size_t i = size; i < constant.bytes.size(); ++i) {
    if (constant.bytes[i] != constant.bytes[i - size]) return false;
  }
  return size > 0 && !constant.bytes.empty();
}

// An array or a number as a tensor of that type.
Constant tensorOf(DataType type, const std::vector<double>& elements) {
  Constant tensor{type, elements.size() == 1 ? Shape{} : Shape{std::ssize(elements)}, {}};
  for (double element : elements) {
    const Constant one = makeScalar(type, element);
    tensor.bytes.insert(tensor.bytes.end(), one.bytes.begin(), one.bytes.end());
  }
  return tensor;
}

// By value index: the value is one of `graph`, as an initializer that may be computed with.
void giveContent(Graph& graph, ValueId id, Constant content) {
  Value& value = graph.value(id);
  value.data_type = content.data_type;
  value.shape = content.shape;
  value.symbols.clear();
  markFolded(value);
  graph.initializers.insert_or_assign(id, std::move(content));
}

}  // namespace

ElementFunction::ElementFunction(Graph graph, const Shape& shape) : graph_(std::move(graph)) {
  setPrecision(graph_, DataType::kFloat64);
  for (auto& [id, initializer] : graph_.initializers) {
    Constant* constant = std::get_if<Constant>(&initializer);
    if (constant != nullptr && constant->shape == shape && isUniform(*constant)) {
      constant->bytes.resize(dataTypeSize(constant->data_type));
      constant->shape = {};
    }
    if (constant != nullptr) graph_.value(id).shape = constant->shape;
    markFolded(graph_.value(id));
  }
  for (Node& node : graph_.nodes) {
    if (node.is("Expand")) {  // broadcasting does it
      node.op_type = "Identity";
      node.inputs.resize(1);
    }
    for (ValueId id : node.outputs) {
      if (!id.valid()) continue;
      graph_.value(id).shape.reset();
      graph_.value(id).symbols.clear();
    }
  }
}

std::optional<ElementFunction::Arrays> ElementFunction::evaluate(const Arrays& inputs) const {
  PIPESHARD_CHECK(inputs.size() == graph_.inputs.size(), "{} inputs, expected {}", inputs.size(),
                  graph_.inputs.size());
  Graph graph = graph_;
  for (size_t i = 0; i < inputs.size(); ++i)
    giveContent(graph, graph.inputs[i], tensorOf(graph.dataType(graph.inputs[i]), inputs[i]));
  graph.inputs.clear();
  try {
    foldConstants(graph, kResultBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  Arrays outputs;
  for (ValueId id : graph.outputs) {
    const Constant* result = graph.constant(id);
    if (result == nullptr) return std::nullopt;
    outputs.push_back(numericElements(*result));
  }
  size_t length = 1;
  for (const Arrays* arrays : {&inputs, &std::as_const(outputs)}) {
    for (const std::vector<double>& array : *arrays) length = std::max(length, array.size());
  }
  for (std::vector<double>& array : outputs) {
    if (array.size() == 1) array.assign(length, array.front());
    if (array.size() != length) return std::nullopt;
  }
  return outputs;
}

ElementFunction::Arrays evaluateUpdate(const OptimizerSpec& spec, const ElementFunction::Arrays& inputs) {
  const UpdateRecipe recipe = updateRecipe(spec);
  Graph graph;
  graph.opset_imports = {{"", kOpset}, {std::string(kPipeshardDomain), 1}};
  graph.functions.push_back(makePipeshardFunction(recipe.function, "", kOpset));
  GraphBuilder builder(graph);
  std::vector<ValueId> arguments, results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool step = recipe.counts_steps && i + 1 == inputs.size();
    const Constant content = tensorOf(step ? DataType::kInt64 : DataType::kFloat64, inputs[i]);
    arguments.push_back(builder.addValue("input", content.data_type, content.shape));
    giveContent(graph, arguments.back(), content);
  }
  for (double number : recipe.hyperparameters) {
    arguments.push_back(builder.addValue("number", DataType::kFloat64, {}));
    giveContent(graph, arguments.back(), makeScalar(DataType::kFloat64, number));
  }
  for (size_t i = 0; i <= recipe.states.size(); ++i) {
    results.push_back(builder.addValue("output", DataType::kFloat64, {}));
    graph.value(results.back()).shape.reset();
  }
  builder.addNode(kPipeshardDomain, recipe.function, arguments, results, recipe.attributes);
  graph.outputs = results;
  inlineFunctions(graph, ImportLimits().inlined_nodes);
  const std::optional<ElementFunction::Arrays> values = ElementFunction(std::move(graph), {}).evaluate({});
  PIPESHARD_CHECK(values.has_value(), "the function {} cannot be evaluated", recipe.function);
  return *values;
}

}  // namespace pipeshard
