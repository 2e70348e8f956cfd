#include "onnx_import/prepare/inline_functions.h"

#include <algorithm>
#include <unordered_map>

#include "ir/base/error.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

using Keep = std::function<bool(const Function&)>;

class Inliner {
 public:
  Inliner(const std::vector<Function>& functions, uint64_t node_limit, const Keep& keep)
      : node_limit_(node_limit) {
    for (const Function& function : functions) {
      if (!keep || !keep(function))
        functions_.emplace(key(function.domain, function.name, function.overload), &function);
    }
  }
  bool anything() const { return !functions_.empty(); }

  // Depth counts nested calls; a chain longer than the number of functions repeats one of them.
  void run(Graph& graph) {
    if (!callsAnything(graph.nodes)) return;
    GraphBuilder builder(graph);
    std::vector<Node> done;
    expand(builder, std::move(graph.nodes), 0, done);
    graph.nodes = std::move(done);
  }

 private:
  static std::string key(const std::string& domain, const std::string& name, const std::string& overload) {
    return domain + '\n' + name + '\n' + overload;
  }

  const Function* callee(const Node& node) const {
    const auto it = functions_.find(key(node.domain, node.op_type, node.overload));
    return it == functions_.end() ? nullptr : it->second;
  }

  bool callsAnything(const std::vector<Node>& nodes) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) {
      if (callee(node) != nullptr) return true;
      return std::any_of(node.attributes.begin(), node.attributes.end(), [&](const auto& attribute) {
        const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute.second);
        return body != nullptr && callsAnything((*body)->nodes);
      });
    });
  }

  void expand(GraphBuilder& builder, std::vector<Node> nodes, size_t depth, std::vector<Node>& done) {
    if (depth > functions_.size())
      fail(ErrorCode::kBadModel, "{} is part of a function that calls itself", describeNode(nodes.front()));
    for (Node& node : nodes) {
      const Function* function = callee(node);
      if (function == nullptr) {
        inlineSubgraphs(node);
        if (++total_ > node_limit_)
          fail(ErrorCode::kBadModel, "expanding the model's functions gives more than the limit of {} nodes",
               node_limit_);
        done.push_back(std::move(node));
        continue;
      }
      checkCall(*function, node);
      std::map<std::string, Attribute> attributes = function->default_attributes;
      for (const auto& [name, attribute] : node.attributes) attributes[name] = attribute;
      std::vector<Node> body;
      spliceBody(builder, *function->body, node, attributes, {}, body);
      if (!body.empty()) expand(builder, std::move(body), depth + 1, done);
    }
  }

  static void checkCall(const Function& function, const Node& node) {
    if (node.inputs.size() > function.body->inputs.size()) {
      fail(ErrorCode::kBadModel, "{} has {} inputs, but the function has {}", describeNode(node),
           node.inputs.size(), function.body->inputs.size());
    }
  }

  void inlineSubgraphs(Node& node) {
    for (auto& [name, attribute] : node.attributes) {
      auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
      if (body == nullptr || !callsAnything((*body)->nodes)) continue;
      auto copy = std::make_shared<Graph>(**body);
      run(*copy);
      *body = std::move(copy);
    }
  }

  uint64_t node_limit_;
  uint64_t total_ = 0;
  std::unordered_map<std::string, const Function*> functions_;
};

}  // namespace

void inlineFunctions(Graph& graph, uint64_t node_limit, const Keep& keep) {
  const std::vector<Function> functions = graph.functions;
  Inliner inliner(functions, node_limit, keep);
  if (!inliner.anything()) return;
  inliner.run(graph);
  if (keep) {
    // The bodies of functions that stay may call functions that go.
    for (Function& function : graph.functions) {
      if (!keep(function)) continue;
      auto body = std::make_shared<Graph>(*function.body);
      inliner.run(*body);
      function.body = std::move(body);
    }
  }
  std::erase_if(graph.functions, [&](const Function& function) { return !keep || !keep(function); });
}

}  // namespace pipeshard
