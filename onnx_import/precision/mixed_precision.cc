// One walk over the nodes in order. Every value has its type when a node that reads it is looked at; a node
// that needs an input in the other type reads a Cast of it, made at its first use and shared.
#include "onnx_import/precision/mixed_precision.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

// The largest finite number: (2 - 2^-7) 2^127, (2 - 2^-10) 2^15.
double largestOf(DataType narrow) { return narrow == DataType::kBfloat16 ? 3.3895313892515355e38 : 65504; }

enum class ComputesIn : uint8_t { kNarrow, kFloat32, kWhatItReads };

ComputesIn computesIn(const Node& node) {
  const OperatorFacts& facts = operatorFacts(node);
  if (facts.op_type.empty()) return ComputesIn::kFloat32;  // nobody knows it
  switch (facts.mixed) {
    case MixedPrecision::kNarrow: return ComputesIn::kNarrow;
    case MixedPrecision::kFloat32: return ComputesIn::kFloat32;
    case MixedPrecision::kByWork: break;
  }
  switch (facts.work) {
    case WorkClass::kContraction:
    case WorkClass::kConvolution:
    case WorkClass::kElementwise: return ComputesIn::kNarrow;
    case WorkClass::kMovement: return ComputesIn::kWhatItReads;
    case WorkClass::kReduction: break;
  }
  return ComputesIn::kFloat32;
}

// "MatMul", "pipeshard::Attention"
std::string typeName(const Node& node) {
  return node.domain.empty() ? node.op_type : fmt::format("{}::{}", node.domain, node.op_type);
}

bool isCast(const Node& node) { return node.is("Cast") || node.is("CastLike"); }

class Mixer {
 public:
  Mixer(Graph& graph, DataType narrow, const std::vector<std::string>& keep_float32)
      : graph_(graph), builder_(graph), narrow_(narrow) {
    for (size_t i = 0; i < graph.values.size(); ++i) {
      if (graph.values[i].data_type == narrow) given_narrow_.insert(ValueId(i));
    }
    findActivations();
    findKept(keep_float32);
    findLossWork();
    findNarrowReads();
  }

