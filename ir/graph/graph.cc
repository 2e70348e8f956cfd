#include "ir/graph/graph.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/graph/graph_print.h"

namespace pipeshard {
namespace {

template <typename T>
T attributeOf(const Node& node, std::string_view name, T default_value, const char* expected) {
  const auto it = node.attributes.find(std::string(name));
  if (it == node.attributes.end()) return default_value;
  if (const T* found = std::get_if<T>(&it->second)) return *found;
  fail(ErrorCode::kBadModel, "{}: attribute '{}' should be {}, found {}", describeNode(node), name, expected,
       printAttribute(it->second));
}

// Calls f(element) for every element of the constant, as its C++ type. False for types without one.
template <typename F>
bool forEachElement(const Constant& constant, F&& f) {
  const auto visit = [&](auto tag) {
    using T = decltype(tag);
    for (size_t offset = 0; offset + sizeof(T) <= constant.bytes.size(); offset += sizeof(T)) {
      T element;
      std::memcpy(&element, constant.bytes.data() + offset, sizeof(T));
      f(element);
    }
    return true;
  };
  switch (constant.data_type) {
    case DataType::kFloat32: return visit(float{});
    case DataType::kFloat64: return visit(double{});
    case DataType::kInt64: return visit(int64_t{});
    case DataType::kInt32: return visit(int32_t{});
    case DataType::kInt16: return visit(int16_t{});
    case DataType::kInt8: return visit(int8_t{});
    case DataType::kUint64: return visit(uint64_t{});
    case DataType::kUint32: return visit(uint32_t{});
    case DataType::kUint16: return visit(uint16_t{});
    case DataType::kUint8:
    case DataType::kBool: return visit(uint8_t{});
    default: return false;
  }
}

}  // namespace

int64_t Node::intAttribute(std::string_view attribute_name, int64_t default_value) const {
  return attributeOf<int64_t>(*this, attribute_name, default_value, "an integer");
}

float Node::floatAttribute(std::string_view attribute_name, float default_value) const {
  return attributeOf<float>(*this, attribute_name, default_value, "a float");
}

std::string Node::stringAttribute(std::string_view attribute_name, std::string_view default_value) const {
  return attributeOf<std::string>(*this, attribute_name, std::string(default_value), "a string");
}

std::vector<int64_t> Node::intsAttribute(std::string_view attribute_name,
                                         std::vector<int64_t> default_value) const {
  return attributeOf<std::vector<int64_t>>(*this, attribute_name, std::move(default_value),
                                           "a list of integers");
}

bool Node::hasAttribute(std::string_view attribute_name) const {
  return attributes.contains(std::string(attribute_name));
}

const Shape& Graph::shape(ValueId id) const {
  PIPESHARD_CHECK(id.valid() && id.index() < values.size(), "no value of index {}", id.index());
  const Value& v = value(id);
  PIPESHARD_CHECK(v.shape.has_value() && isStatic(*v.shape), "value '{}' has no static shape", v.name);
  return *v.shape;
}

const Constant* Graph::constant(ValueId id) const {
  const auto it = initializers.find(id);
  return it == initializers.end() ? nullptr : std::get_if<Constant>(&it->second);
}

const Function* Graph::findFunction(std::string_view domain, std::string_view op_type,
                                    std::string_view overload) const {
  for (const Function& function : functions) {
    if (function.domain == domain && function.name == op_type && function.overload == overload)
      return &function;
  }
  return nullptr;
}

bool hasSubgraphs(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<const Graph>>(attribute.second);
  });
}

std::string describeNode(const Node& node) {
  return fmt::format("node '{}' ({}::{})", node.name, node.domain.empty() ? "onnx" : node.domain,
                     node.op_type);
}

GraphBuilder::GraphBuilder(Graph& graph) : graph_(graph) {
  names_.reserve(graph.values.size() * 2);
  for (size_t i = 0; i < graph.values.size(); ++i) names_.emplace(graph.values[i].name, ValueId(i));
}

std::string GraphBuilder::uniqueName(std::string_view name) const {
  std::string candidate(name.empty() ? "value" : name);
  for (int suffix = 1; names_.contains(candidate); ++suffix) candidate = fmt::format("{}_{}", name, suffix);
  return candidate;
}

ValueId GraphBuilder::addValue(std::string_view name, DataType type, Shape shape) {
  const ValueId id(graph_.values.size());
  Value value;
  value.name = uniqueName(name);
  value.data_type = type;
  value.shape = std::move(shape);
  names_.emplace(value.name, id);
  graph_.values.push_back(std::move(value));
  return id;
}

