// A smaller model with the same optimum.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/model.h"

namespace pipeshard::solver {

// Shrinks the model without losing an optimum: labels without support or dominated by another, nodes of one
// label, nodes that another one determines, edges that say nothing, nodes without memory that join at most
// two others. Calls reduceRows. `labels`, if given, is a choice (a label of every node) that becomes one, at
// most as costly, of the reduced model; it must meet nothing forbidden.
void reduceModel(Model& model, std::vector<int32_t>* labels = nullptr);

}  // namespace pipeshard::solver