  MixedNodes run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : nodes) {
      place(node);
      graph_.nodes.push_back(std::move(node));
      restoreOutputs(graph_.nodes.size() - 1);
    }
    return count_;
  }

 private:
  bool isFloat32(ValueId value) const {
    return value.valid() && graph_.dataType(value) == DataType::kFloat32;
  }
  bool isNarrow(ValueId value) const { return value.valid() && graph_.dataType(value) == narrow_; }
  bool isActivation(ValueId value) const {
    return value.valid() && reads_input_[value.index()] && reads_weight_[value.index()];
  }

  void findActivations() {
    reads_input_.resize(graph_.values.size());
    reads_weight_.resize(graph_.values.size());
    const std::vector<InitializerRole> roles = initializerRoles(graph_);
    for (const ValueId input : graph_.inputs) reads_input_[input.index()] = true;
    for (const auto& [id, initializer] : graph_.initializers) {
      reads_input_[id.index()] = false;
      is_weight_.resize(graph_.values.size());
      is_weight_[id.index()] =
          roles[id.index()] == InitializerRole::kParameter || roles[id.index()] == InitializerRole::kFrozen;
      reads_weight_[id.index()] = is_weight_[id.index()];
    }
    is_weight_.resize(graph_.values.size());
    for (const Node& node : graph_.nodes) {
      bool input = false, weight = false;
      for (const ValueId read : node.inputs) {
        if (!read.valid()) continue;
        input = input || reads_input_[read.index()];
        weight = weight || reads_weight_[read.index()];
      }
      for (const ValueId output : node.outputs) {
        if (!output.valid()) continue;
        reads_input_[output.index()] = input;
        reads_weight_[output.index()] = weight;
      }
    }
  }

  bool worksOnActivations(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId output) { return isActivation(output); });
  }
  bool givesFloats(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId output) { return isFloat32(output); });
  }

  // Which no other node has; others may be left out.
  static ValueId firstOutput(const Node& node) {
    const auto first =
        std::find_if(node.outputs.begin(), node.outputs.end(), [](ValueId output) { return output.valid(); });
    return first == node.outputs.end() ? ValueId() : *first;
  }
  // By its first output.
  ComputesIn typeOf(const Node& node) const {
    const ValueId output = firstOutput(node);
    return kept_.contains(output) || loss_work_.contains(output) ? ComputesIn::kFloat32 : computesIn(node);
  }

  void findKept(const std::vector<std::string>& expressions) {
    for (const std::string& expression : expressions) {
      const NamePattern pattern(fmt::format("--keep-float32 '{}'", expression), expression);
      bool found = false;
      for (const Node& node : graph_.nodes) {
        if (!worksOnActivations(node) || !givesFloats(node)) continue;
        const bool named = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
          return output.valid() && pattern.isFoundIn(graph_.value(output).name);
        });
        if (!named && !pattern.isFoundIn(typeName(node)) && !pattern.isFoundIn(node.name)) continue;
        kept_.insert(firstOutput(node));
        found = true;
      }
      if (!found) {
        fail(ErrorCode::kUsage,
             "--keep-float32 '{}' is found in no operator that works on activations: neither in its type "
             "(\"MatMul\"), nor in its name, nor in its output's; `inspect --precision {}` lists the types",
             expression, dataTypeName(narrow_));
      }
    }
  }

  // By value: a product, a convolution, a normalisation or a pool reads it, or what is made of it.
  std::vector<bool> readByProducts() const {
    std::vector<bool> read(graph_.values.size());
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const OperatorFacts& facts = operatorFacts(node);
      const bool is_product = facts.op_type.empty() || (computesIn(node) == ComputesIn::kNarrow &&
                                                        facts.work != WorkClass::kElementwise);
      const bool reaches = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
        return output.valid() && read[output.index()];
      });
      if (!is_product && !reaches) continue;
      for (const ValueId input : node.inputs) {
        if (input.valid()) read[input.index()] = true;
      }
    }
    return read;
  }

  // Elementwise work on what float32 operators give, from which only results are reached: terms of a loss are
  // weighed and added up. `of_losses`, by value: such an operator, or a float32 one, gives it.
  void findLossWork() {
    const std::vector<bool> read_by_products = readByProducts();
    std::vector<bool> of_losses(graph_.values.size());
    for (const Node& node : graph_.nodes) {
      if (!worksOnActivations(node) || !givesFloats(node)) continue;
      size_t activations = 0, losses = 0;
      for (const ValueId input : node.inputs) {
        if (!isActivation(input) || !isFloat32(input)) continue;
        ++activations;
        losses += of_losses[input.index()] ? 1 : 0;
      }
      const ComputesIn type = isCast(node) ? ComputesIn::kWhatItReads : computesIn(node);
      const bool is_work =
          type == ComputesIn::kNarrow && losses > 0 && operatorFacts(node).work == WorkClass::kElementwise &&
          std::none_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId output) { return output.valid() && read_by_products[output.index()]; });
      if (is_work) loss_work_.insert(firstOutput(node));
      const bool moves = type == ComputesIn::kWhatItReads && losses > 0 && losses == activations;
      if (!is_work && !moves && type != ComputesIn::kFloat32) continue;
      for (const ValueId output : node.outputs) {
        if (isFloat32(output)) of_losses[output.index()] = true;
      }
    }
  }

  // A weight that reaches its products through views alone is rounded before them, so that a product still
  // sees what it may read transposed.
  void findNarrowReads() {
    narrow_reads_.assign(graph_.values.size(), true);
    std::vector<bool> is_read(graph_.values.size());
    for (const ValueId output : graph_.outputs) narrow_reads_[output.index()] = false;
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i].valid()) continue;
        is_read[node.inputs[i].index()] = true;
        const bool viewed = i == 0 && operatorFacts(node).view != View::kNone;
        const ValueId output = firstOutput(node);
        const bool reads_narrow = viewed && !isActivation(output)
                                      ? narrow_reads_[output.index()] && is_read[output.index()]
                                      : typeOf(node) == ComputesIn::kNarrow && isActivation(output) &&
                                            !isCast(node) && !operatorFacts(node).own_types.contains(i);
        if (!reads_narrow) narrow_reads_[node.inputs[i].index()] = false;
      }
    }
  }

  // Types of the node's inputs and outputs.
  void place(Node& node) {
    if (isCast(node)) return placeCast(node);
    const bool gives_floats = givesFloats(node);
    if (!worksOnActivations(node)) {
      if (gives_floats) ++count_.all.apart;
      return placeOther(node);
    }
    const ComputesIn type = typeOf(node);
    OperatorTypes& types = count_.operators[typeName(node)];
    const bool reads_narrow =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return isNarrow(input); });
    const bool moves_narrow = type == ComputesIn::kWhatItReads && reads_narrow;
    if (gives_floats && (type == ComputesIn::kNarrow || moves_narrow)) {
      useNarrow(node, moves_narrow ? node.outputs.size() : 1);
      ++types.narrow;
      ++count_.all.narrow;
    } else {
      useFloat32(node);
      if (!gives_floats) return;
      ++types.float32;
      ++count_.all.float32;
      const ValueId output = firstOutput(node);
      const bool anyway = computesIn(node) == ComputesIn::kFloat32 || loss_work_.contains(output);
      if (kept_.contains(output) && !anyway) ++count_.kept;
    }
  }

  // A cast that the model has gives what it says, of whatever it reads.
  void placeCast(Node& node) {
    if (node.is("CastLike")) useFloat32(node);
  }

  // Weights on their way, and what is computed without any.
  void placeOther(Node& node) {
    const bool narrows = operatorFacts(node).view != View::kNone && reads_weight_[node.outputs[0].index()] &&
                         isFloat32(node.outputs[0]) && narrow_reads_[node.outputs[0].index()];
    if (narrows) {
      node.inputs[0] = narrowed(node.inputs[0], node);
      graph_.value(node.outputs[0]).data_type = narrow_;
    } else {
      useFloat32(node);
    }
  }

  // The first `outputs` of the node become narrow, and the inputs that share their type.
  void useNarrow(Node& node, size_t outputs) {
    const OperatorFacts& facts = operatorFacts(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!isFloat32(node.inputs[i]) || facts.float32_inputs.contains(i) || facts.own_types.contains(i))
        continue;
      node.inputs[i] = narrowed(node.inputs[i], node);
    }
    for (size_t i = 0; i < std::min(outputs, node.outputs.size()); ++i) {
      if (isFloat32(node.outputs[i])) graph_.value(node.outputs[i]).data_type = narrow_;
    }
  }

  void useFloat32(Node& node) {
    for (ValueId& input : node.inputs) {
      if (!isNarrow(input) || !was_float32_.contains(input)) continue;
      const auto [found, fresh] = wide_.try_emplace(input);
      if (fresh) found->second = cast(input, DataType::kFloat32, "float32", node);
      input = found->second;
    }
  }

  // Every reader of a weight has a Cast of its own: it may be of another stage.
  ValueId narrowed(ValueId value, const Node& reader) {
    if (is_weight_[value.index()]) return narrowCast(value, reader);
    const auto [found, fresh] = narrow_copies_.try_emplace(value);
    if (!fresh) return found->second;
    const Constant* constant = graph_.constant(value);
    if (constant != nullptr) {
      found->second = builder_.addConstant(nameOf(value, dataTypeName(narrow_)), rounded(*constant));
      markMade(graph_.value(found->second));
      grow();
      return found->second;
    }
    const ValueId made = narrowCast(
        isActivation(value) || reads_weight_[value.index()] ? value : withinRange(value, reader), reader);
    narrow_copies_[value] = made;
    return made;
  }

  ValueId narrowCast(ValueId value, const Node& reader) {
    const ValueId made = cast(value, narrow_, dataTypeName(narrow_), reader);
    was_float32_.insert(made);
    return made;
  }

  Constant rounded(const Constant& constant) const {
    const double largest = largestOf(narrow_);
    std::vector<double> numbers = numericElements(constant);
    for (double& number : numbers) {
      if (std::isfinite(number)) number = std::clamp(number, -largest, largest);
    }
    Constant result{narrow_, constant.shape, std::vector<std::byte>(byteCount(narrow_, constant.shape))};
    convertElements(DataType::kFloat64, numbers.data(), narrow_, result.bytes.data(), numbers.size());
    return result;
  }

  // What is finite becomes a number that the narrow type can hold.
  ValueId withinRange(ValueId value, const Node& reader) {
    if (!least_.valid()) {
      const auto limit = [&](const char* name, double number) {
        return builder_.addConstant(fmt::format("{}/{}", dataTypeName(narrow_), name),
                                    makeScalar(DataType::kFloat32, number));
      };
      least_ = limit("least", -largestOf(narrow_));
      most_ = limit("most", largestOf(narrow_));
      for (const ValueId limit : {least_, most_}) markMade(graph_.value(limit));
    }
    // An infinity of the data stays one: the step is not a number, as in float32.
    const ValueId infinite = add("IsInf", value, {value}, {}, DataType::kBool, "infinite", reader);
    const ValueId within =
        add("Clip", value, {value, least_, most_}, {}, DataType::kFloat32, "within", reader);
    return add("Where", value, {infinite, value, within}, {}, DataType::kFloat32, "clipped", reader);
  }

  ValueId cast(ValueId value, DataType type, std::string_view suffix, const Node& reader) {
    ++(is_weight_[value.index()] ? count_.weight_casts : count_.casts);
    return add("Cast", value, {value}, {{"to", static_cast<int64_t>(type)}}, type, suffix, reader);
  }

  std::string nameOf(ValueId value, std::string_view suffix) const {
    return fmt::format("{}/{}", graph_.value(value).name, suffix);
  }

  // A node with the place of its reader in the module, and an output with the shape of `from`.
  ValueId add(std::string_view op_type, ValueId from, std::vector<ValueId> inputs,
              std::map<std::string, Attribute> attributes, DataType type, std::string_view suffix,
              const Node& reader) {
    const ValueId output = builder_.addValue(nameOf(from, suffix), type, graph_.shape(from));
    graph_.value(output).symbols = graph_.value(from).symbols;
    const NodeId id = builder_.addNode("", op_type, std::move(inputs), {output}, std::move(attributes));
    graph_.node(id).name = graph_.value(output).name;
    graph_.node(id).metadata = reader.metadata;
    grow();
    reads_input_[output.index()] = reads_input_[from.index()];
    reads_weight_[output.index()] = reads_weight_[from.index()];
    return output;
  }

  void grow() {
    reads_input_.resize(graph_.values.size());
    reads_weight_.resize(graph_.values.size());
    is_weight_.resize(graph_.values.size());
  }

  // An output of the graph that has become narrow: what is narrow gets another name, a Cast gives the old
  // one.
  void restoreOutputs(size_t n) {
    for (size_t i = 0; i < graph_.nodes[n].outputs.size(); ++i) {
      const ValueId output = graph_.nodes[n].outputs[i];
      if (!isNarrow(output) || given_narrow_.contains(output)) continue;
      was_float32_.insert(output);
      if (std::find(graph_.outputs.begin(), graph_.outputs.end(), output) == graph_.outputs.end()) continue;
      const ValueId inner =
          builder_.addValue(nameOf(output, dataTypeName(narrow_)), narrow_, graph_.shape(output));
      grow();
      reads_input_[inner.index()] = reads_input_[output.index()];
      reads_weight_[inner.index()] = reads_weight_[output.index()];
      was_float32_.insert(inner);
      graph_.value(output).data_type = DataType::kFloat32;
      graph_.nodes[n].outputs[i] = inner;
      const NodeId id =
          builder_.addNode("", "Cast", {inner}, {output}, {{"to", static_cast<int64_t>(DataType::kFloat32)}});
      graph_.node(id).name = graph_.value(output).name + "/float32";
      graph_.node(id).metadata = graph_.nodes[n].metadata;
      narrow_copies_[output] = inner;
      ++count_.casts;
    }
  }

  Graph& graph_;
  GraphBuilder builder_;
  DataType narrow_;
  MixedNodes count_;
  std::vector<bool> reads_input_, reads_weight_, is_weight_;  // by value index
  std::set<ValueId> kept_;          // first outputs of operators that the user keeps in float32
  std::set<ValueId> loss_work_;     // of elementwise work on losses
  std::vector<bool> narrow_reads_;  // all who read it, through views, compute in the narrow type
  std::set<ValueId> given_narrow_;  // of the narrow type in the model (torch.autocast): it stays so
  std::set<ValueId> was_float32_;   // of the narrow type, and not because the model says so
  std::map<ValueId, ValueId> narrow_copies_, wide_;
  ValueId least_, most_;
};

}  // namespace

MixedNodes mixPrecision(Graph& graph, DataType narrow, const std::vector<std::string>& keep_float32) {
  if (!isHalf(narrow))
    fail(ErrorCode::kUsage, "precision {} is not supported; use bfloat16 or float16", dataTypeName(narrow));
  Mixer mixer(graph, narrow, keep_float32);
  const MixedNodes nodes = mixer.run();
  verifyGraph(graph);
  return nodes;
}

std::string mixedNodesToString(const MixedNodes& nodes, DataType narrow) {
  const std::string kept = nodes.kept == 0 ? "" : fmt::format(", {} of them by --keep-float32", nodes.kept);
  return fmt::format(
      "{}: {} operators compute in it and {} in float32 (softmaxes, losses, sums, powers{}); parameters, "
      "sums "
      "of gradients and the update stay float32",
      dataTypeName(narrow), nodes.all.narrow, nodes.all.float32, kept);
}

}  // namespace pipeshard
