// Exact minimisation by elimination of one node after the other: the tables around a node are added and
// minimised over its labels, which leaves a table over its neighbours. Structure and costs are apart, so that
// the same plan runs again with other costs of nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sharding/solver/model.h"

namespace pipeshard::solver {

class Elimination {
 public:
  // `order`: nodes of the model, each once. All other nodes are fixed: their edges become costs of nodes in
  // `labels`' setting. The model must be finished (finishModel), and stay as it is.
  Elimination(const Model& model, const std::vector<int32_t>& order);

  // Takes the labels of all nodes outside of the order.
  void condition(const std::vector<int32_t>& labels);

  // The least sum of `costs` (of the nodes in the order, by label, at offset(i) for the i-th), of the edges
  // among them, and of those to fixed nodes. A result of model.big or more means that every choice is
  // forbidden. `stop`, if given, is asked now and then; the result is worthless after it.
  double run(const std::vector<double>& costs, const std::function<bool()>& stop = {});
  // After run(): the labels that reach it. Writes only those of the order.
  void assign(std::vector<int32_t>& labels) const;
  // After run(): for each label, at the offset of costs, the least sum with that label.
  std::vector<double> marginals() const;

  const std::vector<int32_t>& order() const { return order_; }
  size_t offset(size_t i) const { return offsets_[i]; }
  size_t costCount() const { return offsets_.back(); }
  // Entries of all joint tables.
  int64_t work() const { return work_; }
  // Entries of the tables that are left, which are kept.
  int64_t memory() const { return memory_; }

 private:
  struct Factor {
    const double* fixed = nullptr;  // an edge of the model
    int32_t step = -1;              // or what that step left
    int32_t stride = 0;             // of the step's node
    size_t strides = 0;             // first of the strides of the step's scope in strides_
    bool has_last = false;          // joins the last node of the scope, at stride 1
  };
  struct Step {
    int32_t size = 0;
    int32_t scope_begin = 0, scope_end = 0;    // positions in scopes_, in order of elimination
    int32_t factor_begin = 0, factor_end = 0;  // those with has_last come last
    int64_t result = 0;                        // in arena_
    int64_t result_size = 1;
  };
  struct Boundary {
    int32_t position;
    int32_t edge;
    int32_t fixed;
  };
  struct Kernel;

  const double* data(const Factor& factor) const {
    return factor.fixed != nullptr ? factor.fixed : &arena_[steps_[factor.step].result];
  }
  void addStep(size_t position, std::vector<Factor>& factors, std::vector<std::vector<int32_t>>& scopes);
  void runStep(size_t position);

  const Model& model_;
  std::vector<int32_t> order_;
  std::vector<size_t> offsets_;
  std::vector<Step> steps_;
  std::vector<Factor> factors_;
  std::vector<int32_t> scopes_;
  std::vector<int32_t> strides_;
  std::vector<Boundary> boundary_;
  std::vector<double> boundary_costs_;
  std::vector<double> costs_;
  std::vector<double> arena_;
  int64_t work_ = 0;
  int64_t memory_ = 0;
};

}  // namespace pipeshard::solver
