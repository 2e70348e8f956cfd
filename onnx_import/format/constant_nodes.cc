#include "onnx_import/format/constant_nodes.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "ir/operators/initializer_role.h"

namespace pipeshard {
namespace {

constexpr const char* kConstantNodeMark = "pipeshard.constant_node";

// What a Constant node holds, where that may be a weight.
std::optional<Constant> floatTensor(const Node& node) {
  if (!node.is("Constant") || node.attributes.size() != 1 || node.outputs.size() != 1) return std::nullopt;
  const auto& [name, attribute] = *node.attributes.begin();
  if (name == "value_floats") {
    const auto* numbers = std::get_if<std::vector<float>>(&attribute);
    if (numbers == nullptr) return std::nullopt;
    return makeConstant<float>({std::ssize(*numbers)}, *numbers);
  }
  const auto* tensor = std::get_if<Constant>(&attribute);
  if (name != "value" || tensor == nullptr || !isFloatingPoint(tensor->data_type)) return std::nullopt;
  return *tensor;
}

bool isIn(const std::vector<ValueId>& ids, ValueId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void describe(Value& value, const Constant& content) {
  value.data_type = content.data_type;
  value.shape = content.shape;
  value.symbols.clear();
  value.metadata.emplace_back(kConstantNodeMark, "true");
}

std::string keyOf(const std::string& domain, const std::string& name, const std::string& overload) {
  return domain + '\n' + name + '\n' + overload;
}

template <typename Visit>
void visitSubgraphs(const Node& node, const Visit& visit) {
  for (const auto& [name, attribute] : node.attributes) {
    const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
    if (body != nullptr) visit(**body);
  }
}

// Those of the main graph, and of the graphs inside.
class GraphLifter {
 public:
  GraphLifter(Graph& graph, const ConstantPlaces& places, const std::string& file)
      : graph_(graph), places_(places), file_(file) {}

  void run() {
    liftMain();
    for (const Node& node : graph_.nodes) {
      visitSubgraphs(node, [&](const Graph& body) { countDefinitions(body); });
    }
    if (definitions_.empty()) return;
    GraphBuilder builder(graph_);
    for (Node& node : graph_.nodes) liftSubgraphs(builder, node);
  }

 private:
  void liftMain() {
    std::erase_if(graph_.nodes, [&](const Node& node) {
      std::optional<Constant> content = floatTensor(node);
      if (!content || isIn(graph_.outputs, node.outputs[0])) return false;
      const ValueId id = node.outputs[0];
      describe(graph_.value(id), *content);
      const auto place = places_.find(graph_.value(id).name);
      const bool is_placed = place != places_.end() && place->second.second == content->bytes.size();
      if (is_placed && !looksLikeMask(*content)) {  // a mask is known by its numbers
        graph_.initializers.emplace(id, WeightReference{file_, place->second.first, place->second.second});
      } else {
        graph_.initializers.emplace(id, std::move(*content));
      }
      return true;
    });
  }

  void countDefinitions(const Graph& graph) {
    std::vector<bool> defined(graph.values.size(), false);
    for (const ValueId id : graph.inputs) defined[id.index()] = true;
    for (const auto& [id, initializer] : graph.initializers) defined[id.index()] = true;
    for (const Node& node : graph.nodes) {
      for (const ValueId id : node.outputs) {
        if (id.valid()) defined[id.index()] = true;
      }
      visitSubgraphs(node, [&](const Graph& body) { countDefinitions(body); });
    }
    for (size_t i = 0; i < defined.size(); ++i) {
      if (defined[i]) ++definitions_[graph.values[i].name];
    }
  }

  void liftSubgraphs(GraphBuilder& builder, Node& node) {
    for (auto& [name, attribute] : node.attributes) {
      auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
      if (body == nullptr) continue;
      auto copy = std::make_shared<Graph>(**body);
      std::erase_if(copy->nodes, [&](const Node& inside) { return liftFrom(builder, *copy, inside); });
      for (Node& inside : copy->nodes) liftSubgraphs(builder, inside);
      *body = std::move(copy);
    }
  }

  // The value stays in the graph inside, where nothing defines it any more: it is that of the main graph.
  bool liftFrom(GraphBuilder& builder, Graph& inside, const Node& node) {
    const std::optional<Constant> content = floatTensor(node);
    if (!content || elementCount(content->shape) <= 1 || isIn(inside.outputs, node.outputs[0])) return false;
    Value& value = inside.value(node.outputs[0]);
    if (definitions_.at(value.name) != 1 || builder.find(value.name)) return false;
    describe(value, *content);
    describe(graph_.value(builder.addConstant(value.name, *content)), *content);
    return true;
  }

  Graph& graph_;
  const ConstantPlaces& places_;
  const std::string& file_;
  std::map<std::string, int> definitions_;  // in the graphs inside, by name
};

// Those of functions' bodies.
class FunctionLifter {
 public:
  explicit FunctionLifter(Graph& graph)
      : graph_(graph), weights_(graph.functions.size()), stays_(graph.functions.size(), false) {
    for (const Function& function : graph.functions) {
      if (function.domain != kPipeshardDomain)
        functions_.emplace(keyOf(function.domain, function.name, function.overload), inputs_.size());
      inputs_.push_back(function.body->inputs.size());
    }
  }

  void run() {
    if (functions_.empty()) return;
    for (const Node& node : graph_.nodes) keepCalledInside(node);
    for (const Function& function : graph_.functions) {
      for (const Node& node : function.body->nodes) {
        keepCalledInside(node);
        const std::optional<size_t> callee = calleeOf(node);
        if (callee && function.domain == kPipeshardDomain) keep(*callee);
      }
    }
    GraphBuilder builder(graph_);
    for (Node& node : graph_.nodes) {
      if (const std::optional<size_t> callee = calleeOf(node))
        passOn(node, *callee, weightsOf(builder, *callee));
    }
  }

 private:
  std::optional<size_t> calleeOf(const Node& node) const {
    const auto found = functions_.find(keyOf(node.domain, node.op_type, node.overload));
    return found == functions_.end() ? std::nullopt : std::optional(found->second);
  }

  void keepCalledInside(const Node& node) {
    visitSubgraphs(node, [&](const Graph& body) {
      for (const Node& inside : body.nodes) {
        if (const std::optional<size_t> callee = calleeOf(inside)) keep(*callee);
        keepCalledInside(inside);
      }
    });
  }

  // A function that stays as it is hands nothing on to those that it calls.
  void keep(size_t function) {
    std::vector<size_t> open = {function};
    while (!open.empty()) {
      const size_t kept = open.back();
      open.pop_back();
      if (stays_[kept]) continue;
      stays_[kept] = true;
      for (const Node& node : graph_.functions[kept].body->nodes) {
        if (const std::optional<size_t> callee = calleeOf(node)) open.push_back(*callee);
      }
    }
  }

  // What a call of the function is given beside its own inputs: initializers of the main graph. Calls are as
  // deep as the limits of the import allow (proto_checks.h).
  const std::vector<ValueId>& weightsOf(GraphBuilder& builder, size_t function) {
    if (weights_[function]) return *weights_[function];
    weights_[function].emplace();  // a function that calls itself is refused when calls are inlined
    if (stays_[function]) return *weights_[function];
    auto body = std::make_shared<Graph>(*graph_.functions[function].body);
    std::vector<ValueId> weights;
    std::erase_if(body->nodes, [&](const Node& node) {
      const std::optional<Constant> content = floatTensor(node);
      if (!content || elementCount(content->shape) <= 1 || isIn(body->outputs, node.outputs[0])) return false;
      Value& value = body->value(node.outputs[0]);
      const std::string name = fmt::format("{}.{}", graph_.functions[function].name, value.name);
      describe(value, *content);
      weights.push_back(builder.addConstant(name, *content));
      describe(graph_.value(weights.back()), *content);
      body->inputs.push_back(node.outputs[0]);
      return true;
    });
    for (size_t n = 0; n < body->nodes.size(); ++n) {
      const std::optional<size_t> callee = calleeOf(body->nodes[n]);
      if (!callee) continue;
      std::vector<ValueId> handed;  // inside of the body
      for (const ValueId weight : weightsOf(builder, *callee))
        handed.push_back(inputFor(*body, inputs_[function], weight, weights));
      passOn(body->nodes[n], *callee, handed);
    }
    if (!weights.empty()) graph_.functions[function].body = std::move(body);
    weights_[function] = std::move(weights);
    return *weights_[function];
  }

  // The input of the body that stands for a weight: its further inputs are `weights`.
  ValueId inputFor(Graph& body, size_t own_inputs, ValueId weight, std::vector<ValueId>& weights) {
    const auto found = std::find(weights.begin(), weights.end(), weight);
    if (found != weights.end()) return body.inputs[own_inputs + static_cast<size_t>(found - weights.begin())];
    GraphBuilder builder(body);
    const Value& outside = graph_.value(weight);
    const ValueId input = builder.addValue(outside.name, outside.data_type, *outside.shape);
    weights.push_back(weight);
    body.inputs.push_back(input);
    return input;
  }

  // Optional inputs that the call leaves out have their places.
  void passOn(Node& call, size_t callee, const std::vector<ValueId>& weights) const {
    if (weights.empty()) return;
    if (call.inputs.size() < inputs_[callee]) call.inputs.resize(inputs_[callee]);
    call.inputs.insert(call.inputs.end(), weights.begin(), weights.end());
  }

  Graph& graph_;
  std::map<std::string, size_t> functions_;                   // the position, by keyOf
  std::vector<size_t> inputs_;                                // of a function, as the file has it
  std::vector<std::optional<std::vector<ValueId>>> weights_;  // empty: not looked at yet
  std::vector<bool> stays_;
};

}  // namespace

void liftConstantNodes(Graph& graph, const ConstantPlaces& places, const std::string& file) {
  GraphLifter(graph, places, file).run();
  FunctionLifter(graph).run();
}

bool isOfConstantNode(const Value& value) {
  return std::any_of(value.metadata.begin(), value.metadata.end(),
                     [](const auto& entry) { return entry.first == kConstantNodeMark; });
}

}  // namespace pipeshard
