#include "ir/graph/graph_print.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kShownElements = 8;

std::string printConstant(const Constant& constant) {
  std::string text = fmt::format("{}{}", dataTypeName(constant.data_type), shapeToString(constant.shape));
  const bool numeric = isInteger(constant.data_type) || constant.data_type == DataType::kFloat32 ||
                       constant.data_type == DataType::kFloat64 || constant.data_type == DataType::kBool;
  if (!numeric) return text + fmt::format(" {} bytes", constant.bytes.size());
  const std::vector<double> elements = numericElements(constant);
  text += " {";
  for (size_t i = 0; i < std::min(elements.size(), kShownElements); ++i)
    text += fmt::format("{}{}", i > 0 ? "," : "", elements[i]);
  return text + (elements.size() > kShownElements ? fmt::format(",... {} elements}}", elements.size()) : "}");
}

std::string printType(const Value& value) {
  if (!value.opaque_type.empty()) return "opaque";
  std::string text(dataTypeName(value.data_type));
  if (!value.shape) return text + "[...]";
  text += '[';
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    const int64_t size = (*value.shape)[axis];
    const bool symbolic = axis < value.symbols.size() && !value.symbols[axis].empty();
    text += fmt::format("{}{}", axis > 0 ? "," : "",
                        size >= 0  ? std::to_string(size)
                        : symbolic ? value.symbols[axis]
                                   : "?");
  }
  return text + "]";
}

std::string printValueName(const Graph& graph, ValueId id) {
  return id.valid() ? "%" + graph.value(id).name : "_";
}

std::string printInitializer(const Initializer& initializer) {
  if (const auto* constant = std::get_if<Constant>(&initializer)) return printConstant(*constant);
  const auto& reference = std::get<WeightReference>(initializer);
  if (reference.drawn) return fmt::format("drawn, {} bytes", reference.length);
  return fmt::format("file '{}' offset {} length {}", reference.location, reference.offset, reference.length);
}

std::string indent(const std::string& text) {
  std::string result = "  ";
  for (char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  while (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

std::string printNode(const Graph& graph, const Node& node) {
  std::vector<std::string> outputs;
  for (ValueId id : node.outputs) {
    outputs.push_back(id.valid() ? printValueName(graph, id) + ": " + printType(graph.value(id)) : "_");
  }
  std::vector<std::string> inputs;
  for (ValueId id : node.inputs) inputs.push_back(printValueName(graph, id));
  const std::string op = (node.domain.empty() ? "" : node.domain + "::") + node.op_type +
                         (node.overload.empty() ? "" : ":" + node.overload);
  std::string text = fmt::format("{} = {}({})", fmt::join(outputs, ", "), op, fmt::join(inputs, ", "));
  if (!node.attributes.empty()) {
    std::vector<std::string> attributes;
    for (const auto& [name, attribute] : node.attributes)
      attributes.push_back(name + "=" + printAttribute(attribute));
    text += fmt::format(" {{{}}}", fmt::join(attributes, ", "));
  }
  if (!node.name.empty()) text += "  # " + node.name;
  return text;
}

}  // namespace

std::string printAttribute(const Attribute& attribute) {
  struct Printer {
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(float v) const { return fmt::format("{}f", v); }
    std::string operator()(const std::string& v) const { return fmt::format("\"{}\"", v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return fmt::format("[{}]", fmt::join(v, ","));
    }
    std::string operator()(const std::vector<float>& v) const {
      return fmt::format("[{}]f", fmt::join(v, ","));
    }
    std::string operator()(const std::vector<std::string>& v) const {
      return fmt::format("[\"{}\"]", fmt::join(v, "\",\""));
    }
    std::string operator()(const Constant& v) const { return printConstant(v); }
    std::string operator()(const std::shared_ptr<const Graph>& v) const {
      return "graph {\n" + indent(printGraph(*v)) + "}";
    }
    std::string operator()(const AttributeReference& v) const { return "@" + v.name; }
    std::string operator()(const OpaqueAttribute& v) const {
      return fmt::format("opaque {} bytes", v.bytes.size());
    }
  };
  return std::visit(Printer{}, attribute);
}

std::string printGraph(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", graph.name);
  for (const auto& [domain, version] : graph.opset_imports)
    text += fmt::format("opset {} {}\n", domain.empty() ? "onnx" : domain, version);
  for (ValueId id : graph.inputs)
    text += fmt::format("input {}: {}\n", printValueName(graph, id), printType(graph.value(id)));
  for (const auto& [id, initializer] : graph.initializers) {
    text += fmt::format("initializer {}: {} = {}\n", printValueName(graph, id), printType(graph.value(id)),
                        printInitializer(initializer));
  }
  for (const Node& node : graph.nodes) text += printNode(graph, node) + "\n";
  for (ValueId id : graph.outputs)
    text += fmt::format("output {}: {}\n", printValueName(graph, id), printType(graph.value(id)));
  for (const Function& function : graph.functions) {
    text += fmt::format("function {}::{}({})\n", function.domain, function.name,
                        fmt::join(function.attributes, ", "));
    text += indent(printGraph(*function.body)) + "\n";
  }
  return text;
}

}  // namespace pipeshard
