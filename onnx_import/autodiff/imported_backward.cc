#include "onnx_import/autodiff/imported_backward.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
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

class BackwardFinder {
 public:
  explicit BackwardFinder(Graph& graph) : graph_(graph) {
    for (const auto& [id, initializer] : graph.initializers) {
      if (isFloatingPoint(graph.dataType(id))) weights_.emplace(wordsOf(graph.value(id).name), id);
    }
    for (ValueId id : graph.inputs) inputs_.insert(wordsOf(graph.value(id).name));
  }

  ImportedBackward take() {
    ImportedBackward found;
    std::vector<ValueId> rest;
    std::set<ValueId> trained;
    for (ValueId output : graph_.outputs) {
      const std::optional<ValueId> weight = weightOf(output);
      if (!weight) {
        rest.push_back(output);
        continue;
      }
      found.gradients.push_back({graph_.value(*weight).name, graph_.value(output).name});
      trained.insert(*weight);
    }
    if (found.gradients.empty()) return found;
    const size_t operators = graph_.nodes.size();
    graph_.outputs = std::move(rest);
    for (ValueId id : trainableParameters(graph_)) {
      if (!trained.contains(id)) graph_.value(id).metadata.emplace_back(kTrainedMark, "no");
    }
    for (ValueId id : trained) graph_.value(id).metadata.emplace_back(kTrainedMark, "yes");
    removeDeadCode(graph_);
    found.operators = operators - graph_.nodes.size();
    omitUnreadOutputs();
    return found;
  }

 private:
  // The weight that the output is a gradient of.
  std::optional<ValueId> weightOf(ValueId output) const {
    const Value& value = graph_.value(output);
    const auto of = differentiated(value.name);
    if (!of || !isFloatingPoint(value.data_type) || inputs_.contains(*of)) return std::nullopt;
    const auto weight = weights_.find(*of);
    const bool scalar = value.shape && value.shape->empty();
    if (weight == weights_.end() && scalar) return std::nullopt;  // the norm of all gradients, say
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

  static std::string shapeText(const Value& value) {
    return fmt::format(" {}{}", dataTypeName(value.data_type),
                       value.shape ? shapeToString(*value.shape) : "");
  }

  // What forward operators give to their backward ones alone.
  void omitUnreadOutputs() {
    const UseDef uses = computeUseDef(graph_);
    for (Node& node : graph_.nodes) {
      if (!operatorFacts(node).has_optional_outputs) continue;
      const auto isUnread = [&](ValueId id) {
        return !id.valid() ||
               (uses.consumers[id.index()].empty() &&
                std::find(graph_.outputs.begin(), graph_.outputs.end(), id) == graph_.outputs.end());
      };
      while (node.outputs.size() > 1 && isUnread(node.outputs.back())) node.outputs.pop_back();
    }
  }

  Graph& graph_;
  std::map<std::vector<std::string>, ValueId> weights_;
  std::set<std::vector<std::string>> inputs_;
};

}  // namespace

ImportedBackward takeBackward(Graph& graph) { return BackwardFinder(graph).take(); }

}  // namespace pipeshard
