// From a node to its entry in a profile (ir/cluster/profile.h): operator and attributes as text, sizes from
// the node's factor rule; and from there to the node's time.
//
//   MatMul [2,8,16] x [16,32]   op "MatMul", rows 16 (2 * 8), columns 32, summed 16, FLOPs 16384,
//                               bytes 4 * (256 + 512 + 512)
//   Softmax [2,8,16], axis -1   op "Softmax", attributes "axis=-1", shared 16, whole 16
//   Transpose of it             attributes "perm=[0,2,1]": whole numbers and texts are part of a work,
//                               fractions (epsilon) are not
#pragma once

#include <optional>
#include <vector>

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

// `rule` is the node's factorRule. `factor_sizes` (empty: the rule's) and `work` are those of the part that
// one device does.
OperatorWork operatorWork(const Graph& graph, const Node& node, const std::optional<FactorRule>& rule,
                          const NodeWork& work, const std::vector<int64_t>& factor_sizes = {});

// Nanoseconds of a node's own work: by the model's measured operators, else by its rates. Of views: 0.
int64_t nodeTime(const CostModel& model, const Graph& graph, const Node& node,
                 const std::optional<FactorRule>& rule, const NodeWork& work,
                 const std::vector<int64_t>& factor_sizes = {});

}  // namespace pipeshard
