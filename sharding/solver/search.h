// The search for a best choice of a reduced model: bounds and moves side by side, reduction by what they
// prove, then branch and bound.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sharding/solver/model.h"
#include "sharding/solver/relaxation.h"
#include "sharding/solver/state.h"

namespace pipeshard::solver {

struct SearchLimits {
  // entries: eliminating everything comes first if it takes no more (2^33: a second or two)
  int64_t exact_work = int64_t{1} << 33;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  int64_t work = -1;  // table entries; negative: no limit
  uint64_t seed = 1;
  int threads = 1;
};

class Search {
 public:
  // `report` is called when the cost or the bound changed, with a choice of the model's first nodes in the
  // problem's strategies (empty: as before).
  using Report = std::function<void(double cost, double bound)>;

  Search(Model model, const SearchLimits& limits, Report report);

  void run();

  bool found() const { return found_; }
  // Of the problem, by node (also of nodes that the model added). If none was found: the attempt with the
  // least excess, or empty.
  const std::vector<int32_t>& choice() const { return choice_; }
  // No choice costs less; infinite if there is none.
  double bound() const { return bound_; }
  // Nothing better than choice() exists; if none was found, nothing does.
  bool proven() const { return proven_; }
  bool cutShort() const { return cut_; }
  int64_t work() const { return work_; }

 private:
  bool stopped();
  bool eliminateAll();
  void explore();
  struct Exploration;
  void exploreOnce(Relaxation& relaxation);
  void exploreEpoch(Exploration& exploration);
  int32_t relax(Exploration& exploration) const;
  bool worthPruning(Exploration& exploration);
  bool pruneModel(Relaxation& relaxation);
  void finish();
  bool improveByMoves(const Memory& memory, const std::vector<double>& prices, int64_t work, bool kick);
  void offerState(const State& state);
  void offer(const std::vector<int32_t>& labels, double cost);
  void raiseBound(double bound);
  double limit() const { return found_ ? cost_ : model_.big / 2; }

  Model model_;
  SearchLimits limits_;
  Report report_;
  std::function<bool()> stop_;
  bool found_ = false;
  double cost_ = 0;
  double attempt_excess_ = 0;
  std::vector<int32_t> labels_;  // the best, of the model as it is now; empty: none
  std::vector<int32_t> start_;   // labels of the model where moves start if there is none
  std::vector<int32_t> choice_;
  double bound_;
  bool proven_ = false;
  std::atomic<bool> cut_ = false;
  int64_t work_ = 0;
  uint64_t epochs_ = 0;
};

}  // namespace pipeshard::solver
