#include "onnx_import/prepare/hoist.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

using NewNames = std::map<std::string, std::string>;  // of what has moved out, by the name inside

// References to attributes of a function's caller only mean something inside of it.
bool hasPlainAttributes(const Node& node) {
  return std::none_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<AttributeReference>(attribute.second) ||
           std::holds_alternative<std::shared_ptr<const Graph>>(attribute.second);
  });
}

bool givesTheSameAgain(const Node& node) {
  return node.domain.empty() && hasPlainAttributes(node) && !operatorFacts(node).is_random &&
         !node.is("Dropout") && !node.is("Multinomial");
}

class Hoister {
 public:
  Hoister(GraphBuilder& builder, const std::string& prefix, std::vector<Node>& nodes)
      : builder_(builder), prefix_(prefix), nodes_(nodes) {}

  Graph run(const Graph& body) {
    countNames(body);
    Graph copy = body;
    moveOut(copy, {}, true);
    return copy;
  }

 private:
  void countNames(const Graph& graph) {
    const std::map<std::string, ValueId> captured = capturedValues(graph);
    for (const Value& value : graph.values) definitions_[value.name] += captured.contains(value.name) ? 0 : 1;
    for (const Node& node : graph.nodes) {
      for (const auto& [name, attribute] : node.attributes) {
        const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
        if (body != nullptr) countNames(**body);
      }
    }
  }

  // A name for a value that moves out: its own, if that is free then and means nothing else anywhere.
  std::string nameOutside(const std::string& own, bool is_free) const {
    if (is_free && !builder_.find(own) && definitions_.at(own) == 1) return own;
    std::string name = prefix_ + "/" + own;
    while (builder_.find(name) || definitions_.contains(name)) name += "_";
    return name;
  }

  // `names`: of what has moved out of the graphs around this one.
  void moveOut(Graph& graph, NewNames names, bool is_body) {
    const std::map<std::string, ValueId> captured = capturedValues(graph);
    for (const Value& value : graph.values) {
      if (!captured.contains(value.name)) names.erase(value.name);  // another value of that name
    }
    for (const auto& [name, id] : captured) {
      const auto moved = names.find(name);
      if (moved != names.end()) graph.value(id).name = moved->second;
    }
    moveInitializers(graph, names);
    moveNodes(graph, names, is_body);
    for (Node& node : graph.nodes) {
      for (auto& [name, attribute] : node.attributes) {
        auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
        if (body == nullptr) continue;
        auto copy = std::make_shared<Graph>(**body);
        moveOut(*copy, names, false);
        *body = std::move(copy);
      }
    }
  }

  void moveInitializers(Graph& graph, NewNames& names) {
    std::map<ValueId, Initializer> initializers;
    initializers.swap(graph.initializers);
    for (auto& [id, initializer] : initializers) {
      if (isIn(graph.inputs, id)) {
        graph.initializers.emplace(id, std::move(initializer));  // a default
      } else {
        builder_.graph().initializers.emplace(outside(graph, id, names), std::move(initializer));
      }
    }
  }

  void moveNodes(Graph& graph, NewNames& names, bool is_body) {
    std::vector<ValueId> same(graph.values.size());  // by value index: what it is outside, if it is there
    if (is_body) {
      for (const auto& [name, id] : capturedValues(graph))
        same[id.index()] = builder_.find(name).value_or(ValueId());
    }
    std::vector<Node> nodes;
    nodes.swap(graph.nodes);
    std::vector<Node> kept;
    for (Node& node : nodes) {
      const bool moves = node.is("Constant")
                             ? hasPlainAttributes(node)
                             : is_body && givesTheSameAgain(node) && isSame(graph, node, same);
      if (!moves) {
        kept.push_back(std::move(node));
        continue;
      }
      for (ValueId& id : node.inputs) {
        if (id.valid()) id = same[id.index()];
      }
      for (ValueId& id : node.outputs) {
        if (!id.valid()) continue;
        const ValueId moved = outside(graph, id, names);
        same[id.index()] = moved;
        id = moved;
      }
      node.name = nodeName(node);
      nodes_.push_back(std::move(node));
    }
    // Behind the copies that `outside` has added.
    std::move(kept.begin(), kept.end(), std::back_inserter(graph.nodes));
  }

  static bool isSame(const Graph& graph, const Node& node, const std::vector<ValueId>& same) {
    const bool shown = std::any_of(node.outputs.begin(), node.outputs.end(),
                                   [&](ValueId id) { return isIn(graph.outputs, id); });
    return !shown && std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      return !id.valid() || (id.index() < same.size() && same[id.index()].valid());
    });
  }

  std::string nodeName(const Node& node) {
    const std::string& name = node.name.empty() ? node.op_type : node.name;
    const int count = node_names_[name]++;
    return count == 0 ? fmt::format("{}/{}", prefix_, name) : fmt::format("{}/{}_{}", prefix_, name, count);
  }

  // What value `id` of a graph inside is outside from now on. An output of the graph inside stays one, as a
  // copy.
  ValueId outside(Graph& graph, ValueId id, NewNames& names) {
    const Value inside = graph.value(id);
    const bool stays = isIn(graph.outputs, id);
    const std::string name = nameOutside(inside.name, !stays);
    const ValueId moved = builder_.addValue(name, inside.data_type, {});
    Value& value = builder_.graph().value(moved);
    value = inside;
    value.name = name;
    // A symbol of the body need not mean what the same symbol means outside.
    if (value.shape && !isStatic(*value.shape)) value.shape.reset();
    value.symbols.clear();
    if (!stays) {
      names[inside.name] = name;
      graph.value(id).name = name;
      return moved;
    }
    Value captured = value;
    graph.values.push_back(std::move(captured));
    Node copy;
    copy.op_type = "Identity";
    const auto opset = builder_.graph().opset_imports.find("");
    copy.opset_version = opset == builder_.graph().opset_imports.end() ? 1 : opset->second;
    copy.name = name + "/Identity";
    copy.inputs = {ValueId(graph.values.size() - 1)};
    copy.outputs = {id};
    graph.nodes.push_back(std::move(copy));
    return moved;
  }

  static bool isIn(const std::vector<ValueId>& ids, ValueId id) {
    return id.valid() && std::find(ids.begin(), ids.end(), id) != ids.end();
  }

  GraphBuilder& builder_;
  const std::string& prefix_;
  std::vector<Node>& nodes_;
  std::unordered_map<std::string, int> definitions_;  // of a name, in the body and the subgraphs of its nodes
  std::unordered_map<std::string, int> node_names_;   // how often each occurs
};

}  // namespace

Graph hoistInvariants(GraphBuilder& builder, const Graph& body, const std::string& prefix,
                      std::vector<Node>& nodes) {
  return Hoister(builder, prefix, nodes).run(body);
}

}  // namespace pipeshard
