#include "onnx_import/exporter/recurrent_parameters.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ir/graph/exporter_marks.h"
#include "onnx_import/format/initializer_bytes.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr size_t kWeights = 1, kRecurrentWeights = 2, kBiases = 3;  // inputs of ONNX's operators

// By PyTorch's gate: where ONNX's operator has it. Input, forget, cell, output are input, output, forget,
// cell there; reset, update, new are update, reset, hidden.
std::vector<int64_t> placesOfGates(const Node& node) {
  if (node.is("LSTM")) return {0, 2, 3, 1};
  if (node.is("GRU")) return {1, 0, 2};
  if (node.is("RNN")) return {0};
  return {};
}

class Recurrence {
 public:
  Recurrence(Unfolding& unfolding, size_t node)
      : unfolding_(unfolding), node_(node), gates_(placesOfGates(unfolding.graph().nodes[node])) {}

  void unfold() {
    if (gates_.empty()) return;
    for (const size_t input : {kWeights, kRecurrentWeights, kBiases}) {
      const std::vector<ValueId>& inputs = unfolding_.graph().nodes[node_].inputs;
      if (input < inputs.size()) unfold(inputs[input], input == kBiases ? 2 : 1);
    }
  }

 private:
  // Directions, one behind the other; of biases those of weights and of recurrent weights.
  void unfold(ValueId constant, int64_t per_direction) {
    const std::vector<std::string> names = namesOf(unfolding_.foldOf(constant));
    if (names.empty()) return;
    Graph& graph = unfolding_.graph();
    const Shape shape = graph.shape(constant);
    const size_t rank = per_direction == 2 ? 2 : 3;
    if (shape.size() != rank || std::ssize(names) != shape[0] * per_direction) return;
    const int64_t rows = shape[1] / per_direction, gates = std::ssize(gates_);
    if (rows == 0 || rows * per_direction != shape[1] || rows % gates != 0) return;
    const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph, constant);
    if (!bytes) return;
    std::vector<ValueId> parameters;
    for (size_t i = 0; i < names.size(); ++i)
      parameters.push_back(addParameter(names[i], constant, *bytes, static_cast<int64_t>(i) * rows, rows));
    graph.initializers.erase(constant);
    unfolding_.addBefore(node_, [&](ReplacementWriter& writer) {
      write(writer, parameters, constant, per_direction, rows / gates);
    });
  }

  // In the call's order, which is the operator's; nothing unless all can be made.
  std::vector<std::string> namesOf(const Fold& fold) const {
    std::vector<std::string> names = unfolding_.mentioned(exportedCall(unfolding_.graph().nodes[node_]));
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::find(fold.parameters, name) == fold.parameters.end();
    });
    const bool all_free =
        std::ranges::all_of(names, [&](const std::string& name) { return unfolding_.isFree(name); });
    return all_free && names.size() == fold.parameters.size() ? names : std::vector<std::string>();
  }

  // Rows first to first + rows, gate by gate as PyTorch has them.
  ValueId addParameter(const std::string& name, ValueId constant, const std::vector<std::byte>& bytes,
                       int64_t first, int64_t rows) {
    const Graph& graph = unfolding_.graph();
    Shape shape = graph.shape(constant);
    shape.erase(shape.begin());
    shape[0] = rows;
    const DataType type = graph.dataType(constant);
    const auto row_bytes = static_cast<int64_t>(byteCount(type, shape)) / rows;
    const int64_t of_gate = rows / std::ssize(gates_);
    std::vector<std::byte> own;
    for (const int64_t place : gates_) {
      const auto begin = bytes.begin() + (first + place * of_gate) * row_bytes;
      own.insert(own.end(), begin, begin + of_gate * row_bytes);
    }
    return unfolding_.addParameter(name, type, shape, Constant{type, shape, std::move(own)});
  }

  // What the module does at every call.
  void write(ReplacementWriter& writer, const std::vector<ValueId>& parameters, ValueId constant,
             int64_t per_direction, int64_t of_gate) {
    const DataType type = unfolding_.graph().dataType(constant);
    const std::map<std::string, Attribute> along_rows = {{"axis", int64_t{0}}};
    const auto joined = [&](std::vector<ValueId> parts) {
      return parts.size() == 1 ? parts[0] : writer.add("Concat", std::move(parts), type, along_rows);
    };
    std::vector<ValueId> directions;
    for (size_t i = 0; i < parameters.size(); i += per_direction) {
      std::vector<ValueId> parts;
      for (int64_t k = 0; k < per_direction; ++k)
        parts.push_back(joined(inOnnxOrder(writer, parameters[i + k], type, of_gate)));
      directions.push_back(joined(std::move(parts)));
    }
    const ValueId first_axis = writer.integers({0});
    if (directions.size() == 1) return writer.addTo(constant, "Unsqueeze", {directions[0], first_axis});
    for (ValueId& direction : directions) direction = writer.add("Unsqueeze", {direction, first_axis}, type);
    writer.addTo(constant, "Concat", std::move(directions), along_rows);
  }

  std::vector<ValueId> inOnnxOrder(ReplacementWriter& writer, ValueId parameter, DataType type,
                                   int64_t of_gate) const {
    if (gates_.size() == 1) return {parameter};
    std::vector<ValueId> slices(gates_.size());
    for (size_t gate = 0; gate < gates_.size(); ++gate) {
      const int64_t begin = static_cast<int64_t>(gate) * of_gate;
      slices[gates_[gate]] = writer.add(
          "Slice",
          {parameter, writer.integers({begin}), writer.integers({begin + of_gate}), writer.integers({0})},
          type);
    }
    return slices;
  }

  Unfolding& unfolding_;
  size_t node_;
  std::vector<int64_t> gates_;
};

// Calls of one layer. Equal biases alone (zeros) make none.
bool haveSameWeights(const Node& a, const Node& b) {
  return a.inputs.size() > kRecurrentWeights && b.inputs.size() > kRecurrentWeights &&
         a.inputs[kWeights] == b.inputs[kWeights] &&
         a.inputs[kRecurrentWeights] == b.inputs[kRecurrentWeights];
}

}  // namespace

void unfoldRecurrence(Unfolding& unfolding, size_t node) { Recurrence(unfolding, node).unfold(); }

bool isRecurrence(const Node& node) { return !placesOfGates(node).empty(); }

std::map<ValueId, std::string> recurrentWeights(const Graph& graph) {
  std::map<ValueId, const Node*> readers;  // the first ones
  std::set<ValueId> others;
  std::vector<std::string> captured;
  for (const Node& node : graph.nodes) {
    collectCaptures(node, captured);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (!id.valid() || !graph.initializers.contains(id)) continue;
      const bool holds_weight = isRecurrence(node) && i >= kWeights && i <= kBiases;
      const Node& first = *readers.try_emplace(id, &node).first->second;
      if (!holds_weight || !haveSameWeights(first, node)) others.insert(id);
    }
  }
  std::map<ValueId, std::string> modules;
  for (const auto& [id, reader] : readers) {
    if (others.contains(id) || std::ranges::find(captured, graph.value(id).name) != captured.end()) continue;
    const std::vector<ModuleScope> scopes = moduleScopes(*reader);
    modules.emplace(id, scopes.empty() ? "" : scopes.back().path);
  }
  return modules;
}

}  // namespace pipeshard
