#include "onnx_import/forms/step_graph.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/format/constant_nodes.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"

namespace pipeshard {
namespace {

constexpr int64_t kFoldedBytes = 1 << 16;
constexpr double kLeastKept = 0.5;  // of a weight in its update: 1 - lr * decay, or a momentum

bool isScalarFloat(const Value& value) {
  return isFloatingPoint(value.data_type) && value.shape &&
         (value.shape->empty() || *value.shape == Shape{1});
}

bool showsInput(const Node& node) {
  const OperatorFacts& facts = operatorFacts(node);
  return facts.view != View::kNone || node.is("Cast") || node.is("CastLike");
}

// A name in which "loss" stands as a word: "loss", "onnx::loss::3", "train_loss".
bool namesLoss(std::string_view name) {
  const size_t at = name.find("loss");
  const auto isLetter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return at != std::string_view::npos && (at == 0 || !isLetter(name[at - 1])) &&
         (at + 4 == name.size() || !isLetter(name[at + 4]));
}

std::vector<ValueId> inModuleOrder(const Graph& graph, std::vector<ValueId> parameters) {
  std::map<std::string, size_t> place;
  for (const SignatureParameter& parameter : signatureParameters(graph))
    place.emplace(parameter.name, place.size());
  const auto placeOf = [&](ValueId id) {
    const auto found = place.find(graph.value(id).name);
    return found == place.end() ? place.size() : found->second;
  };
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](ValueId a, ValueId b) { return placeOf(a) < placeOf(b); });
  return parameters;
}

}  // namespace

bool readsContent(const Node& node, size_t position) {
  return !operatorFacts(node).unread_inputs.contains(position);
}

std::string describeValue(const Value& value) {
  return fmt::format("'{}' {}{}", value.name, dataTypeName(value.data_type),
                     value.shape ? shapeToString(*value.shape) : "");
}

StepGraph::StepGraph(Graph as_read, const std::string& loss) : graph_(std::move(as_read)) {
  for (Value& value : graph_.values) {  // in a step these are numbers: no step updates a Constant node
    if (isOfConstantNode(value)) markMade(value);
  }
  std::set<std::string> trained;
  for (ValueId id : trainableParameters(graph_)) trained.insert(graph_.value(id).name);
  try {
    Graph folded = graph_;
    inlineFunctions(folded, ImportLimits().inlined_nodes);
    foldConstants(folded, kFoldedBytes);
    graph_ = std::move(folded);
  } catch (const Error&) {
    // What contradicts itself before sizes are known, or for good, is told when the graph is prepared.
  }
  uses_ = computeUseDef(graph_);
  loss_ = findLoss(loss);
  feeds_loss_ = loss_.valid() ? upstream({loss_}) : std::vector<bool>(graph_.values.size(), false);
  for (const auto& [id, initializer] : graph_.initializers) {
    if (trained.contains(graph_.value(id).name) && feedsLoss(id)) trained_.push_back(id);
  }
  trained_ = inModuleOrder(graph_, std::move(trained_));
}

ValueId StepGraph::findLoss(const std::string& name) const {
  std::vector<ValueId> candidates;
  for (ValueId id : graph_.outputs) {
    if (!name.empty() && graph_.value(id).name == name) return id;
    if (isScalarFloat(graph_.value(id))) candidates.push_back(id);
  }
  if (candidates.empty()) return {};
  const auto named = std::find_if(candidates.begin(), candidates.end(),
                                  [&](ValueId id) { return namesLoss(graph_.value(id).name); });
  return named != candidates.end() ? *named : candidates.front();
}

std::vector<bool> StepGraph::upstream(const std::vector<ValueId>& values) const {
  std::vector<bool> result(graph_.values.size(), false);
  for (ValueId id : values) result[id.index()] = true;
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    const Node& node = graph_.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return id.valid() && result[id.index()]; }))
      continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].valid() && readsContent(node, i)) result[node.inputs[i].index()] = true;
    }
  }
  return result;
}

std::vector<bool> StepGraph::fromBatch(const std::vector<ValueId>& weights) const {
  std::vector<bool> result(graph_.values.size(), false);
  for (ValueId id : graph_.inputs) {
    const bool weight = std::find(weights.begin(), weights.end(), id) != weights.end();
    result[id.index()] = feedsLoss(id) && !weight && !graph_.initializers.contains(id);
  }
  return spread(std::move(result));
}

std::vector<bool> StepGraph::spread(std::vector<bool> values) const {
  for (const Node& node : graph_.nodes) {
    bool any = false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      any = any || (node.inputs[i].valid() && readsContent(node, i) && values[node.inputs[i].index()]);
    for (ValueId id : node.outputs) {
      if (id.valid()) values[id.index()] = any;
    }
  }
  return values;
}

