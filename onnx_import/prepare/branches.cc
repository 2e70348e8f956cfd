#include "onnx_import/prepare/branches.h"

#include <algorithm>
#include <map>
#include <memory>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/loop_trips.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr const char* kThen = "then_branch";
constexpr const char* kElse = "else_branch";

std::string typeText(const Value& value) {
  if (!value.opaque_type.empty()) return "no tensor";
  return fmt::format("{}{}", dataTypeName(value.data_type),
                     value.shape ? shapeToString(*value.shape) : " of unknown shape");
}

const Value& resultOf(const Node& node, const char* branch, size_t output) {
  const Graph& body = bodyOf(node, branch);
  if (output >= body.outputs.size())
    fail(ErrorCode::kBadModel, "{} has {} outputs, but its {} gives {}", describeNode(node),
         node.outputs.size(), branch, body.outputs.size());
  return body.value(body.outputs[output]);
}

// All outputs, of both branches, have a type and a static shape.
bool areTypesKnown(const Node& node) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i].valid()) continue;
    if (!hasStaticType(resultOf(node, kThen, i)) || !hasStaticType(resultOf(node, kElse, i))) return false;
  }
  return true;
}

// A branch that only names values of the graph around it.
bool namesAlone(const Graph& branch) {
  const std::map<std::string, ValueId> captured = capturedValues(branch);
  return branch.initializers.empty() &&
         std::all_of(branch.nodes.begin(), branch.nodes.end(), [&](const Node& node) {
           return node.is("Identity") && node.inputs.size() == 1 && node.inputs[0].valid() &&
                  captured.contains(branch.value(node.inputs[0]).name);
         });
}

class BranchChooser {
 public:
  explicit BranchChooser(Graph& graph) : graph_(graph), builder_(graph) {}

  int run(const std::function<bool(const Node&)>& supported) {
    int changes = 0;
    std::vector<Node> nodes;
    nodes.swap(graph_.nodes);
    for (Node& node : nodes) {
      if (node.is("If") && !supported(node) && choose(node)) {
        ++changes;
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    return changes;
  }

 private:
  // False where it stays as it is.
  bool choose(const Node& node) {
    if (areTypesKnown(node)) {
      if (!branchObstacle(graph_, node).empty()) return false;
      const std::vector<ValueId> yes = moveOut(node, kThen);
      const std::vector<ValueId> no = moveOut(node, kElse);
      const ValueId condition = scalarCondition(node);
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (!node.outputs[i].valid()) continue;
        add(node, "Where", {condition, yes[i], no[i]}, node.outputs[i]);
      }
      return true;
    }
    if (namesAlone(bodyOf(node, kThen)) && namesAlone(bodyOf(node, kElse))) return false;
    Node left = node;
    for (const char* branch : {kThen, kElse}) left.attributes[branch] = naming(moveOut(node, branch));
    graph_.nodes.push_back(std::move(left));
    return true;
  }

  // The branch's nodes go into the graph; what its outputs are there.
  std::vector<ValueId> moveOut(const Node& node, const char* branch) {
    const Graph& body = bodyOf(node, branch);
    std::map<std::string, ValueId> captures;
    for (const auto& [name, id] : capturedValues(body)) {
      if (const std::optional<ValueId> outside = builder_.find(name)) captures.emplace(name, *outside);
    }
    Node call = node;
    call.name = prefix(node) + "/" + branch;
    call.inputs.clear();
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (!call.outputs[i].valid()) continue;
      const Value result = resultOf(node, branch, i);
      call.outputs[i] = builder_.addValue(call.name + "/" + result.name, result.data_type, {});
      Value& moved = graph_.value(call.outputs[i]);
      moved.shape = result.shape && isStatic(*result.shape) ? result.shape : std::nullopt;
      moved.opaque_type = result.opaque_type;
    }
    spliceBody(builder_, body, call, {}, captures, graph_.nodes);
    return call.outputs;
  }

