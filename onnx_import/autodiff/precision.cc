#include "onnx_import/autodiff/precision.h"

#include <algorithm>
#include <cstring>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

constexpr int64_t kFloat32Number = static_cast<int64_t>(DataType::kFloat32);
constexpr int64_t kFloat64Number = static_cast<int64_t>(DataType::kFloat64);

Constant widened(const Constant& constant) {
  if (constant.data_type != DataType::kFloat32) return constant;
  Constant wide{DataType::kFloat64, constant.shape, std::vector<std::byte>(constant.bytes.size() * 2)};
  for (size_t i = 0; i * sizeof(float) < constant.bytes.size(); ++i) {
    float narrow;
    std::memcpy(&narrow, constant.bytes.data() + i * sizeof(float), sizeof(float));
    const double number = narrow;
    std::memcpy(wide.bytes.data() + i * sizeof(double), &number, sizeof(double));
  }
  return wide;
}

// Attributes of standard operators that hold an element type.
bool isTypeAttribute(const Node& node, const std::string& name) {
  if (!node.domain.empty()) return false;
  return (name == "to" && node.op_type == "Cast") || name == "dtype" || name == "output_datatype" ||
         name == "output_dtype" || name == "stash_type" || name == "softmax_precision";
}

// Operators whose element type attribute means float32 when it is left out.
void stateDefaultType(Node& node) {
  const std::string_view attribute = operatorFacts(node).float32_attribute;
  if (!attribute.empty()) node.attributes.try_emplace(std::string(attribute), kFloat32Number);
  if (node.is("ConstantOfShape")) node.attributes.try_emplace("value", makeConstant<float>({1}, {0}));
}

// Constant can hold its content in attributes that only know float32.
void useTensorAttribute(Node& node) {
  if (!node.is("Constant")) return;
  if (const auto it = node.attributes.find("value_float"); it != node.attributes.end()) {
    if (const float* number = std::get_if<float>(&it->second)) {
      node.attributes["value"] = makeConstant<float>({}, {*number});
      node.attributes.erase("value_float");
    }
  }
  if (const auto it = node.attributes.find("value_floats"); it != node.attributes.end()) {
    if (const auto* numbers = std::get_if<std::vector<float>>(&it->second)) {
      node.attributes["value"] = makeConstant<float>({std::ssize(*numbers)}, *numbers);
      node.attributes.erase("value_floats");
    }
  }
}

void widen(Graph& graph, PrecisionChange& change);

void widenAttribute(const Node& node, const std::string& name, Attribute& attribute,
                    PrecisionChange& change) {
  if (auto* constant = std::get_if<Constant>(&attribute)) {
    *constant = widened(*constant);
  } else if (auto* number = std::get_if<int64_t>(&attribute);
             number != nullptr && *number == kFloat32Number && isTypeAttribute(node, name)) {
    *number = kFloat64Number;
  } else if (auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
    Graph copy = **body;
    widen(copy, change);
    *body = std::make_shared<const Graph>(std::move(copy));
  } else if (std::holds_alternative<AttributeReference>(attribute) &&
             (isTypeAttribute(node, name) || name.starts_with("value_float"))) {
    fail(ErrorCode::kBadModel,
         "{}: attribute '{}' comes from the call of a function; its precision can only be changed after "
         "functions are inlined",
         describeNode(node), name);
  }
}

// Inputs that ONNX fixes as float32 are narrowed again.
void keepFixedTypes(Graph& graph) {
  GraphBuilder builder(graph);
  std::vector<Node> nodes;
  for (Node node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!input.valid() || !operatorFacts(node).float32_inputs.contains(i) ||
          graph.dataType(input) == DataType::kFloat32)  // not known inside functions
        continue;
      Node cast;
      cast.op_type = "Cast";
      cast.opset_version = node.opset_version;
      cast.attributes = {{"to", kFloat32Number}};
      cast.inputs = {input};
      cast.outputs = {builder.addValue(graph.value(input).name + "/float32", DataType::kFloat32, {})};
      graph.value(cast.outputs[0]).shape = graph.value(input).shape;
      graph.value(cast.outputs[0]).symbols = graph.value(input).symbols;
      cast.name = graph.value(cast.outputs[0]).name;
      node.inputs[i] = cast.outputs[0];
      nodes.push_back(std::move(cast));
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

void widen(Graph& graph, PrecisionChange& change) {
  for (auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (value.data_type != DataType::kFloat32) continue;
    if (auto* constant = std::get_if<Constant>(&initializer)) {
      *constant = widened(*constant);
    } else {
      change.source_types[value.name] = DataType::kFloat32;
    }
  }
  for (Value& value : graph.values) {
    if (value.data_type == DataType::kFloat32) value.data_type = DataType::kFloat64;
  }
  for (Node& node : graph.nodes) {
    stateDefaultType(node);
    useTensorAttribute(node);
    for (auto& [name, attribute] : node.attributes) widenAttribute(node, name, attribute, change);
  }
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(),
                  [](const Node& node) { return !operatorFacts(node).float32_inputs.empty(); }))
    keepFixedTypes(graph);
  for (Function& function : graph.functions) {
    if (function.domain == kPipeshardDomain) continue;  // generic over the type
    Graph body = *function.body;
    widen(body, change);
    function.body = std::make_shared<const Graph>(std::move(body));
    for (auto& [name, attribute] : function.default_attributes) {
      if (auto* constant = std::get_if<Constant>(&attribute)) *constant = widened(*constant);
    }
  }
}

}  // namespace

PrecisionChange setPrecision(Graph& graph, DataType precision) {
  PrecisionChange change;
  if (precision == DataType::kFloat32) return change;
  if (precision != DataType::kFloat64) {
    fail(ErrorCode::kUsage, "precision {} is not supported; use float32 or float64", dataTypeName(precision));
  }
  widen(graph, change);
  return change;
}

}  // namespace pipeshard
