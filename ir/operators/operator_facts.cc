#include "ir/operators/operator_facts.h"

#include <functional>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/operators/operator_table.h"

namespace pipeshard {
namespace {

struct Key {
  std::string_view domain;
  std::string_view op_type;
  friend bool operator==(const Key&, const Key&) = default;
};

// Domains hardly share names.
struct KeyHash {
  size_t operator()(const Key& key) const { return std::hash<std::string_view>()(key.op_type); }
};

using Rows = std::unordered_map<Key, const OperatorFacts*, KeyHash>;

Rows makeRows() {
  Rows rows;
  for (const OperatorFacts& facts : operatorTable()) {
    const bool fresh = rows.emplace(Key{facts.domain, facts.op_type}, &facts).second;
    PIPESHARD_CHECK(fresh, "two rows for {}::{}", facts.domain, facts.op_type);
  }
  return rows;
}

}  // namespace

const OperatorFacts& operatorFacts(std::string_view domain, std::string_view op_type) {
  static const Rows kRows = makeRows();
  static constexpr OperatorFacts kUnknown;
  const auto found = kRows.find({domain, op_type});
  return found == kRows.end() ? kUnknown : *found->second;
}

bool swapsLastTwoAxes(const Graph& graph, const Node& node) {
  if (operatorFacts(node).view != View::kOtherOrder) return false;
  if (node.inputs.size() != 1 || !graph.value(node.inputs[0]).shape) return false;
  const size_t rank = graph.shape(node.inputs[0]).size();
  if (rank < 2) return false;
  std::vector<int64_t> swapped(rank);
  std::iota(swapped.begin(), swapped.end(), 0);
  std::swap(swapped[rank - 2], swapped[rank - 1]);
  const std::vector<int64_t> permutation = node.intsAttribute("perm");
  return permutation == swapped || (permutation.empty() && rank == 2);
}

}  // namespace pipeshard