  std::shared_ptr<const Graph> naming(const std::vector<ValueId>& results) const {
    auto branch = std::make_shared<Graph>();
    const auto opset = graph_.opset_imports.find("");
    for (ValueId id : results) {
      if (id.valid()) branch->values.push_back(graph_.value(id));
    }
    GraphBuilder inside(*branch);
    for (size_t i = 0, next = 0; i < results.size(); ++i) {
      // An output that the If leaves out may be any of the others.
      const size_t captured = results[i].valid() ? next++ : 0;
      const Value& outside = branch->values[captured];
      const ValueId named = inside.addValue(outside.name + "/chosen", outside.data_type, {});
      branch->value(named).shape.reset();
      branch->value(named).opaque_type = branch->values[captured].opaque_type;
      inside.addNode("", "Identity", {ValueId(captured)}, {named});
      branch->nodes.back().opset_version = opset == graph_.opset_imports.end() ? 1 : opset->second;
      branch->outputs.push_back(named);
    }
    return branch;
  }

  ValueId scalarCondition(const Node& node) {
    const ValueId given = node.inputs[0];
    const std::string name = graph_.value(given).name + "/scalar";
    const int64_t rank = std::ssize(graph_.shape(given));
    if (rank == 0) return given;
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < rank; ++axis) axes.push_back(axis);
    const ValueId all = builder_.addConstant(name + "/axes", makeConstant<int64_t>({rank}, axes));
    markMade(graph_.value(all));
    const ValueId scalar = builder_.addValue(name, DataType::kBool, {});
    add(node, "Squeeze", {given, all}, scalar);
    return scalar;
  }

  void add(const Node& node, const char* op_type, std::vector<ValueId> inputs, ValueId output) {
    builder_.addNode("", op_type, std::move(inputs), {output});
    graph_.nodes.back().name = fmt::format("{}/{}/{}", prefix(node), op_type, graph_.value(output).name);
    graph_.nodes.back().metadata = node.metadata;
  }

  std::string prefix(const Node& node) const {
    if (!node.name.empty()) return node.name;
    for (ValueId id : node.outputs) {
      if (id.valid()) return graph_.value(id).name;
    }
    return node.op_type;
  }

  Graph& graph_;
  GraphBuilder builder_;
};

std::string conditionObstacle(const Graph& graph, const Node& node) {
  const Value* condition =
      node.inputs.size() == 1 && node.inputs[0].valid() ? &graph.value(node.inputs[0]) : nullptr;
  const bool fits = condition != nullptr && hasStaticType(*condition) &&
                    condition->data_type == DataType::kBool && elementCount(*condition->shape) == 1;
  if (fits) return "";
  return fmt::format("its condition is {}; expected one bool",
                     condition == nullptr ? "missing" : typeText(*condition));
}

}  // namespace

int chooseBranches(Graph& graph, const std::function<bool(const Node&)>& supported) {
  const bool any =
      std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.is("If"); });
  return any ? BranchChooser(graph).run(supported) : 0;
}

std::string branchObstacle(const Graph& graph, const Node& node) {
  if (!node.is("If")) return "";
  std::string obstacle = conditionObstacle(graph, node);
  if (!obstacle.empty()) return obstacle;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i].valid()) continue;
    const Value& yes = resultOf(node, kThen, i);
    const Value& no = resultOf(node, kElse, i);
    if (hasStaticType(yes) && hasStaticType(no) && yes.data_type == no.data_type && *yes.shape == *no.shape)
      continue;
    return fmt::format(
        "its condition depends on data, so pipeshard computes both branches and chooses each output, which "
        "needs one type and one static shape; its output '{}' is {} in the {} and {} in the {}; give the "
        "branches results of the same shape, or decide outside of the model",
        graph.value(node.outputs[i]).name, typeText(yes), kThen, typeText(no), kElse);
  }
  return "";
}

}  // namespace pipeshard