ValueId GraphBuilder::addConstant(std::string_view name, Constant constant) {
  const ValueId id = addValue(name, constant.data_type, constant.shape);
  graph_.initializers.emplace(id, std::move(constant));
  return id;
}

NodeId GraphBuilder::addNode(std::string_view domain, std::string_view op_type, std::vector<ValueId> inputs,
                             std::vector<ValueId> outputs, std::map<std::string, Attribute> attributes) {
  Node node;
  node.domain = domain;
  node.op_type = op_type;
  const auto version = graph_.opset_imports.find(node.domain);
  if (version != graph_.opset_imports.end()) node.opset_version = version->second;
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attributes = std::move(attributes);
  graph_.nodes.push_back(std::move(node));
  return NodeId(graph_.nodes.size() - 1);
}

std::optional<ValueId> GraphBuilder::find(std::string_view name) const {
  const auto it = names_.find(std::string(name));
  if (it == names_.end()) return std::nullopt;
  return it->second;
}

bool hasStaticType(const Value& value) {
  return value.opaque_type.empty() && value.data_type != DataType::kUndefined && value.shape &&
         isStatic(*value.shape);
}

ValueId findValue(const Graph& graph, std::string_view name) {
  for (size_t i = 0; i < graph.values.size(); ++i) {
    if (graph.values[i].name == name) return ValueId(i);
  }
  return ValueId();
}

Constant makeScalar(DataType type, double number) {
  switch (type) {
    case DataType::kFloat32: return makeConstant<float>({}, {static_cast<float>(number)});
    case DataType::kFloat64: return makeConstant<double>({}, {number});
    case DataType::kFloat16:
    case DataType::kBfloat16: {
      Constant scalar{type, {}, std::vector<std::byte>(dataTypeSize(type))};
      convertElements(DataType::kFloat64, &number, type, scalar.bytes.data(), 1);
      return scalar;
    }
    case DataType::kInt64: return makeConstant<int64_t>({}, {static_cast<int64_t>(number)});
    case DataType::kInt32: return makeConstant<int32_t>({}, {static_cast<int32_t>(number)});
    case DataType::kBool: return Constant{DataType::kBool, {}, {std::byte{number != 0}}};
    default: fail(ErrorCode::kInternal, "makeScalar: no scalar of type {}", dataTypeName(type));
  }
}

std::vector<int64_t> integerElements(const Constant& constant) {
  PIPESHARD_CHECK(constant.data_type == DataType::kInt64 || constant.data_type == DataType::kInt32,
                  "integerElements of a {} constant", dataTypeName(constant.data_type));
  std::vector<int64_t> elements;
  forEachElement(constant, [&](auto element) { elements.push_back(static_cast<int64_t>(element)); });
  return elements;
}

std::vector<double> numericElements(const Constant& constant) {
  if (constant.data_type == DataType::kFloat16 || constant.data_type == DataType::kBfloat16) {
    std::vector<double> wide(elementCount(constant.shape));
    convertElements(constant.data_type, constant.bytes.data(), DataType::kFloat64, wide.data(), wide.size());
    return wide;
  }
  std::vector<double> elements;
  const bool known =
      forEachElement(constant, [&](auto element) { elements.push_back(static_cast<double>(element)); });
  PIPESHARD_CHECK(known, "numericElements of a {} constant", dataTypeName(constant.data_type));
  return elements;
}

UseDef computeUseDef(const Graph& graph) {
  UseDef result;
  result.producer.resize(graph.values.size());
  result.consumers.resize(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ValueId output : graph.nodes[n].outputs) {
      if (output.valid()) result.producer[output.index()] = NodeId(n);
    }
    for (ValueId input : graph.nodes[n].inputs) {
      if (!input.valid()) continue;
      std::vector<NodeId>& readers = result.consumers[input.index()];
      if (readers.empty() || readers.back() != NodeId(n)) readers.push_back(NodeId(n));
    }
  }
  return result;
}

namespace {

void verifyIds(const Graph& graph, const std::vector<ValueId>& ids, const std::string& where,
               bool may_be_absent) {
  for (ValueId id : ids) {
    if (!id.valid() && may_be_absent) continue;
    if (!id.valid() || id.index() >= graph.values.size())
      fail(ErrorCode::kBadModel, "{} refers to a value that does not exist", where);
  }
}

void verifyInitializers(const Graph& graph) {
  for (const auto& [id, initializer] : graph.initializers) {
    verifyIds(graph, {id}, "an initializer", false);
    const Value& value = graph.value(id);
    if (!value.shape || !isStatic(*value.shape))
      fail(ErrorCode::kBadModel, "initializer '{}' has no static shape", value.name);
    const Constant* constant = std::get_if<Constant>(&initializer);
    if (constant == nullptr) continue;
    if (constant->data_type != value.data_type || constant->shape != *value.shape) {
      fail(ErrorCode::kBadModel, "initializer '{}' is {}{} but its value says {}{}", value.name,
           dataTypeName(constant->data_type), shapeToString(constant->shape), dataTypeName(value.data_type),
           shapeToString(*value.shape));
    }
  }
}

}  // namespace

