// A lower bound of the whole problem by Lagrangian relaxation: instead of a limit, a memory row has a price
// per byte over its capacity, which is added to the costs. What is left is pairwise. It is minimised exactly
// by elimination where that is cheap; then prices follow a bundle method (bundle.h). Else message passing
// bounds it (messages.h); then prices follow the average bytes of the labels that are found, in steps that
// shrink as the bound stops rising. Only rows that were too full at some step have prices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/solver/bundle.h"
#include "sharding/solver/elimination.h"
#include "sharding/solver/memory.h"
#include "sharding/solver/messages.h"
#include "sharding/solver/model.h"

namespace pipeshard::solver {

class Relaxation {
 public:
  // Starts from the prices of the model's rows. The model must be finished, and stay as it is.
  explicit Relaxation(const Model& model);

  // Finds labels at the present prices, then moves the prices towards a bound of `target` (the best known
  // cost).
  void step(double target);
  // The best bound so far, with the model's constant, less what rounding may have added.
  double bound() const { return bound_; }
  // Steps since the bound rose by a thousandth of its distance to the target.
  int32_t stalled() const { return stalled_; }
  // The labels of the last step, and whether they are within the capacity of all rows.
  const std::vector<int32_t>& labels() const { return labels_; }
  bool labelsFit() const { return fit_; }
  // Whether bounds are exact minima at their prices, so that labels that fit and have no price to pay are an
  // optimum.
  bool exact() const { return elimination_.has_value(); }

  struct Excess {
    double bound = 0;          // as above
    std::vector<double> rise;  // of the bound, by node and label, when that label is taken
  };
  // At the best prices. The rises of nodes()[i] start at offset(i).
  Excess excess();
  const std::vector<int32_t>& nodes() const { return nodes_; }
  size_t offset(size_t i) const { return offsets_[i]; }

  // The best prices, by row.
  std::vector<double> prices() const;
  // What the bytes of each label cost at the best prices, as offset() says.
  std::vector<double> bytesCost() const;
  const Memory& memory() const { return memory_; }
  // Entries that a step visits.
  int64_t work() const { return work_; }

 private:
  struct ActiveRow {
    int32_t row = 0;
    double price = 0;
    double best_price = 0;
    double average = 0;         // bytes
    std::vector<double> bytes;  // by node and label
    int32_t idle = 0;           // steps for which it was not full
  };

  void addRow(int32_t row, double price);
  void setCosts(bool best);
  double findLabels(bool best);
  void checkAllRows();
  void movePrices(double target);
  void movePricesByBundle(double bound, double target);
  double bytesNow(const ActiveRow& row, const std::vector<int32_t>& labels) const;

  const Model& model_;
  Memory memory_;
  std::vector<int32_t> nodes_;
  std::vector<size_t> offsets_;
  std::optional<Messages> messages_;
  std::optional<Elimination> elimination_;
  Bundle bundle_;  // beside elimination_
  std::vector<ActiveRow> active_;
  std::vector<bool> is_active_;
  std::vector<double> costs_;
  std::vector<int32_t> labels_;
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