std::vector<bool> StepGraph::fromGiven() const {
  std::vector<bool> result(graph_.values.size(), false);
  for (size_t i = 0; i < result.size(); ++i) result[i] = isGiven(ValueId(i));
  return spread(std::move(result));
}

bool StepGraph::isGiven(ValueId id) const {
  if (!isLeaf(id) || isFolded(value(id))) return false;
  return graph_.constant(id) == nullptr || !isOneElement(id);
}

bool StepGraph::isOneElement(ValueId id) const {
  const std::optional<Shape>& shape = value(id).shape;
  return shape && std::all_of(shape->begin(), shape->end(), [](int64_t size) { return size == 1; });
}

const Node* StepGraph::producer(ValueId id) const {
  const NodeId node = uses_.producer[id.index()];
  return node.valid() ? &graph_.node(node) : nullptr;
}

std::vector<const Node*> StepGraph::consumers(ValueId id) const {
  std::vector<const Node*> nodes;
  for (NodeId node : uses_.consumers[id.index()]) nodes.push_back(&graph_.node(node));
  return nodes;
}

bool StepGraph::feedsLoss(const Node& node) const {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return id.valid() && feedsLoss(id); });
}

ValueId StepGraph::origin(ValueId id) const {
  for (const Node* node = producer(id); node != nullptr && showsInput(*node) && node->inputs[0].valid();
       node = producer(id))
    id = node->inputs[0];
  return id;
}

std::vector<ValueId> StepGraph::shownAs(ValueId id) const {
  std::vector<ValueId> shown = {id};
  for (size_t i = 0; i < shown.size(); ++i) {
    for (const Node* node : consumers(shown[i])) {
      if (showsInput(*node) && node->inputs[0] == shown[i]) shown.push_back(node->outputs[0]);
    }
  }
  return shown;
}

std::optional<double> StepGraph::number(ValueId id) const {
  const Constant* constant = graph_.constant(origin(id));
  if (constant == nullptr || elementCount(constant->shape) != 1) return std::nullopt;
  if (!isFloatingPoint(constant->data_type) && !isInteger(constant->data_type)) return std::nullopt;
  return numericElements(*constant).front();
}

bool StepGraph::isTensor(ValueId id) const {
  return isFloatingPoint(graph_.dataType(id)) && hasStaticType(graph_.value(id));
}

bool StepGraph::sameType(ValueId a, ValueId b) const {
  return graph_.dataType(a) == graph_.dataType(b) && graph_.value(a).shape == graph_.value(b).shape;
}

std::vector<ValueId> StepGraph::trainedInitializers() const { return trained_; }

std::vector<ValueId> StepGraph::tensorInputs() const {
  std::vector<ValueId> result;
  for (ValueId id : graph_.inputs) {
    if (isTensor(id) && feedsLoss(id) && !graph_.initializers.contains(id)) result.push_back(id);
  }
  return result;
}

// The leaf that an operand of the last operation is, or shows, or is a multiple of.
ValueId StepGraph::leafOf(ValueId operand, ValueId like) const {
  const ValueId shown = origin(operand);
  const auto isIt = [&](ValueId id) {
    return isLeaf(id) && !isFolded(value(id)) && isTensor(id) && sameType(id, like);
  };
  if (isIt(shown)) return shown;
  const Node* node = producer(shown);
  if (node == nullptr || !node->is("Mul")) return {};
  for (const size_t side : {0, 1}) {
    const ValueId leaf = origin(node->inputs[side]);
    const ValueId factor = node->inputs[1 - side];
    if (!isIt(leaf) || !isOneElement(factor)) continue;
    const std::optional<double> constant = number(factor);
    if (!constant || *constant >= kLeastKept) return leaf;
  }
  return {};
}

ValueId StepGraph::updatedLeaf(ValueId id) const {
  if (!isTensor(id) || feedsLoss(id)) return {};
  const ValueId made = origin(id);
  if (isLeaf(made)) return sameType(made, id) && !isFolded(value(made)) ? made : ValueId();
  const Node* node = producer(made);
  if (node == nullptr || !(node->is("Add") || node->is("Sub") || node->is("Sum"))) return {};
  const size_t operands = node->is("Sub") ? 1 : node->inputs.size();
  for (size_t i = 0; i < operands; ++i) {
    if (const ValueId leaf = leafOf(node->inputs[i], id); leaf.valid()) return leaf;
  }
  return {};
}

}  // namespace pipeshard
