#include "onnx_import/autodiff/imported_backward.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/parameters.h"

namespace pipeshard {
namespace {

// In words: "grad_fc.weight" and "fc/weight:grad" have the words fc and weight beside that for a gradient.
std::vector<std::string> wordsOf(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c != '.' && c != '_' && c != '/' && c != ':') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// What the name is the gradient of.
std::optional<std::vector<std::string>> differentiated(std::string_view name) {
  static const std::set<std::string> kGradientWords = {"grad", "gradient"};
  std::vector<std::string> words = wordsOf(name);
  if (words.size() < 2) return std::nullopt;
  if (kGradientWords.contains(words.front())) return std::vector(words.begin() + 1, words.end());
  if (!kGradientWords.contains(words.back())) return std::nullopt;
  words.pop_back();
  return words;
}

bool disagree(const Value& a, const Value& b) {
  if (a.data_type != DataType::kUndefined && a.data_type != b.data_type) return true;
  if (!a.shape || !b.shape) return false;
  if (a.shape->size() != b.shape->size()) return true;
  const auto differ = [](int64_t x, int64_t y) { return x != kUnknownSize && y != kUnknownSize && x != y; };
  return !std::equal(a.shape->begin(), a.shape->end(), b.shape->begin(),
                     [&](int64_t x, int64_t y) { return !differ(x, y); });
}

// Weights by the words of their names and by name.
class GradientNames {
 public:
  GradientNames(const Graph& graph, bool weights_are_inputs) : graph_(graph) {
    for (const auto& [id, initializer] : graph.initializers) addWeight(id);
    for (ValueId id : graph.inputs) {
      marked_.emplace(graph.value(id).name, id);
      if (weights_are_inputs) addWeight(id);
      inputs_.insert(wordsOf(graph.value(id).name));
    }
  }

  // The weight that the output is a gradient of.
  std::optional<ValueId> weightOf(ValueId output) const {
    const Value& value = graph_.value(output);
    if (const std::string_view mark = metadataOf(value.metadata, kGradientMark); !mark.empty()) {
      const auto marked = marked_.find(mark);
      if (marked != marked_.end() && !disagree(value, graph_.value(marked->second))) return marked->second;
      fail(ErrorCode::kBadModel,
           "output '{}'{} is marked as the gradient of '{}', but no weight or input of that name has its "
           "shape",
           value.name, shapeText(value), mark);
    }
    const auto of = differentiated(value.name);
    if (!of || !isFloatingPoint(value.data_type)) return std::nullopt;
    const auto weight = weights_.find(*of);
    const bool scalar = value.shape && value.shape->empty();
    if (weight == weights_.end() && (scalar || inputs_.contains(*of)))
      return std::nullopt;  // the norm of all gradients, say
    if (weight != weights_.end() && !disagree(value, graph_.value(weight->second))) return weight->second;
    fail(ErrorCode::kBadModel,
         "output '{}'{} is called a gradient, but {}. Exporters fold and transpose weights when they "
         "optimise (in PyTorch: torch.onnx.export(..., optimize=False)); or leave the gradients out: the "
         "backward pass is made anew anyway",
         value.name, shapeText(value),
         weight == weights_.end() ? "no weight or input has the rest of its name"
                                  : fmt::format("weight '{}' is{}", graph_.value(weight->second).name,
                                                shapeText(graph_.value(weight->second))));
  }

 private:
  void addWeight(ValueId id) {
    marked_.emplace(graph_.value(id).name, id);
    if (isFloatingPoint(graph_.dataType(id))) weights_.emplace(wordsOf(graph_.value(id).name), id);
  }

  static std::string shapeText(const Value& value) {
    return fmt::format(" {}{}", dataTypeName(value.data_type),
                       value.shape ? shapeToString(*value.shape) : "");
  }

  const Graph& graph_;
  std::map<std::vector<std::string>, ValueId> weights_;
  std::map<std::string, ValueId, std::less<>> marked_;
  std::set<std::vector<std::string>> inputs_;
};

// What forward operators give to their backward ones alone.
void omitGivenToBackward(Graph& graph) {
  const UseDef uses = computeUseDef(graph);
  for (Node& node : graph.nodes) {
    if (!operatorFacts(node).has_optional_outputs) continue;
    const auto isUnread = [&](ValueId id) {
      return !id.valid() ||
             (uses.consumers[id.index()].empty() &&
              std::find(graph.outputs.begin(), graph.outputs.end(), id) == graph.outputs.end());
    };
    while (node.outputs.size() > 1 && isUnread(node.outputs.back())) node.outputs.pop_back();
  }
}

}  // namespace

std::vector<ImportedGradient> namedGradients(const Graph& graph, bool weights_are_inputs) {
  const GradientNames names(graph, weights_are_inputs);
  std::vector<ImportedGradient> gradients;
  for (ValueId output : graph.outputs) {
    if (const std::optional<ValueId> weight = names.weightOf(output))
      gradients.push_back({graph.value(*weight).name, graph.value(output).name});
  }
  return gradients;
}

ImportedBackward takeBackward(Graph& graph) {
  ImportedBackward found;
  found.gradients = namedGradients(graph);
  if (found.gradients.empty()) return found;
  std::set<ValueId> trained;
  for (const ImportedGradient& gradient : found.gradients) {
    trained.insert(findValue(graph, gradient.parameter));
    std::erase(graph.outputs, findValue(graph, gradient.output));
  }
  const size_t operators = graph.nodes.size();
  for (ValueId id : trainableParameters(graph)) {
    if (!trained.contains(id)) graph.value(id).metadata.emplace_back(kTrainedMark, "no");
  }
  for (ValueId id : trained) graph.value(id).metadata.emplace_back(kTrainedMark, "yes");
  removeDeadCode(graph);
  found.operators = operators - graph.nodes.size();
  omitGivenToBackward(graph);
  return found;
}

}  // namespace pipeshard
