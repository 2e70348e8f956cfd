// Operators along an axis that must be whole, run on devices that hold parts of it: the operator is replaced by nodes that exchange what
// they must (maxima and sums of a softmax, moments of a normalisation), or that know which part they hold (a gather from a part of a
// vocabulary gives zeros for the rest: a partial sum).
#pragma once

#include <vector>

#include "ir/graph.h"
#include "sharding/resharding.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/strategy.h"

namespace pipeshard {

// What a cut along `factor` of this operator gives and needs.
struct ExchangeForm {
  std::vector<bool> partial_outputs;  // by output position: a partial sum where the output lacks the factor
};
// nullptr: the operator cannot be cut there. The factor has kind kWhole in the rule.
const ExchangeForm* exchangeForm(const Graph& graph, const Node& node, const FactorRule& rule, int factor);

// One device's nodes for a node whose strategy cuts factors that need an exchange form. `inputs` are the local tensors in the strategy's
// specs, in the local graph; returns the local outputs.
struct ExchangeContext {
  const Graph& whole;  // where the node is
  const LogicalMesh& mesh;
  int device;
  const MeshGroups& groups;
};
std::vector<ValueId> emitExchangeForm(GraphBuilder& builder, const ExchangeContext& context, const Node& node, const Strategy& strategy,
                                      const std::vector<ValueId>& inputs);

}  // namespace pipeshard
