// An order in which nodes are eliminated, and the nodes that are better fixed than eliminated.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/model.h"
#include "sharding/solver/random.h"

namespace pipeshard::solver {

struct Ordering {
  std::vector<int32_t> order;  // nodes of the model
  std::vector<int32_t> fixed;  // of those given, the ones that the order leaves out
  int64_t work = 0;            // entries of all joint tables; saturates at kMostWork
  int64_t widest = 0;          // entries of the largest joint table; likewise

  static constexpr int64_t kMostWork = int64_t{1} << 60;
};

struct OrderingLimits {
  // of a node and its neighbours when it is eliminated; above, some node is fixed
  int64_t joint_entries = Ordering::kMostWork;
  // by the edges that elimination adds, instead of the size of tables
  bool fill = false;
  // whom to fix is drawn, with preference for many neighbours; null: the one with most
  Random* random = nullptr;
};

// Eliminates the cheapest first. Edges to nodes outside of `nodes` do not count: those are fixed.
Ordering orderNodes(const Model& model, const std::vector<int32_t>& nodes, const OrderingLimits& limits);

}  // namespace pipeshard::solver
