#include "planning/programs/batch_losses.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

namespace pipeshard {
namespace {

constexpr std::array<int, 2> kParts = {2, 3};  // of the two batches that are compared
constexpr double kNear = 1e-2;

// What the terms of a value are to a part's share of the batch.
enum Terms : unsigned {
  kPerRow = 1,   // a sum over the part's rows
  kShared = 2,   // likewise, times the share
  kWithout = 4,  // times the share, without any row
  kUnclear = 8,  // in another way
};

class TermsOfLoss {
 public:
  TermsOfLoss(const TrainingGraph& few, const TrainingGraph& many) : few_(few), many_(many) {
    terms_.resize(few.graph.values.size(), 0);
    has_rows_.resize(few.graph.values.size(), false);
  }

  // Nothing where the graphs differ in more than constants.
  std::optional<unsigned> find() {
    const std::vector<Node>&nodes = few_.graph.nodes, &others = many_.graph.nodes;
    if (!few_.totals.empty() || !many_.totals.empty() || nodes.size() != others.size()) return std::nullopt;
    for (const BatchInput& input : few_.inputs) has_rows_[input.value.index()] = input.axis >= 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const bool alike = nodes[i].op_type == others[i].op_type && nodes[i].domain == others[i].domain &&
                         nodes[i].inputs.size() == others[i].inputs.size();
      if (!alike) return std::nullopt;
      take(nodes[i], others[i]);
    }
    const size_t loss = few_.loss.index();
    return terms_[loss] == 0 && has_rows_[loss] ? kPerRow : terms_[loss];
  }

 private:
  void take(const Node& node, const Node& other) {
    bool has_rows = false;
    constexpr std::array<const char*, 5> kJoining = {"Add", "Sub", "Sum", "Mean", "Concat"};
    const bool joins = std::any_of(kJoining.begin(), kJoining.end(), [&](auto op) { return node.is(op); });
    unsigned terms = joins ? termsOfSum(node) : 0;
    size_t differing = 0;
    std::optional<double> growth;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!input.valid()) continue;
      has_rows = has_rows || has_rows_[input.index()];
      terms |= terms_[input.index()];
      const Constant* few = few_.graph.constant(input);
      const Constant* many = other.inputs[i].valid() ? many_.graph.constant(other.inputs[i]) : nullptr;
      if (few == nullptr || many == nullptr || *few == *many) continue;
      ++differing;
      growth = growthOf(*few, *many);
      if (growth && node.is("Div") && i == 1) growth = 1 / *growth;
    }
    if (differing > 0) {
      constexpr double kSmaller = static_cast<double>(kParts[0]) / kParts[1];
      const bool scales = differing == 1 && (node.is("Mul") || node.is("Div"));
      const bool shares = scales && growth && std::abs(*growth / kSmaller - 1) < kNear;
      terms = !shares || terms != 0 ? kUnclear : has_rows ? kShared : kWithout;
    }
    for (const ValueId output : node.outputs) {
      if (!output.valid()) continue;
      has_rows_[output.index()] = has_rows;
      terms_[output.index()] = terms;
    }
  }

  // Beside terms with a share, those without one are sums over rows.
  unsigned termsOfSum(const Node& node) const {
    unsigned terms = 0;
    bool has_plain = false;
    for (const ValueId input : node.inputs) {
      if (!input.valid()) continue;
      terms |= terms_[input.index()];
      has_plain = has_plain || (terms_[input.index()] == 0 && has_rows_[input.index()]);
    }
    return terms != 0 && has_plain ? terms | kPerRow : terms;
  }

  // many / few, where that is one number for all elements, as far as half precision has it.
  static std::optional<double> growthOf(const Constant& few, const Constant& many) {
    const std::vector<double> a = numericElements(few), b = numericElements(many);
    if (a.size() != b.size() || a.empty() || a[0] == 0) return std::nullopt;
    const double growth = b[0] / a[0];
    for (size_t i = 1; i < a.size(); ++i) {
      if (std::abs(b[i] - growth * a[i]) > kNear * std::abs(b[i])) return std::nullopt;
    }
    return growth;
  }

  const TrainingGraph &few_, &many_;
  std::vector<unsigned> terms_;  // by value index; 0: none has a share so far
  std::vector<bool> has_rows_;   // likewise: it depends on the rows
};

}  // namespace

BatchLosses lossesOfBatches(const std::function<TrainingGraph(int n)>& part) {
  const TrainingGraph few = part(kParts[0]), many = part(kParts[1]);
  const std::optional<unsigned> terms = TermsOfLoss(few, many).find();
  if (!terms || (*terms & kUnclear) != 0) return {false, false};
  const bool per_row = (*terms & kPerRow) != 0, shared = (*terms & kShared) != 0;
  if (!per_row) return {false, shared};
  return {!shared, *terms == kPerRow};
}

}  // namespace pipeshard
