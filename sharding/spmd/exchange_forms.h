// Operators along an axis that must be whole, run on devices that hold parts of it: the operator is replaced
// by nodes that exchange what they must (maxima and sums of a softmax, moments of a normalisation), or that
// know which part they hold (a gather from a part of a vocabulary gives zeros for the rest: a partial sum).
//
//   Softmax of x[8,6] along axis 1, "R,S0" on mesh [2], on each device:
//     max = AllReduce(ReduceMax(x)) {max};  e = Exp(x - max);  y = e / AllReduce(ReduceSum(e))
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/specs/node_emitter.h"
#include "sharding/specs/resharding_emit.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

// What a cut along `factor` of this operator gives and needs.
struct ExchangeForm {
  // by output position: a partial sum where the output lacks the factor; missing: no
  std::vector<bool> partial_outputs;
};
// nullptr: the operator cannot be cut there in this way. Ask for every factor that is not parallel and no
// plain sum: beside whole factors forms take maxima and minima (exchanged at once: there are no partial
// maxima), and means that are divided by what the labels weigh.
const ExchangeForm* exchangeForm(const Graph& graph, const Node& node, const FactorRule& rule, int factor);

// One device's nodes for a node whose strategy cuts factors that need an exchange form, perhaps beside others
// that need none. `inputs` are the local tensors in the strategy's specs, in the local graph; returns the
// local outputs in the strategy's specs, by output position: nothing is left to be done to them (a mean is
// scaled). All devices get the same nodes up to shapes and constants. A factor that several mesh axes cut is
// exchanged over each in turn.
struct ExchangeContext {
  const Graph& whole;  // where the node is
  const LogicalMesh& mesh;
  DeviceId device;
  const MeshGroups& groups;
  // one for the whole local graph: nodes share what they need alike (moments of one tensor)
  EmittedValues* emitted;
};
std::vector<ValueId> emitExchangeForm(GraphBuilder& builder, const ExchangeContext& context, const Node& node,
                                      const Strategy& strategy, const std::vector<ValueId>& inputs);

}  // namespace pipeshard
