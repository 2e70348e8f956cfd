// The ways to run one operator on a logical mesh, derived from its factor rule (rules/factor_rule.h). Nobody
// writes a list of strategies.
//
// A strategy says for every mesh axis what it does to the operator:
//   replicate   every device along the axis does the same
//   factor f    the devices share the work along factor f. Inputs and outputs are cut where they hold f;
//               outputs that lack a factor of kind sum (or mean: scaled by the share) are partial sums. A
//               factor that must be whole can be shared too where the operator has an *exchange form*
//               (exchange_forms.h): a softmax over a cut axis exchanges maxima and sums.
//   pass k      inputs of the k-th list of linearInputs are partial sums over the axis, and so are the
//               outputs: the sum is resolved later
//
// An axis of a tensor that several factors share ([a,b] merged by a reshape) can be cut along its first
// factor only (factors of size 1 aside), and only when the devices divide that factor, or it is cut between
// the mesh's rows as the axis is: else the cut of the axis is no cut of the factor. An axis of one factor may
// be cut unevenly.
//
//   MatMul [8,16]x[16,32] on mesh [2,2], axis 0 on k, axis 1 on j:   "0:k 1:j"
//     inputs "R,S0", "S0,S1"   output "R,S1;P0"   a quarter of the FLOPs per device
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {

struct AxisUse {
  enum class Kind : uint8_t { kReplicate, kFactor, kPass };
  Kind kind = Kind::kReplicate;
  int index = -1;  // into FactorRule::factors, or into linearInputs
  friend auto operator<=>(const AxisUse&, const AxisUse&) = default;
};

struct Strategy {
  std::vector<AxisUse> uses;          // by mesh axis; empty: replicated on all
  std::vector<ShardingSpec> inputs;   // that the operator needs, by input position; absent inputs: no axes
  std::vector<ShardingSpec> outputs;  // that it gives, by output position
};

// The strategy of these uses; nullopt when the operator cannot run so (no rule, a whole factor without
// exchange form, sizes).
std::optional<Strategy> makeStrategy(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                                     const std::vector<AxisUse>& uses);

// All of them, "replicate" on every axis first, in a fixed order. An operator without a rule has that one
// only.
std::vector<Strategy> strategies(const Graph& graph, const Node& node, const LogicalMesh& mesh);

// "0:k 1:j", "0:pass0", "replicate". parse throws Error(kConfiguration) naming what was found and the node's
// factors.
std::string printUses(const Graph& graph, const Node& node, const std::vector<AxisUse>& uses);
std::vector<AxisUse> parseUses(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                               std::string_view text);

}  // namespace pipeshard