void verifyGraph(const Graph& graph) {
  std::unordered_set<std::string_view> names;
  for (const Value& value : graph.values) {
    if (value.name.empty()) fail(ErrorCode::kBadModel, "a value has no name");
    if (!names.insert(value.name).second)
      fail(ErrorCode::kBadModel, "two values are called '{}'", value.name);
  }
  verifyIds(graph, graph.inputs, "the list of graph inputs", false);
  verifyIds(graph, graph.outputs, "the list of graph outputs", false);
  verifyInitializers(graph);

  std::vector<bool> defined(graph.values.size(), false);
  for (ValueId input : graph.inputs) {
    if (defined[input.index()])
      fail(ErrorCode::kBadModel, "graph input '{}' is listed twice", graph.value(input).name);
    defined[input.index()] = true;
  }
  for (const auto& [id, unused] : graph.initializers) defined[id.index()] = true;
  for (const Node& node : graph.nodes) {
    verifyIds(graph, node.inputs, describeNode(node), true);
    verifyIds(graph, node.outputs, describeNode(node), true);
    for (ValueId input : node.inputs) {
      if (input.valid() && !defined[input.index()]) {
        fail(ErrorCode::kBadModel,
             "{} reads '{}' before it is defined (a cycle, a wrong order, or a missing input)",
             describeNode(node), graph.value(input).name);
      }
    }
    for (ValueId output : node.outputs) {
      if (!output.valid()) continue;
      if (defined[output.index()])
        fail(ErrorCode::kBadModel, "{} defines '{}' a second time", describeNode(node),
             graph.value(output).name);
      defined[output.index()] = true;
    }
  }
  for (ValueId output : graph.outputs) {
    if (!defined[output.index()])
      fail(ErrorCode::kBadModel, "graph output '{}' is never defined", graph.value(output).name);
  }
}

// Dead code. Nodes are in topological order, so one walk from the last to the first is enough: when a node is
// reached, all its readers have been, and `needed` is final for its outputs. A value stays when it is an
// input or output of the graph, listed in `keep`, read by a node that stays, or an output of one: nodes keep
// all their outputs. Ids change; the result says which value has become which.
//   a = f(x), b = g(x), output a:   g goes, and with it b; x stays, being an input.
namespace {

void markSubgraphReads(const Graph& graph, const Graph& subgraph, std::vector<bool>& needed);

// A subgraph attribute (the body of an If) reads outer values by name.
void markAttributeReads(const Graph& graph, const Node& node, std::vector<bool>& needed) {
  for (const auto& [name, attribute] : node.attributes) {
    if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute))
      markSubgraphReads(graph, **body, needed);
  }
}

void markSubgraphReads(const Graph& graph, const Graph& subgraph, std::vector<bool>& needed) {
  std::unordered_set<std::string_view> names;
  for (const Value& value : subgraph.values) names.insert(value.name);
  for (size_t i = 0; i < graph.values.size(); ++i) {
    if (names.contains(graph.values[i].name)) needed[i] = true;
  }
  for (const Node& node : subgraph.nodes) markAttributeReads(graph, node, needed);
}

// Moves the kept entries of `items` to the front; new_id[i] is the new position or invalid.
template <typename T, typename IdType>
void compact(std::vector<T>& items, const std::vector<bool>& kept, std::vector<IdType>& new_id) {
  size_t next = 0;
  new_id.assign(items.size(), IdType());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!kept[i]) continue;
    new_id[i] = IdType(next);
    if (next != i) items[next] = std::move(items[i]);
    ++next;
  }
  items.resize(next);
}

// The nodes that make what `needed` (by value index) has, which gets all that these read.
std::vector<bool> needNodes(const Graph& graph, std::vector<bool>& needed) {
  std::vector<bool> used_node(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    used_node[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                               [&](ValueId id) { return id.valid() && needed[id.index()]; });
    if (!used_node[n]) continue;
    for (ValueId id : node.inputs) {
      if (id.valid()) needed[id.index()] = true;
    }
    markAttributeReads(graph, node, needed);
  }
  return used_node;
}

}  // namespace

