#include "onnx_import/loss/loss_weights.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

bool isAny(const Node& node, std::initializer_list<std::string_view> kinds) {
  return node.domain.empty() && std::ranges::find(kinds, node.op_type) != kinds.end();
}

// The first input, element by element, whatever its shape.
bool showsFirst(const Node& node) {
  return operatorFacts(node).view != View::kNone || isAny(node, {"Cast", "Expand", "Identity"});
}

class LossWeights {
 public:
  explicit LossWeights(const Graph& graph) : graph_(graph), uses_(computeUseDef(graph)) {}

  // Trained by default, of several elements, and the user has not decided.
  std::vector<ValueId> candidates() const {
    const std::vector<InitializerRole> roles = initializerRoles(graph_);
    std::vector<ValueId> found;
    for (const auto& [id, initializer] : graph_.initializers) {
      const Value& value = graph_.value(id);
      if (roles[id.index()] == InitializerRole::kParameter && !trainedByUser(value) &&
          elementCount(*value.shape) > 1)
        found.push_back(id);
    }
    return found;
  }

  bool scalesDistancesOnly(ValueId weight) const {
    bool scales = false;
    for (const Reader& reader : readersOf(weight, {})) {
      const Node& node = *reader.node;
      if (!node.is("Mul") || !isDistance(node.inputs[1 - reader.input])) return false;
      if (!sumsUp(node.outputs[0], Way::kGrowing)) return false;
      scales = true;
    }
    return scales;
  }

  // Its products with something; what else reads it adds it up (the divisor of a weighted mean).
  bool weighsLoss(ValueId weight) const {
    bool weighs = false;
    for (const Reader& reader : readersOf(weight, {"Gather"})) {
      const Node& node = *reader.node;
      if (isAny(node, {"ReduceSum"})) continue;
      if (!node.is("Mul") || node.inputs[0] == node.inputs[1]) return false;
      if (!sumsUp(node.outputs[0], Way::kLinear)) return false;
      weighs = true;
    }
    return weighs;
  }

 private:
  struct Reader {
    const Node* node;
    size_t input;
  };
  enum class Way : uint8_t {
    kGrowing,  // sums, means and positive parts of them: what grows makes the result grow
    kLinear,
  };

  // Of the value, its views, and what else these operators make of it as their first input.
  std::vector<Reader> readersOf(ValueId value, std::initializer_list<std::string_view> through) const {
    std::vector<Reader> readers;
    std::vector<ValueId> forms = {value};
    for (size_t n = 0; n < forms.size(); ++n) {
      const ValueId form = forms[n];
      for (const NodeId id : uses_.consumers[form.index()]) {
        const Node& node = graph_.node(id);
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          if (node.inputs[i] != form) continue;
          if (i > 0 || !(showsFirst(node) || isAny(node, through)))
            readers.push_back({&node, i});
          else if (std::ranges::find(forms, node.outputs[0]) == forms.end())
            forms.push_back(node.outputs[0]);
        }
      }
    }
    return readers;
  }

  const Node* producerOf(ValueId value) const {
    while (value.valid() && uses_.producer[value.index()].valid()) {
      const Node& node = graph_.node(uses_.producer[value.index()]);
      if (!showsFirst(node)) return &node;
      value = node.inputs[0];
    }
    return nullptr;
  }

  // The square or the absolute value of a difference.
  bool isDistance(ValueId value) const {
    const Node* node = producerOf(value);
    if (node == nullptr) return false;
    const bool is_product = node->is("Mul") && areEqual(node->inputs[0], node->inputs[1]);
    const bool is_square = node->is("Pow") && node->inputs.size() == 2 && isTwo(node->inputs[1]);
    if (!is_product && !is_square && !node->is("Abs")) return false;
    const Node* difference = producerOf(node->inputs[0]);
    return difference != nullptr && difference->is("Sub");
  }

  // One value, or a difference that is computed twice.
  bool areEqual(ValueId a, ValueId b) const {
    if (a == b) return true;
    const Node *first = producerOf(a), *second = producerOf(b);
    return first != nullptr && second != nullptr && first->is("Sub") && second->is("Sub") &&
           first->inputs == second->inputs;
  }

  bool isTwo(ValueId value) const {
    const Constant* constant = graph_.constant(value);
    if (constant == nullptr || elementCount(graph_.shape(value)) != 1) return false;
    const std::vector<double> numbers = numericElements(*constant);
    return numbers.size() == 1 && numbers[0] == 2;
  }

  // All that reads the value adds it up, until outputs without axes.
  bool sumsUp(ValueId value, Way way) const {
    bool ends = false;
    std::vector<ValueId> open = {value};
    for (size_t n = 0; n < open.size(); ++n) {
      const ValueId at = open[n];
      if (std::ranges::find(graph_.outputs, at) != graph_.outputs.end()) {
        const Value& output = graph_.value(at);
        if (!output.shape || !output.shape->empty()) return false;
        ends = true;
      }
      for (const NodeId id : uses_.consumers[at.index()]) {
        const Node& node = graph_.node(id);
        if (!keepsLinear(node, at, way)) return false;
        if (std::ranges::find(open, node.outputs[0]) == open.end()) open.push_back(node.outputs[0]);
      }
    }
    return ends;
  }

  static bool keepsLinear(const Node& node, ValueId value, Way way) {
    const auto reads = [&](size_t input) {
      return input < node.inputs.size() && node.inputs[input] == value;
    };
    const bool first_alone = reads(0) && std::ranges::count(node.inputs, value) == 1;
    if (isAny(node, {"Add", "Sum"})) return true;
    if (showsFirst(node) || isAny(node, {"ReduceSum", "ReduceMean", "Div", "Sub"})) return first_alone;
    if (way == Way::kGrowing || std::ranges::count(node.inputs, value) != 1) return false;
    if (isAny(node, {"Mul", "Neg", "Sub"})) return true;
    if (isAny(node, {"Where"})) return !reads(0);
    return isAny(node, {"Gather", "GatherElements", "GatherND"}) && reads(0);
  }

  const Graph& graph_;
  UseDef uses_;
};

}  // namespace

void takeLossWeights(Graph& graph) {
  if (tellsParameters(graph)) return;
  const LossWeights weights(graph);
  std::vector<ValueId> taken = weights.candidates();
  std::erase_if(taken, [&](ValueId id) { return !weights.scalesDistancesOnly(id); });
  for (const ValueId id : taken) markTakenForConstant(graph.value(id));
}

std::string likelyLossWeights(const Graph& graph) {
  constexpr size_t kMost = 12;
  if (tellsParameters(graph)) return "";
  const LossWeights weights(graph);
  std::vector<std::string> names;
  for (const ValueId id : weights.candidates()) {
    if (isOfTorchLayer(graph.value(id)) && weights.weighsLoss(id)) names.push_back(graph.value(id).name);
  }
  if (names.empty()) return "";
  return fmt::format(
      "trained, as the file does not tell buffers, though they only weigh what is summed up into an output, "
      "as the class weights of a loss do: {} (--freeze NAME_REGEX leaves them as they are)",
      listed(names, kMost));
}

}  // namespace pipeshard
