#include "onnx_import/forms/gradient_pairing.h"

#include <algorithm>
#include <set>

#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

// Rows: gradients, columns: parameters. What the two have in common; or:
constexpr int kUnfit = -2;    // other type or shape
constexpr int kAgainst = -1;  // something on both sides, nothing in common
using EvidenceTable = std::vector<std::vector<int>>;

using Partners = std::set<ValueId>;

// Values that something is used with, as what they show. Constants of the arithmetic tell nothing.
class PartnerFinder {
 public:
  explicit PartnerFinder(const StepGraph& step) : step_(step) {}

  // What a parameter is multiplied with, and itself; of what is added, the same of the product beside it.
  Partners ofParameter(ValueId parameter) const {
    Partners partners;
    for (ValueId shown : step_.shownAs(parameter)) {
      for (const Node* node : step_.consumers(shown)) {
        if (!isSum(*node)) {
          addOthers(*node, shown, partners);
          if (!onlyShows(*node, parameter) && !isAdded(*node, shown)) add(parameter, partners);
          continue;
        }
        for (ValueId other : node->inputs) {
          if (other == shown || !other.valid()) continue;
          const Node* product = step_.producer(step_.origin(other));
          if (product != nullptr && !isSum(*product)) addOthers(*product, shown, partners);
        }
      }
    }
    return partners;
  }

  // The forward values that a gradient is a product of, or a sum of products; and those that the other
  // factors are multiplied with elsewhere.
  Partners ofProduct(ValueId gradient) const {
    Partners partners;
    std::vector<ValueId> open = {step_.origin(gradient)};
    for (size_t i = 0; i < open.size() && i < kMostSummands; ++i) {
      const Node* node = step_.producer(open[i]);
      if (node == nullptr || step_.feedsLoss(open[i])) continue;
      const bool passes = isSum(*node) || node->op_type == "ReduceSum";
      for (ValueId input : node->inputs) {
        if (!input.valid()) continue;
        const ValueId shown = step_.origin(input);
        if (passes) {
          open.push_back(shown);
        } else if (step_.feedsLoss(shown)) {
          add(shown, partners);
        } else {
          addProductsOf(shown, partners);
        }
      }
    }
    return partners;
  }

  // What the dy is multiplied with that the gradient of a bias is the sum of.
  Partners ofSum(ValueId gradient) const {
    Partners partners;
    ValueId dy = step_.origin(gradient);
    while (const Node* node = step_.producer(dy)) {
      if (node->op_type != "ReduceSum") break;
      dy = step_.origin(node->inputs[0]);
    }
    addProductsOf(dy, partners);
    return partners;
  }

  // Whether all readers add the parameter to something.
  bool isBias(ValueId parameter) const {
    for (ValueId shown : step_.shownAs(parameter)) {
      for (const Node* node : step_.consumers(shown)) {
        if (!onlyShows(*node, parameter) && step_.feedsLoss(*node) && !isAdded(*node, shown)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kMostSummands = 64;

  static bool isSum(const Node& node) {
    return node.op_type == "Add" || node.op_type == "Sum" || node.op_type == "Sub";
  }

  static bool isAdded(const Node& node, ValueId parameter) {
    if (isSum(node)) return true;
    const bool has_bias = node.op_type == "Gemm" || node.op_type == "Conv" ||
                          node.op_type == "ConvTranspose" || node.op_type == "LayerNormalization" ||
                          node.op_type == "BatchNormalization";
    return has_bias && node.inputs.size() > 2 && node.inputs[2] == parameter;
  }

  bool onlyShows(const Node& node, ValueId value) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return id.valid() && step_.origin(id) == step_.origin(value); });
  }

  void addOthers(const Node& node, ValueId parameter, Partners& partners) const {
    if (onlyShows(node, parameter)) return;
    for (ValueId input : node.inputs) {
      if (input.valid() && input != parameter) add(step_.origin(input), partners);
    }
  }

  void addProductsOf(ValueId dy, Partners& partners) const {
    for (ValueId shown : step_.shownAs(dy)) {
      for (const Node* node : step_.consumers(shown)) {
        if (node->op_type == "MatMul" || node->op_type == "Gemm" || node->op_type == "Mul" ||
            node->op_type == "FusedMatMul")
          addOthers(*node, shown, partners);
      }
    }
  }

  void add(ValueId id, Partners& partners) const {
    if (!step_.feedsLoss(id) || isFolded(step_.value(id)) || step_.number(id)) return;
    partners.insert(id);
  }

  const StepGraph& step_;
};

int inCommon(const Partners& a, const Partners& b) {
  if (a.empty() || b.empty()) return 0;
  const auto common = std::count_if(a.begin(), a.end(), [&](ValueId id) { return b.contains(id); });
  return common == 0 ? kAgainst : static_cast<int>(common);
}

EvidenceTable weigh(const StepGraph& step, const std::vector<ValueId>& gradients,
                    const std::vector<ValueId>& parameters) {
  const PartnerFinder finder(step);
  std::vector<Partners> of_parameter;
  std::vector<bool> bias;
  for (ValueId parameter : parameters) {
    of_parameter.push_back(finder.ofParameter(parameter));
    bias.push_back(finder.isBias(parameter));
  }
  EvidenceTable table;
  for (ValueId gradient : gradients) {
    const Partners product = finder.ofProduct(gradient);
    const Partners sum = finder.ofSum(gradient);
    std::vector<int>& row = table.emplace_back();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const bool fits = step.sameType(gradient, parameters[p]);
      row.push_back(fits ? inCommon(bias[p] ? sum : product, of_parameter[p]) : kUnfit);
    }
  }
  return table;
}