std::vector<bool> ancestorsOf(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : values) needed[id.index()] = true;
  return needNodes(graph, needed);
}

std::vector<ValueId> removeDeadCode(Graph& graph, const std::vector<ValueId>& keep) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : graph.outputs) needed[id.index()] = true;
  for (ValueId id : keep) needed[id.index()] = true;
  const std::vector<bool> used_node = needNodes(graph, needed);
  for (ValueId id : graph.inputs) needed[id.index()] = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!used_node[n]) continue;
    for (ValueId id : graph.nodes[n].outputs) {
      if (id.valid()) needed[id.index()] = true;
    }
  }

  std::vector<NodeId> new_node;
  std::vector<ValueId> new_value;
  compact(graph.nodes, used_node, new_node);
  compact(graph.values, needed, new_value);
  const auto rename = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) {
      if (id.valid()) id = new_value[id.index()];
    }
  };
  for (Node& node : graph.nodes) {
    rename(node.inputs);
    rename(node.outputs);
  }
  rename(graph.inputs);
  rename(graph.outputs);
  std::map<ValueId, Initializer> initializers;
  for (auto& [id, initializer] : graph.initializers) {
    if (new_value[id.index()].valid()) initializers.emplace(new_value[id.index()], std::move(initializer));
  }
  graph.initializers = std::move(initializers);
  return new_value;
}

// Subgraphs. Values are copied on first use, so the new graph has those that its nodes touch and no others,
// numbered anew. What a node reads must be an input of the subgraph, made by an earlier node of it, or an
// in-memory constant, which is copied. Functions that the nodes call come along, and those that they call.
namespace {

// Copies values of `from` into `to` on first use.
class ValueCopier {
 public:
  ValueCopier(const Graph& from, Graph& to) : from_(from), to_(to), copies_(from.values.size()) {}

  ValueId copy(ValueId id) {
    if (!id.valid()) return id;
    ValueId& target = copies_[id.index()];
    if (!target.valid()) {
      target = ValueId(to_.values.size());
      to_.values.push_back(from_.value(id));
    }
    return target;
  }
  bool copied(ValueId id) const { return copies_[id.index()].valid(); }

 private:
  const Graph& from_;
  Graph& to_;
  std::vector<ValueId> copies_;
};

void copyCalledFunctions(const Graph& from, Graph& to) {
  std::vector<const Graph*> bodies = {&to};
  while (!bodies.empty()) {
    const std::vector<Node> nodes = bodies.back()->nodes;
    bodies.pop_back();
    for (const Node& node : nodes) {
      if (to.findFunction(node.domain, node.op_type, node.overload) != nullptr) continue;
      if (const Function* function = from.findFunction(node.domain, node.op_type, node.overload)) {
        to.functions.push_back(*function);
        bodies.push_back(function->body.get());
      }
    }
  }
}

}  // namespace

Graph extractSubgraph(const Graph& graph, std::string_view name, const std::vector<NodeId>& nodes,
                      const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs) {
  Graph result;
  result.name = name;
  result.opset_imports = graph.opset_imports;
  result.ir_version = graph.ir_version;
  result.producer_name = "pipeshard";
  result.directory = graph.directory;
  ValueCopier copier(graph, result);
  std::vector<bool> defined(graph.values.size(), false);
  for (ValueId id : inputs) {
    result.inputs.push_back(copier.copy(id));
    defined[id.index()] = true;
  }
  for (NodeId node_id : nodes) {
    Node node = graph.node(node_id);
    node.opaque.clear();  // device configurations belong to the whole model
    for (ValueId& id : node.inputs) {
      if (id.valid() && !defined[id.index()]) {
        const Constant* constant = graph.constant(id);
        PIPESHARD_CHECK(constant != nullptr,
                        "subgraph '{}': {} reads '{}', which is neither an input nor produced inside", name,
                        describeNode(node), graph.value(id).name);
        result.initializers.emplace(copier.copy(id), *constant);
        defined[id.index()] = true;
      }
      id = copier.copy(id);
    }
    for (ValueId& id : node.outputs) {
      if (id.valid()) defined[id.index()] = true;
      id = copier.copy(id);
    }
    result.nodes.push_back(std::move(node));
  }
  for (ValueId id : outputs) {
    PIPESHARD_CHECK(defined[id.index()], "subgraph '{}' does not produce its output '{}'", name,
                    graph.value(id).name);
    result.outputs.push_back(copier.copy(id));
  }
  copyCalledFunctions(graph, result);
  return result;
}

}  // namespace pipeshard
