#include "sharding/solver/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/base/parallel.h"
#include "sharding/solver/branch.h"
#include "sharding/solver/elimination.h"
#include "sharding/solver/local_search.h"
#include "sharding/solver/ordering.h"
#include "sharding/solver/reduce.h"

namespace pipeshard::solver {

namespace {

constexpr int64_t kWidestTable = int64_t{1} << 28;      // entries: the clock is asked between tables
constexpr int64_t kMostExactMemory = int64_t{1} << 27;  // entries: a GiB

std::vector<int32_t> aliveNodes(const Model& model) {
  std::vector<int32_t> alive;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (model.nodes[i].size() > 0) alive.push_back(i);
  }
  return alive;
}

}  // namespace

Search::Search(Model model, const SearchLimits& limits, Report report)
    : model_(std::move(model)), limits_(limits), report_(std::move(report)), bound_(model_.constant) {
  stop_ = [this] {
    if (!cut_ && limits_.deadline && std::chrono::steady_clock::now() >= *limits_.deadline) cut_ = true;
    return cut_.load();
  };
}

bool Search::stopped() { return stop_() || (limits_.work >= 0 && work_ >= limits_.work); }

void Search::raiseBound(double bound) {
  bound_ = std::max(bound_, found_ ? std::min(bound, cost_) : bound);
  proven_ |= bound > limit() - 1;
  if (proven_ && found_) bound_ = cost_;
  report_(found_ ? cost_ : std::numeric_limits<double>::infinity(), bound_);
}

void Search::offer(const std::vector<int32_t>& labels, double cost) {
  if (cost >= limit()) return;
  found_ = true;
  cost_ = cost;
  labels_ = labels;
  choice_ = labels;
  model_.expand(choice_);
  raiseBound(bound_);
}

void Search::run() {
  finishModel(model_);
  if (eliminateAll()) return;
  while (!proven_ && !stopped()) {
    explore();
    if (!proven_ && !stopped()) finish();
  }
}

// Without memory, or where memory turns out not to matter, elimination alone may do.
bool Search::eliminateAll() {
  const std::vector<int32_t> alive = aliveNodes(model_);
  const Ordering ordering = orderNodes(model_, alive, {});
  const int64_t most = model_.rows.empty() ? limits_.exact_work : limits_.exact_work >> 8;
  if (ordering.work > most || ordering.widest > kWidestTable || stopped()) return false;
  Elimination elimination(model_, ordering.order);
  if (elimination.memory() > kMostExactMemory) return false;
  std::vector<double> costs(elimination.costCount());
  for (size_t i = 0; i < ordering.order.size(); ++i) {
    const std::vector<double>& own = model_.nodes[ordering.order[i]].costs;
    std::copy(own.begin(), own.end(), &costs[elimination.offset(i)]);
  }
  const double least = elimination.run(costs, stop_) + model_.constant;
  if (cut_) return false;
  std::vector<int32_t> labels(model_.nodes.size(), 0);
  elimination.assign(labels);
  const double cost = model_.cost(labels);
  const bool fits = model_.rows.empty() || Memory(model_).fits(labels);
  if (fits && cost < model_.big / 2) offer(labels, cost);
  // Sums of whole numbers below 2^53 are exact.
  raiseBound(cost < 0x1p52 ? least : least * (1 - 1e-11));
  start_ = labels;
  return proven_;
}

// Bounds and moves in turns with reduction, as long as that shrinks the model.
void Search::explore() {
  while (!proven_ && !stopped()) {
    finishModel(model_);
    Relaxation relaxation(model_);
    exploreOnce(relaxation);
    if (proven_ || stopped()) return;
    if (!pruneModel(relaxation)) return;
  }
}

// One turn of bounds and moves over the same model, until neither gets on.
struct Search::Exploration {
  explicit Exploration(Relaxation& relaxed)
      : relaxation(relaxed),
        patience(relaxed.exact() ? 20 : 200),
        moves_patience(relaxed.exact() ? 1 : 10),
        epoch_steps(relaxed.exact() ? 20 : 40) {}

  bool goesOn() const { return relaxation.stalled() < patience || idle < moves_patience; }

