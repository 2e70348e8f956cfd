#include "onnx_import/prepare/simplify.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_set>

#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "ir/graph/stopped_gradient.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

// An external tensor that the reader has checked; nullopt for anything else.
std::optional<WeightReference> externalTensor(const Node& node) {
  if (!node.is("Constant") || node.attributes.size() != 1) return std::nullopt;
  const auto* opaque = std::get_if<OpaqueAttribute>(&node.attributes.begin()->second);
  onnx::AttributeProto attribute;
  if (opaque == nullptr || !attribute.ParseFromString(opaque->bytes)) return std::nullopt;
  if (attribute.t().data_location() != onnx::TensorProto::EXTERNAL) return std::nullopt;
  if (dataTypeSize(static_cast<DataType>(attribute.t().data_type())) == 0) return std::nullopt;
  WeightReference reference;
  for (const auto& entry : attribute.t().external_data()) {
    if (entry.key() == "location") reference.location = entry.value();
    if (entry.key() == "offset") reference.offset = std::stoull(entry.value());
  }
  return reference;
}

class Simplifier {
 public:
  explicit Simplifier(Graph& graph) : graph_(graph), builder_(graph), replacement_(graph.values.size()) {
    for (ValueId id : graph.outputs) outputs_.insert(id);
    for (ValueId id : graph.inputs) inputs_.insert(id);
    for (const Node& node : graph.nodes) {
      std::vector<std::string> names;
      collectCaptures(node, names);
      captured_.insert(names.begin(), names.end());
      read_.insert(node.inputs.begin(), node.inputs.end());
      const bool part = node.is("SequenceAt") && node.inputs.size() == 2 && node.inputs[1].valid() &&
                        graph.constant(node.inputs[1]) != nullptr &&
                        elementCount(graph.constant(node.inputs[1])->shape) == 1;
      for (ValueId input : node.inputs) {
        if (!part && input.valid() && !graph.value(input).opaque_type.empty()) whole_sequences_.insert(input);
      }
    }
  }

