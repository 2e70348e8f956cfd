// Work of single nodes: what strategyCost and countWork have in common. Internal to sharding.
#pragma once

#include <optional>

#include "ir/graph/graph.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

struct NodeWork {
  double flops = 0;
  int64_t bytes = 0;  // read and written
  WorkClass work_class = WorkClass::kElementwise;
  DataType type = DataType::kFloat32;  // the widest floating-point type that it reads or makes; without one,
                                       // what it makes
};
int64_t computeCost(const CostModel& model, const NodeWork& work);

// Of a node that is no collective; `rule` is its factorRule. Views move no data.
NodeWork nodeWork(const Graph& graph, const Node& node, const std::optional<FactorRule>& rule);

// A node that only brings a value into place (resharding, the share of a mean): its cost is that of its
// collectives.
void markPlacing(Node& node);
bool isPlacing(const Node& node);

}  // namespace pipeshard