  Relaxation& relaxation;
  int32_t patience, moves_patience, epoch_steps;
  int32_t idle = 0;                                           // epochs in which moves found nothing
  double fit_cost = std::numeric_limits<double>::infinity();  // of the best labels of the relaxation that fit
  std::vector<int32_t> fit_labels;
  std::vector<int32_t> moved;  // where moves go on; empty: at the best, or at start_
  double checked_gap = std::numeric_limits<double>::infinity();
};

void Search::exploreOnce(Relaxation& relaxation) {
  Exploration exploration(relaxation);
  while (!stopped() && !proven_ && exploration.goesOn()) {
    exploreEpoch(exploration);
    if (!proven_ && worthPruning(exploration)) break;
  }
  if (!exploration.moved.empty()) start_ = exploration.moved;
}

void Search::exploreEpoch(Exploration& exploration) {
  Relaxation& relaxation = exploration.relaxation;
  const std::vector<double> prices = relaxation.prices();
  const std::vector<int32_t> from = !exploration.moved.empty() ? exploration.moved
                                    : !labels_.empty()         ? labels_
                                                               : start_;
  std::optional<LocalSearch> moves;
  if (!from.empty())
    moves.emplace(model_, relaxation.memory(), prices, from, limits_.seed + 7919 * ++epochs_);
  const int64_t epoch_work = exploration.epoch_steps * relaxation.work();
  int32_t steps = 0;
  bool improved = false;
  parallelFor(limits_.threads, 2, [&](int32_t i) {
    if (i == 0) {
      steps = relax(exploration);
    } else {
      while (moves && moves->work() < epoch_work && !stop_()) improved |= moves->round(1, stop_);
    }
  });
  work_ += steps * relaxation.work() + (moves ? moves->work() : 0);
  exploration.idle = improved ? 0 : exploration.idle + 1;
  if (exploration.fit_cost < model_.big / 2) offer(exploration.fit_labels, exploration.fit_cost);
  if (moves) {
    offerState(moves->state());
    exploration.moved = moves->state().labels();
    if (found_ && (!moves->state().feasible() || moves->state().score().cost > cost_))
      exploration.moved = labels_;
  } else {
    start_ = relaxation.labels();
  }
  raiseBound(relaxation.bound());
}

// Returns the steps made.
int32_t Search::relax(Exploration& exploration) const {
  Relaxation& relaxation = exploration.relaxation;
  const double target = limit();
  int32_t steps = 0;
  while (steps < exploration.epoch_steps && !stop_() && relaxation.stalled() < exploration.patience &&
         relaxation.bound() <= target - 1) {
    ++steps;
    const double bound = std::max(relaxation.bound(), bound_);
    relaxation.step(found_ ? target : bound + 1 + 0.1 * std::abs(bound));
    if (!relaxation.labelsFit()) continue;
    const double cost = model_.cost(relaxation.labels());
    if (cost >= exploration.fit_cost) continue;
    exploration.fit_cost = cost;
    exploration.fit_labels = relaxation.labels();
  }
  return steps;
}

void Search::offerState(const State& state) {
  if (state.feasible()) {
    offer(state.labels(), state.score().cost);
  } else if (!found_ && (choice_.empty() || state.score().excess < attempt_excess_)) {
    attempt_excess_ = state.score().excess;
    choice_ = state.labels();
    model_.expand(choice_);
  }
}

// Asked when the gap shrank well: whether most labels could go already. Sweeps over what is left are then
// cheaper.
bool Search::worthPruning(Exploration& exploration) {
  Relaxation& relaxation = exploration.relaxation;
  const double gap = limit() - relaxation.bound();
  if (!found_ || relaxation.exact() || gap > 0.02 * std::abs(cost_) || gap > 0.8 * exploration.checked_gap)
    return false;
  exploration.checked_gap = gap;
  const Relaxation::Excess excess = relaxation.excess();
  work_ += 8 * relaxation.work();
  const auto useless = std::count_if(excess.rise.begin(), excess.rise.end(),
                                     [&](double rise) { return excess.bound + rise > cost_ - 1; });
  return 10 * useless > 4 * std::ssize(excess.rise);
}