  int run() {
    std::vector<Node> nodes;
    nodes.swap(graph_.nodes);
    for (Node& node : nodes) {
      for (ValueId& id : node.inputs) id = resolve(id);
      if (castToKnownType(node) || dropZeroBias(node)) ++changes_;
      if (takeBranch(node) || takeExternal(node) || bypass(node) || split(node) || takePart(node)) {
        ++changes_;
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    for (Node& node : graph_.nodes) {
      for (ValueId& id : node.inputs) id = resolve(id);
      for (ValueId& id : node.outputs) {
        const auto it = renamed_.find(id);
        if (id.valid() && it != renamed_.end()) id = it->second;
      }
    }
    return changes_;
  }

 private:
  ValueId resolve(ValueId id) const {
    while (id.valid() && id.index() < replacement_.size() && replacement_[id.index()].valid())
      id = replacement_[id.index()];
    return id;
  }

  bool isCaptured(ValueId id) const { return captured_.contains(graph_.value(id).name); }

  bool isRead(ValueId id) const { return read_.contains(id) || outputs_.contains(id) || isCaptured(id); }

  // True for a node whose first output equals its first input and whose other outputs nobody reads.
  bool copiesItsInput(const Node& node) const {
    if (node.inputs.empty() || !node.inputs[0].valid()) return false;
    if (node.is("Identity")) return !stopsGradient(node);
    if (node.is("Cast")) {
      const DataType type = graph_.value(node.inputs[0]).data_type;
      return type != DataType::kUndefined && node.hasAttribute("to") &&
             node.intAttribute("to", 0) == static_cast<int64_t>(type);
    }
    if (!node.is("Dropout")) return false;
    if (node.outputs.size() > 1 && node.outputs[1].valid() && isRead(node.outputs[1])) return false;
    if (node.opset_version < 7) return node.intAttribute("is_test", 0) != 0;
    if (node.opset_version < 12 || node.inputs.size() < 3 || !node.inputs[2].valid()) return true;
    const Constant* training = graph_.constant(node.inputs[2]);
    return training != nullptr && !training->bytes.empty() && training->bytes[0] == std::byte{0};
  }

  bool bypass(const Node& node) {
    if (!copiesItsInput(node) || node.outputs.empty() || !node.outputs[0].valid()) return false;
    const ValueId input = node.inputs[0];
    const ValueId output = node.outputs[0];
    if (isCaptured(output) || !graph_.value(input).opaque_type.empty()) return false;
    if (!outputs_.contains(output)) {
      replace(output, input);
      return true;
    }
    // An output keeps its name: the producer of the input writes it instead, if the input has no name to keep
    // itself.
    const bool fixed = outputs_.contains(input) || inputs_.contains(input) ||
                       graph_.initializers.contains(input) || isCaptured(input) || renamed_.contains(input);
    if (fixed) return false;
    renamed_.emplace(input, output);
    replace(input, output);
    return true;
  }

  void replace(ValueId from, ValueId to) {
    if (replacement_.size() <= from.index()) replacement_.resize(graph_.values.size());
    replacement_[from.index()] = to;
  }

  // CastLike reads a tensor only for its type.
  bool castToKnownType(Node& node) const {
    if (!node.is("CastLike") || node.inputs.size() != 2 || !node.inputs[1].valid()) return false;
    const DataType type = graph_.value(node.inputs[1]).data_type;
    if (type == DataType::kUndefined) return false;
    node.op_type = "Cast";
    node.inputs.resize(1);
    node.attributes["to"] = static_cast<int64_t>(type);
    return true;
  }

  // Zeros of a shape that no bias has: PyTorch's exporter writes [C, 2] for an nn.Conv3d without a bias.
  bool dropZeroBias(Node& node) const {
    if (!node.is("Conv") || node.inputs.size() != 3 || !node.inputs[2].valid()) return false;
    const Constant* bias = graph_.constant(node.inputs[2]);
    if (bias == nullptr || bias->shape.size() == 1 ||
        std::any_of(bias->bytes.begin(), bias->bytes.end(), [](std::byte b) { return b != std::byte{0}; }))
      return false;
    node.inputs.resize(2);
    return true;
  }

  // A sequence of parts of a tensor, of which only single ones are read, is a Split.
  bool split(const Node& node) {
    if (!node.is("SplitToSequence") || node.inputs.size() != 2 || !node.outputs[0].valid() ||
        node.intAttribute("keepdims", 1) != 1 || whole_sequences_.contains(node.outputs[0]) ||
        outputs_.contains(node.outputs[0]) || isCaptured(node.outputs[0]))
      return false;
    const Value whole = graph_.value(node.inputs[0]);
    const Constant* sizes = node.inputs[1].valid() ? graph_.constant(node.inputs[1]) : nullptr;
    if (sizes == nullptr || !whole.shape || !isStatic(*whole.shape)) return false;
    const int64_t rank = std::ssize(*whole.shape);
    const int64_t given = node.intAttribute("axis", 0);
    if (given < -rank || given >= rank) return false;
    const int64_t axis = given < 0 ? given + rank : given;
    const int64_t size = whole.shape->at(axis);
    std::vector<int64_t> parts = integerElements(*sizes);
    if (sizes->shape.empty()) parts = equalParts(size, parts.at(0));
    const bool negative = std::any_of(parts.begin(), parts.end(), [](int64_t part) { return part < 0; });
    if (parts.empty() || negative || std::accumulate(parts.begin(), parts.end(), int64_t{0}) != size)
      return false;
    Node made = node;
    made.op_type = "Split";
    made.attributes = {{"axis", axis}};
    made.inputs = {node.inputs[0],
                   builder_.addConstant("sizes", makeConstant<int64_t>({std::ssize(parts)}, parts))};
    made.outputs.clear();
    for (int64_t size : parts) {
      Shape shape = *whole.shape;
      shape[axis] = size;
      made.outputs.push_back(
          builder_.addValue(graph_.value(node.outputs[0]).name + "_part", whole.data_type, shape));
    }
    parts_[node.outputs[0]] = made.outputs;
    graph_.nodes.push_back(std::move(made));
    return true;
  }

  static std::vector<int64_t> equalParts(int64_t size, int64_t part) {
    std::vector<int64_t> parts;
    for (int64_t at = 0; part > 0 && at < size; at += part) parts.push_back(std::min(part, size - at));
    return parts;
  }

  bool takePart(const Node& node) {
    if (!node.is("SequenceAt") || node.inputs.size() != 2 || !node.inputs[1].valid()) return false;
    const auto parts = parts_.find(node.inputs[0]);
    const Constant* position = graph_.constant(node.inputs[1]);
    if (parts == parts_.end() || position == nullptr || elementCount(position->shape) != 1 ||
        isCaptured(node.outputs[0]))
      return false;
    const int64_t count = std::ssize(parts->second);
    const int64_t index = integerElements(*position).at(0);
    if (index < -count || index >= count) return false;
    const ValueId part = parts->second[(index + count) % count];
    if (!outputs_.contains(node.outputs[0])) {
      replace(node.outputs[0], part);
      return true;
    }
    Node copy = node;
    copy.op_type = "Identity";
    copy.inputs = {part};
    graph_.nodes.push_back(std::move(copy));
    return true;
  }

  bool takeExternal(const Node& node) {
    const std::optional<WeightReference> reference = externalTensor(node);
    if (!reference || node.outputs.size() != 1 || !node.outputs[0].valid()) return false;
    const Value& value = graph_.value(node.outputs[0]);
    if (!value.shape || !isStatic(*value.shape)) return false;
    WeightReference weight = *reference;
    weight.length = byteCount(value.data_type, *value.shape);
    graph_.initializers.emplace(node.outputs[0], std::move(weight));
    return true;
  }

  bool takeBranch(const Node& node) {
    if (!node.is("If") || node.inputs.size() != 1 || !node.inputs[0].valid()) return false;
    const Constant* condition = graph_.constant(node.inputs[0]);
    if (condition == nullptr || condition->data_type != DataType::kBool || condition->bytes.size() != 1)
      return false;
    const auto it = node.attributes.find(condition->bytes[0] != std::byte{0} ? "then_branch" : "else_branch");
    if (it == node.attributes.end() || !std::holds_alternative<std::shared_ptr<const Graph>>(it->second))
      return false;
    const std::shared_ptr<const Graph> branch = std::get<std::shared_ptr<const Graph>>(it->second);
    std::map<std::string, ValueId> captures;
    for (const auto& [name, id] : capturedValues(*branch)) {
      // Not followed through `replacement_`: captured values are never bypassed.
      if (const std::optional<ValueId> outside = builder_.find(name)) captures.emplace(name, *outside);
    }
    Node call = node;
    call.inputs.clear();
    call.metadata.clear();
    spliceBody(builder_, *branch, call, {}, captures, graph_.nodes);
    return true;
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::vector<ValueId> replacement_;    // by value index: read this instead
  std::map<ValueId, ValueId> renamed_;  // node outputs that now have the name of a graph output
  std::unordered_set<ValueId> outputs_;
  std::unordered_set<ValueId> inputs_;
  std::unordered_set<ValueId> read_;               // inputs of nodes
  std::unordered_set<std::string> captured_;       // names that subgraphs read
  std::unordered_set<ValueId> whole_sequences_;    // read by others than SequenceAt of a known place
  std::map<ValueId, std::vector<ValueId>> parts_;  // by sequence: what its Split gives
  int changes_ = 0;
};

}  // namespace

int simplify(Graph& graph) { return Simplifier(graph).run(); }

}  // namespace pipeshard
