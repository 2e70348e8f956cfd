#include "onnx_import/prepare/expand.h"

#include <algorithm>
#include <set>

#include <onnx/defs/schema.h>

#include "ir/base/error.h"
#include "onnx_import/format/graph_to_proto.h"
#include "onnx_import/format/proto_to_graph.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/prepare/node_context.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

// The latest opset that the graph imports in which the operator is still the same: a body may be written for
// a later one than the node is of, as that of HardSigmoid (6) for 18, where HardSwish (14) uses it.
int latestVersion(const onnx::OpSchema& schema, const Graph& graph, const Node& node) {
  const auto imported = graph.opset_imports.find(node.domain);
  if (imported == graph.opset_imports.end() || imported->second <= node.opset_version)
    return node.opset_version;
  const auto* latest =
      onnx::OpSchemaRegistry::Instance()->GetSchema(node.op_type, imported->second, node.domain);
  return latest != nullptr && latest->since_version() == schema.since_version() ? imported->second
                                                                                : node.opset_version;
}

bool buildBody(const onnx::OpSchema& schema, const Graph& graph, const Node& node,
               onnx::FunctionProto& body) {
  if (schema.HasFunction()) {
    if (const onnx::FunctionProto* fixed = schema.GetFunction(latestVersion(schema, graph, node))) {
      body = *fixed;
      return true;
    }
  }
  if (!schema.HasContextDependentFunction()) return false;
  onnx::NodeProto proto;
  nodeToProto(graph, node, proto);
  std::vector<onnx::TypeProto> types;
  for (ValueId id : node.inputs) {
    types.push_back(id.valid() ? knownType(graph.value(id)) : onnx::TypeProto());
    // some builders take it for granted that there is one
    if (id.valid() && types.back().value_case() == onnx::TypeProto::VALUE_NOT_SET) return false;
  }
  const onnx::FunctionBodyBuildContextImpl context(proto, types);
  return schema.BuildContextDependentFunction(context, body, node.opset_version);
}

// Builders leave out the nodes of outputs that the call omits, but still list the outputs.
void dropUndefinedOutputs(onnx::FunctionProto& body) {
  std::set<std::string> defined(body.input().begin(), body.input().end());
  for (const auto& node : body.node()) defined.insert(node.output().begin(), node.output().end());
  while (body.output_size() > 0 && !defined.contains(*body.output().rbegin()))
    body.mutable_output()->RemoveLast();
  for (auto& output : *body.mutable_output()) {
    // In the middle of the list: the call omits it, so that any name will do.
    if (!defined.contains(output)) output = *body.output().rbegin();
  }
}

}  // namespace

std::optional<Function> schemaFunction(const Graph& graph, const Node& node) {
  const auto* schema =
      onnx::OpSchemaRegistry::Instance()->GetSchema(node.op_type, node.opset_version, node.domain);
  if (schema == nullptr) return std::nullopt;
  onnx::FunctionProto body;
  try {
    if (!buildBody(*schema, graph, node, body)) return std::nullopt;
  } catch (const std::exception& error) {
    fail(ErrorCode::kBadModel, "{}: its ONNX function body cannot be built: {}", describeNode(node),
         error.what());
  }
  dropUndefinedOutputs(body);
  bool imports_standard = false;
  for (auto& import : *body.mutable_opset_import())
    imports_standard = imports_standard || import.domain().empty();
  if (!imports_standard) {
    auto* import = body.add_opset_import();
    import->set_domain("");
    import->set_version(node.opset_version);
  }
  const ImportLimits limits;
  const ProtoSource source{limits, nullptr, "", {}};
  Function function = functionFromProto(body, source);
  // The schema's defaults hold for attributes that the node does not give.
  for (const auto& [name, attribute] : schema->attributes()) {
    if (attribute.default_value.type() != onnx::AttributeProto::UNDEFINED)
      function.default_attributes.emplace(name, attributeFromProto(attribute.default_value, source));
  }
  return function;
}

namespace {

bool hasStaticTypes(const Graph& graph, const std::vector<ValueId>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](ValueId id) { return !id.valid() || hasStaticType(graph.value(id)); });
}

// Whether the rule has put other nodes in the place of this one.
bool lower(GraphBuilder& builder, const Node& node, const LoweringRule* rule) {
  const Graph& graph = builder.graph();
  if (rule == nullptr || !hasStaticTypes(graph, node.inputs)) return false;
  if (!rule->typesOutputs(node) && !hasStaticTypes(graph, node.outputs)) return false;
  if (std::none_of(node.outputs.begin(), node.outputs.end(), [](ValueId id) { return id.valid(); }))
    return false;  // nobody asks for anything
  LoweringContext context(builder, node);
  try {
    rule->apply(context);
  } catch (Error& error) {
    const std::string name = describeNode(node);
    if (!std::string_view(error.what()).starts_with(name)) error.addContext(name);
    throw;
  }
  return true;
}

// Whether ONNX's body has taken the place of this node.
bool spliceSchemaFunction(GraphBuilder& builder, const Node& node) {
  if (!node.domain.empty()) return false;
  Graph& graph = builder.graph();
  const std::optional<Function> function = schemaFunction(graph, node);
  if (!function) return false;
  std::map<std::string, Attribute> attributes = function->default_attributes;
  for (const auto& [name, attribute] : node.attributes) attributes[name] = attribute;
  spliceBody(builder, *function->body, node, attributes, {}, graph.nodes);
  return true;
}

}  // namespace

int expandUnsupported(Graph& graph, const std::function<bool(const Node&)>& supported) {
  int expanded = 0;
  GraphBuilder builder(graph);
  std::vector<Node> nodes;
  nodes.swap(graph.nodes);
  for (Node& node : nodes) {
    const LoweringRule* rule = findLowering(graph, node);
    const bool claimed = rule != nullptr && rule->claims != nullptr;
    if ((claimed || !supported(node)) &&
        (lower(builder, node, rule) || spliceSchemaFunction(builder, node))) {
      ++expanded;
    } else {
      graph.nodes.push_back(std::move(node));
    }
  }
  return expanded;
}

}  // namespace pipeshard