// Removes labels that no better choice has, and reduces. False: too few went to be worth another look.
bool Search::pruneModel(Relaxation& relaxation) {
  const Relaxation::Excess excess = relaxation.excess();
  work_ += 8 * relaxation.work();
  raiseBound(excess.bound);
  if (proven_ || !found_) return false;
  size_t removed = 0;
  for (size_t i = 0; i < relaxation.nodes().size(); ++i) {
    ModelNode& node = model_.nodes[relaxation.nodes()[i]];
    for (int32_t x = 0; x < node.size(); ++x) {
      // What the best choice has stays, so that it stays a choice of the model.
      if (excess.bound + excess.rise[relaxation.offset(i) + x] <= cost_ - 1 ||
          labels_[relaxation.nodes()[i]] == x)
        continue;
      node.costs[x] = model_.big;
      ++removed;
    }
  }
  const std::vector<double> prices = relaxation.prices();
  for (size_t i = 0; i < prices.size(); ++i) model_.rows[i].price = prices[i];
  if (removed == 0) return false;
  const size_t before = excess.rise.size();
  reduceModel(model_, &labels_);
  start_.clear();
  // What was eliminated may be chosen better than before.
  offer(labels_, model_.cost(labels_));
  size_t after = 0;
  for (const ModelNode& node : model_.nodes) after += node.costs.size();
  if (after == 0) {
    raiseBound(cost_);
    return false;
  }
  finishModel(model_);
  return after < before - before / 20;
}

// Branch and bound, and moves beside it, until the end, or until the cost came so much closer to the bound
// that exploring again, from the start, will remove many labels.
void Search::finish() {
  constexpr int32_t kPatience = 10;
  finishModel(model_);
  const Memory memory(model_);
  std::vector<double> prices;
  for (const ModelRow& row : model_.rows) prices.push_back(row.price);
  BranchAndBound tree(model_, bound_);
  const double first_limit = limit(), first_bound = bound_;
  double risen_bound = bound_;
  int32_t moves_idle = 0, tree_idle = 0;  // rounds without success
  while (!stopped() && !proven_ && first_limit - limit() <= 0.3 * (first_limit - first_bound)) {
    const int64_t tree_before = tree.work();
    if (!tree.full()) {
      const std::optional<std::vector<int32_t>> better = tree.round(limit(), limits_.threads, stop_);
      work_ += tree.work() - tree_before;
      if (better) offer(*better, model_.cost(*better));
      raiseBound(tree.bound());
      if (proven_) break;
    }
    ++tree_idle;
    if (bound_ - risen_bound > 0.005 * (limit() - bound_)) {
      risen_bound = bound_;
      tree_idle = 0;
    }
    // Moves get as much work as the tree, less and less as they find nothing, but not while the tree finds
    // nothing either.
    const int64_t share = std::max<int64_t>(tree.work() - tree_before, 1 << 20) >>
                          (tree_idle > kPatience ? 0 : std::min(moves_idle, 5));
    moves_idle = improveByMoves(memory, prices, share, moves_idle > 1) ? 0 : moves_idle + 1;
  }
}

// From the best choice, or from one somewhat beside it.
bool Search::improveByMoves(const Memory& memory, const std::vector<double>& prices, int64_t work,
                            bool kick) {
  const uint64_t seed = limits_.seed + 7919 * ++epochs_;
  if (start_.empty()) start_.assign(model_.nodes.size(), 0);
  LocalSearch moves(model_, memory, prices, start_, seed);
  if (!found_) {
    kick = false;
  } else if (moves.state().score().cost > cost_ || !moves.state().feasible()) {
    moves.setLabels(labels_);
  }
  if (kick) moves.setLabels(moves.kicked(seed));
  while (moves.work() < work && !stop_()) moves.round(limits_.threads, stop_);
  work_ += moves.work();
  const bool known = found_;
  const double before = cost_;
  offerState(moves.state());
  if (!kick || cost_ < before) start_ = moves.state().labels();
  return found_ && (!known || cost_ < before);
}

}  // namespace pipeshard::solver
