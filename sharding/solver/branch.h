// Branch and bound: a tree of restrictions of a model, each reduced and bounded again. Open nodes with the
// least bound come first, beside a few that are followed down at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sharding/solver/model.h"

namespace pipeshard::solver {

class BranchAndBound {
 public:
  // The model must be finished. Bounds start from the prices of its rows.
  BranchAndBound(const Model& model, double bound);

  // Expands a few open nodes, side by side; the outcome does not depend on the number of threads. Only
  // choices of cost less than `limit` are looked for (costs are whole numbers). Returns the best found: a
  // label of every node of the model.
  std::optional<std::vector<int32_t>> round(double limit, int threads, const std::function<bool()>& stop);

  // No choice that was not returned costs less than this, or than a limit that was given.
  double bound() const;
  // Open nodes need too much memory to go on.
  bool full() const;
  // Table entries visited so far.
  int64_t work() const { return work_; }

 private:
  struct Open {
    double bound = 0;
    int64_t id = 0;
    std::vector<bool> allowed;                       // by node and label of the root
    std::vector<std::pair<int64_t, double>> prices;  // by time of row
  };
  struct Outcome {
    std::vector<Open> children;
    bool stopped = false;
    std::vector<int32_t> labels;  // of the root; empty: none better was found
    double cost = 0;
    int64_t work = 0;
  };
  class Expansion;

  static bool later(const Open& x, const Open& y);
  void push(Open open);
  std::vector<Open> nextBatch(double limit);
  Outcome expand(const Open& open, double limit, const std::function<bool()>& stop) const;

  const Model& root_;
  Model start_;                  // the root, with origins tracked
  std::vector<size_t> offsets_;  // of the labels of each node of the root
  std::vector<Open> open_;       // a heap, the least bound on top
  std::vector<Open> diving_;     // apart: expanded in every round, to find a choice early
  int64_t next_id_ = 0;
  int64_t work_ = 0;
};

}  // namespace pipeshard::solver