// Every gradient has most in common with exactly one parameter, each with another one.
std::optional<std::vector<size_t>> byEvidence(const EvidenceTable& table) {
  std::vector<size_t> chosen;
  std::set<size_t> taken;
  for (const std::vector<int>& row : table) {
    const auto most = std::max_element(row.begin(), row.end());
    if (*most < 1 || std::count(row.begin(), row.end(), *most) != 1) return std::nullopt;
    chosen.push_back(most - row.begin());
    if (!taken.insert(chosen.back()).second) return std::nullopt;
  }
  return chosen;
}

// The pairing in order that has most in common, and whether it is the only such one. best[g][p]: of the
// gradients from g on with the parameters from p on; ways are counted up to two.
class OrderedPairing {
 public:
  OrderedPairing(const EvidenceTable& table, size_t parameters, int least)
      : table_(table), least_(least), best_(table.size() + 1, std::vector<Cell>(parameters + 1)) {
    for (Cell& cell : best_.back()) cell = {0, 1};
    for (size_t g = table.size(); g-- > 0;) {
      for (size_t p = parameters; p-- > 0;) best_[g][p] = better(best_[g][p + 1], taking(g, p));
    }
  }

  int ways() const { return best_.front().front().ways; }

  std::vector<size_t> chosen() const {
    std::vector<size_t> result;
    for (size_t g = 0, p = 0; g < table_.size(); ++p) {
      const Cell with = taking(g, p);
      if (with.ways == 0 || with.common < best_[g][p].common) continue;
      result.push_back(p);
      ++g;
    }
    return result;
  }

 private:
  struct Cell {
    int common = -1;
    int ways = 0;
  };

  Cell taking(size_t g, size_t p) const {
    Cell rest = best_[g + 1][p + 1];
    if (table_[g][p] < least_ || rest.ways == 0) return {};
    rest.common += std::max(table_[g][p], 0);
    return rest;
  }

  static Cell better(Cell a, Cell b) {
    if (a.ways == 0 || b.ways == 0) return a.ways == 0 ? b : a;
    if (a.common != b.common) return a.common > b.common ? a : b;
    return {a.common, std::min(2, a.ways + b.ways)};
  }

  const EvidenceTable& table_;
  int least_;
  std::vector<std::vector<Cell>> best_;
};

}  // namespace

GradientPairing pairGradients(const StepGraph& step, const std::vector<ValueId>& gradients,
                              const std::vector<ValueId>& parameters) {
  GradientPairing result;
  if (gradients.empty() || gradients.size() > parameters.size()) return result;
  const EvidenceTable table = weigh(step, gradients, parameters);
  std::optional<std::vector<size_t>> chosen = byEvidence(table);
  for (const int least : {0, kAgainst}) {
    if (chosen || result.found == GradientPairing::Found::kAmbiguous) break;
    const OrderedPairing ordered(table, parameters.size(), least);
    if (ordered.ways() == 1) chosen = ordered.chosen();
    if (ordered.ways() > 1) result.found = GradientPairing::Found::kAmbiguous;
  }
  if (!chosen) return result;
  result.found = GradientPairing::Found::kPaired;
  for (size_t g = 0; g < gradients.size(); ++g) {
    result.parameter.push_back(parameters[(*chosen)[g]]);
    result.confirmed += table[g][(*chosen)[g]] > 0 ? 1 : 0;
  }
  return result;
}

}  // namespace pipeshard
