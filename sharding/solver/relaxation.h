// A lower bound of the whole problem: memory rows in the objective by prices (Lagrange multipliers), the pairwise rest by message passing.
// Prices follow the average bytes of the labels that message passing finds, in steps that shrink as the bound stops to rise.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/memory.h"
#include "sharding/solver/messages.h"
#include "sharding/solver/model.h"

namespace pipeshard::solver {

class Relaxation {
 public:
  // Starts from the prices of the model's rows. The model must be finished, and stay as it is.
  explicit Relaxation(const Model& model);

  // One sweep of messages, then one step of prices towards a bound of `target` (the best known cost).
  void step(double target);
  // The best bound so far, with the model's constant, less what rounding may have added.
  double bound() const { return bound_; }
  // Steps since the bound rose by a thousandth of its distance to the target.
  int32_t stalled() const { return stalled_; }
  // The labels of the last step.
  const std::vector<int32_t>& labels() const { return messages_.labels(); }
  bool labelsFit() const { return fit_; }

  struct Excess {
    double bound = 0;          // with the model's constant
    std::vector<double> rise;  // of the bound, by node and label, when that label is taken
  };
  // At the best prices. The rises of nodes()[i] start at offset(i).
  Excess excess();
  const std::vector<int32_t>& nodes() const { return messages_.nodes(); }
  size_t offset(size_t i) const { return messages_.offset(i); }

  const std::vector<double>& prices() const { return best_prices_; }
  const Memory& memory() const { return memory_; }
  // Entries that a step visits.
  int64_t work() const { return work_; }

 private:
  void setCosts(const std::vector<double>& prices);
  double sweep(const std::vector<double>& prices);
  void movePrices(double target);

  const Model& model_;
  Memory memory_;
  Messages messages_;
  std::vector<double> prices_, best_prices_;
  std::vector<double> costs_;
  std::vector<double> average_;  // bytes in rows
  double bound_;
  double last_progress_;
  double step_size_ = 1;
  int32_t steps_ = 0;
  int32_t stalled_ = 0;
  int32_t since_shrink_ = 0;
  bool fit_ = false;
  int64_t work_ = 0;
};

}  // namespace pipeshard::solver
