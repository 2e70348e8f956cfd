#include "onnx_import/prepare/upgrade.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <onnx/defs/schema.h>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/upgrade_rules.h"

namespace pipeshard {
namespace {

constexpr int kUpgradedFrom = 16;  // an opset from this on is one that everything behind knows

// Whether the node is written as the schema wants it. What opset 18 has more than older ones are attributes
// whose defaults say what was meant without them (but for those that the rules set).
bool hasFormOf(const Node& node, const onnx::OpSchema& schema) {
  const auto inputs = static_cast<int>(node.inputs.size());
  if (inputs < schema.min_input() || inputs > schema.max_input()) return false;
  if (static_cast<int>(node.outputs.size()) > schema.max_output()) return false;
  for (const auto& [name, attribute] : node.attributes) {
    if (!schema.attributes().contains(name)) return false;
  }
  return std::all_of(schema.attributes().begin(), schema.attributes().end(), [&](const auto& described) {
    return !described.second.required || node.hasAttribute(described.first);
  });
}

bool isBelow(const Node& node, int version) {
  return node.domain.empty() && node.opset_version > 0 && node.opset_version < version;
}

bool hasBody(const onnx::OpSchema* schema) {
  return schema != nullptr && (schema->HasFunction() || schema->HasContextDependentFunction());
}

// An operator that ONNX says in others from a later opset on alone (ReduceL1 from 18 on), and that nothing
// here computes or lowers by itself.
bool getsItsBodyLater(const Graph& graph, const Node& node) {
  if (!isBelow(node, kUpgradedTo)) return false;
  const auto* registry = onnx::OpSchemaRegistry::Instance();
  return !hasBody(registry->GetSchema(node.op_type, node.opset_version, "")) &&
         hasBody(registry->GetSchema(node.op_type, kUpgradedTo, "")) && findLowering(graph, node) == nullptr;
}

bool hasOldNodes(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (isBelow(node, kUpgradedFrom) || getsItsBodyLater(graph, node)) return true;
    return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute.second);
      return body != nullptr && hasOldNodes(**body);
    });
  });
}

// With as many inputs and outputs as its schema requires: rules count on them, and on the first. What lacks
// some is refused where types are inferred. Others may be empty: an old Resize has no "roi".
bool isComplete(const Node& node, const onnx::OpSchema& schema) {
  return std::ssize(node.inputs) >= schema.min_input() && std::ssize(node.outputs) >= schema.min_output() &&
         (schema.min_input() == 0 || node.inputs[0].valid());
}

// Whether the node has the form of opset `to`, 18 or later, now.
bool upgradeNode(OldNode& old, int to) {
  const auto* registry = onnx::OpSchemaRegistry::Instance();
  const auto* own = registry->GetSchema(old.node.op_type, old.node.opset_version, "");
  if (own == nullptr) return false;  // never in ONNX, or removed
  if (!isComplete(old.node, *own)) return false;
  const UpgradeRule* rule = findUpgrade(old.node);
  if (old.node.opset_version < 6) old.node.attributes.erase("consumed_inputs");  // a note to the allocator
  if (rule != nullptr && !rule->apply(old)) return false;
  const auto* wanted = registry->GetSchema(old.node.op_type, to, "");
  if (wanted == nullptr || wanted->Deprecated()) return false;
  const bool same = own->since_version() == wanted->since_version();
  if (!same && !hasFormOf(old.node, *wanted)) return false;
  old.node.opset_version = to;
  return true;
}

int upgradeNodes(Graph& graph, const Graph& known, int to) {
  int upgraded = 0;
  GraphBuilder builder(graph);
  std::vector<Node> nodes;
  nodes.swap(graph.nodes);
  for (Node& node : nodes) {
    for (auto& [name, attribute] : node.attributes) {
      auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
      if (body == nullptr) continue;
      auto copy = std::make_shared<Graph>(**body);
      upgraded += upgradeNodes(*copy, **body, to);
      *body = std::move(copy);
    }
    if (isBelow(node, to)) {
      OldNode old(builder, known, node);
      if (upgradeNode(old, to)) {
        old.moveTo(graph.nodes);
        ++upgraded;
        continue;
      }
    }
    graph.nodes.push_back(std::move(node));
  }
  return upgraded;
}

// Types and ranks, as far as they can be found. What is wrong with the model is told later, with its sizes.
Graph withShapes(const Graph& graph) {
  Graph known = graph;
  try {
    inferShapes(known);
  } catch (const Error&) {
    return graph;
  }
  return known;
}

int upgradeAll(Graph& graph) {
  const int upgraded = upgradeNodes(graph, withShapes(graph), kUpgradedTo);
  int& version = graph.opset_imports[""];
  version = std::max(version, kUpgradedTo);
  return upgraded;
}

// Below the opset that the graph imports, and another operator there.
bool hasOtherMeaning(const Node& node, int imported) {
  const auto* registry = onnx::OpSchemaRegistry::Instance();
  return isBelow(node, imported) && registry->GetSchema(node.op_type, node.opset_version, "") !=
                                        registry->GetSchema(node.op_type, imported, "");
}

}  // namespace

int upgradeOperators(Graph& graph) {
  const auto imported = graph.opset_imports.find("");
  const bool old = imported != graph.opset_imports.end() && imported->second < kUpgradedFrom;
  return old || hasOldNodes(graph) ? upgradeAll(graph) : 0;
}

bool adoptImportedOpset(Graph& graph) {
  const auto imported = graph.opset_imports.find("");
  if (imported == graph.opset_imports.end()) return false;
  const int version = imported->second;
  const auto any = [&](auto is) { return std::any_of(graph.nodes.begin(), graph.nodes.end(), is); };
  if (version < kUpgradedTo) {
    if (!any([&](const Node& node) { return hasOtherMeaning(node, version); })) return false;
    upgradeAll(graph);
    return true;
  }
  if (any([&](const Node& node) { return isBelow(node, version); }))
    upgradeNodes(graph, Graph(graph), version);
  return false;
}

}  // namespace pipeshard
