#include "onnx_import/precision/precision.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/graph/exact_number.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

constexpr int64_t kFloat32Number = static_cast<int64_t>(DataType::kFloat32);

// Which floats become which.
struct Widening {
  std::set<DataType> from;
  DataType to;
  bool exact = false;  // numbers that were given in decimals are themselves, not what `from` has made of them
  bool has(DataType type) const { return from.contains(type); }
  DataType of(DataType type) const { return has(type) ? to : type; }
};

Constant widened(const Constant& constant, const Widening& types) {
  if (!types.has(constant.data_type)) return constant;
  Constant wide{types.to, constant.shape, std::vector<std::byte>(byteCount(types.to, constant.shape))};
  convertElements(constant.data_type, constant.bytes.data(), types.to, wide.bytes.data(),
                  elementCount(constant.shape));
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

void widen(Graph& graph, const Widening& types, PrecisionChange& change);

void widenAttribute(const Node& node, const std::string& name, Attribute& attribute, const Widening& types,
                    PrecisionChange& change) {
  if (auto* constant = std::get_if<Constant>(&attribute)) {
    *constant = widened(*constant, types);
  } else if (auto* number = std::get_if<int64_t>(&attribute);
             number != nullptr && isTypeAttribute(node, name)) {
    *number = static_cast<int64_t>(types.of(static_cast<DataType>(*number)));
  } else if (auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
    Graph copy = **body;
    widen(copy, types, change);
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

void widen(Graph& graph, const Widening& types, PrecisionChange& change) {
  for (auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!types.has(value.data_type)) continue;
    if (auto* constant = std::get_if<Constant>(&initializer)) {
      const std::optional<double> number = types.exact ? exactNumber(value, *constant) : std::nullopt;
      *constant = widened(*constant, types);
      if (number) constant->bytes = makeScalar(types.to, *number).bytes;
    } else {
      change.source_types[value.name] = value.data_type;
    }
  }
  for (Value& value : graph.values) value.data_type = types.of(value.data_type);
  for (Node& node : graph.nodes) {
    if (types.has(DataType::kFloat32)) {
      stateDefaultType(node);
      useTensorAttribute(node);
    }
    for (auto& [name, attribute] : node.attributes) widenAttribute(node, name, attribute, types, change);
  }
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(),
                  [](const Node& node) { return !operatorFacts(node).float32_inputs.empty(); }))
    keepFixedTypes(graph);
  for (Function& function : graph.functions) {
    if (function.domain == kPipeshardDomain) continue;  // generic over the type
    Graph body = *function.body;
    widen(body, types, change);
    function.body = std::make_shared<const Graph>(std::move(body));
    for (auto& [name, attribute] : function.default_attributes) {
      if (auto* constant = std::get_if<Constant>(&attribute)) *constant = widened(*constant, types);
    }
  }
}

}  // namespace

PrecisionChange setPrecision(Graph& graph, DataType precision) {
  PrecisionChange change;
  if (precision == DataType::kFloat32 || isHalf(precision)) return change;
  if (precision != DataType::kFloat64) {
    fail(ErrorCode::kUsage, "precision {} is not supported; use float32, float64, bfloat16 or float16",
         dataTypeName(precision));
  }
  widen(graph, {{DataType::kFloat32}, DataType::kFloat64, true}, change);
  return change;
}

bool trainsNarrowFloats(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  return std::any_of(graph.initializers.begin(), graph.initializers.end(), [&](const auto& initializer) {
    const DataType type = graph.dataType(initializer.first);
    return roles[initializer.first.index()] == InitializerRole::kParameter && isHalf(type);
  });
}

PrecisionChange widenToFloat64(Graph& graph) {
  PrecisionChange change;
  widen(graph, {{DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32}, DataType::kFloat64}, change);
  return change;
}

PrecisionChange widenNarrowFloats(Graph& graph) {
  PrecisionChange change;
  widen(graph, {{DataType::kFloat16, DataType::kBfloat16}, DataType::kFloat32}, change);
  return change;
}

}  // namespace pipeshard
