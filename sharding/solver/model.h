// The problem as the solver works on it: pairwise, without strategies that can never be chosen, costs as
// doubles (exact below 2^53), memory as rows. Nodes that another node determines are folded into it, so a
// node has memory in several intervals.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/solver.h"

namespace pipeshard::solver {

// Memory of a node in rows [from, to), by label, less the least of them.
struct MemoryItem {
  int32_t from = 0;
  int32_t to = 0;
  std::vector<int64_t> usages;
};

struct ModelNode {
  std::vector<double> costs;  // by label; empty: the node is gone
  std::vector<MemoryItem> items;
  std::vector<int32_t> edges;    // live ones, in no order
  std::vector<int32_t> origins;  // what each label was when tracking began (trackOrigins); empty: not tracked

  int32_t size() const { return costs.size(); }
};

struct ModelEdge {
  int32_t a = -1;  // -1: the edge is gone
  int32_t b = -1;
  std::vector<double> table;       // size(a) rows of size(b)
  std::vector<double> transposed;  // filled by finishModel

  int32_t other(int32_t node) const { return node == a ? b : a; }
};

// What a row of memory was before constants were taken out of it.
struct ModelRow {
  int64_t capacity = 0;  // bytes left for items; negative: cannot be met
  int64_t time = 0;      // one of the times that it stands for
  // a Lagrange multiplier that did well, per byte; a row that goes leaves it to the one that implies it
  double price = 0;
};

// How the label of a node that is gone follows from others.
struct ModelUndo {
  enum class Kind : uint8_t {
    kFold,       // label = labels[label of parent]
    kRestrict,   // label = labels[label]: labels were removed
    kEliminate,  // the least of costs[label] + tables[.][label of parents]
  };
  Kind kind = Kind::kFold;
  int32_t node = 0;
  int32_t parent = -1;
  int32_t second_parent = -1;
  std::vector<int32_t> labels;
  std::vector<double> costs;
  std::vector<double> table;         // size(parent) rows of this node's size
  std::vector<double> second_table;  // the same for second_parent
};

struct Model {
  std::vector<ModelNode> nodes;  // the first ones are the problem's, in its order
  std::vector<ModelEdge> edges;
  std::vector<ModelRow> rows;
  double constant = 0;
  double big = 0;            // a cost of this or more is forbidden; more than all others together
  bool infeasible = false;   // proven by reduction: some node has no label left, or some row no capacity
  int32_t culprit = -1;      // that node
  int32_t culprit_row = -1;  // or that row
  std::vector<ModelUndo> undo;

  // The sum of the costs of all alive nodes and edges, with `constant`; forbidden ones count as big or more.
  double cost(const std::vector<int32_t>& labels) const;
  // Fills in the labels of nodes that are gone, from those that are alive, and turns all into strategies of
  // the problem.
  void expand(std::vector<int32_t>& labels) const;
};

// Edges of more than two nodes become nodes of their own, that choose among the combinations.
Model buildModel(const SolverProblem& problem);

// Forgets how the model came about: from now on undo and origins speak of the model as it is.
void trackOrigins(Model& model);

// Fills what search wants: transposed tables. Drops nodes and edges that are gone from the lists of the
// living only, ids stay.
void finishModel(Model& model);

}  // namespace pipeshard::solver
