#include "sharding/solver/branch.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "ir/base/parallel.h"
#include "sharding/solver/reduce.h"
#include "sharding/solver/relaxation.h"

namespace pipeshard::solver {

namespace {

constexpr int32_t kNodesPerRound = 8;
constexpr size_t kDivers = 2;
constexpr size_t kMostOpenBytes = size_t{1} << 30;

}  // namespace

// One open node: restricts, reduces and bounds in turns, then splits.
//
// model_ begins as the root in which labels that the open node does not allow are forbidden. Reducing
// renumbers labels; ModelNode::origins leads back to those of the root, in which `allowed` of the children is
// written. Nodes that a reduction has taken out keep what the open node allowed.
//
// limit_ is the cost of the best choice that is known. Costs are whole numbers, so anything better costs
// limit_ - 1 or less, and an open node with a larger bound is closed. By the same measure labels go (prune):
// a label whose own bound is larger cannot be in a better choice. Removing more than 5 % of them is worth
// another reduction and another relaxation; else the labels of one node are split in two, and each half is a
// child. Together the children allow all that is left, so nothing is lost.
class BranchAndBound::Expansion {
 public:
  Expansion(const BranchAndBound& tree, const Open& open, double limit, const std::function<bool()>& stop)
      : tree_(tree), open_(open), limit_(limit), stop_(stop), model_(tree.start_) {}

  Outcome run() {
    restrictRoot();
    for (bool again = true; again;) {
      reduceModel(model_);
      if (model_.infeasible) return std::move(outcome_);
      finishModel(model_);
      Relaxation relaxation(model_);
      recent_.clear();
      if (!bound(relaxation)) return std::move(outcome_);
      again = prune(relaxation);
      if (closed_) return std::move(outcome_);
      if (!again) split(relaxation);
    }
    return std::move(outcome_);
  }

 private:
  void restrictRoot() {
    for (size_t i = 0; i < model_.nodes.size(); ++i) {
      ModelNode& node = model_.nodes[i];
      for (int32_t x = 0; x < node.size(); ++x) {
        if (!open_.allowed[tree_.offsets_[i] + x]) node.costs[x] = model_.big;
      }
    }
    for (ModelRow& row : model_.rows) row.price = 0;
    for (const auto& [time, price] : open_.prices) {
      const auto at = std::lower_bound(model_.rows.begin(), model_.rows.end(), time,
                                       [](const ModelRow& row, int64_t value) { return row.time < value; });
      if (at != model_.rows.end()) at->price += price;
    }
    // What copying and reducing costs, by experience.
    outcome_.work += 20 * (tree_.offsets_.back() + model_.rows.size());
    for (const ModelEdge& edge : model_.edges) outcome_.work += 20 * std::ssize(edge.table);
  }

  // False: nothing better is below, or the clock stopped.
  bool bound(Relaxation& relaxation) {
    constexpr int32_t kSteps = 80, kPatience = 25, kExactSteps = 25, kExactPatience = 8;
    const int32_t most_steps = relaxation.exact() ? kExactSteps : kSteps,
                  patience = relaxation.exact() ? kExactPatience : kPatience;
    for (int32_t i = 0; i < most_steps && relaxation.stalled() < patience; ++i) {
      if (stop_()) {
        outcome_.stopped = true;
        return false;
      }
      const double guess = std::max(bound_, open_.bound);
      relaxation.step(limit_ < model_.big ? limit_ : guess + 1 + 0.1 * std::abs(guess));
      outcome_.work += 2 * relaxation.work();
      if (relaxation.labelsFit()) offer(relaxation.labels());
      if (relaxation.bound() > limit_ - 1) return false;
      recent_.push_back(relaxation.labels());
      if (recent_.size() > kRecent) recent_.pop_front();
    }
    bound_ = std::max({bound_, open_.bound, relaxation.bound()});
    return bound_ <= limit_ - 1;
  }

  void offer(const std::vector<int32_t>& labels) {
    const double cost = model_.cost(labels);
    if (cost >= limit_ || cost >= model_.big / 2) return;
    limit_ = cost;
    outcome_.cost = cost;
    outcome_.labels = labels;
    model_.expand(outcome_.labels);
  }

  // True: enough labels went to reduce again.
  bool prune(Relaxation& relaxation) {
    const Relaxation::Excess excess = relaxation.excess();
    outcome_.work += 4 * relaxation.work();
    bound_ = std::max(bound_, excess.bound);
    closed_ = bound_ > limit_ - 1;
    if (closed_) return false;
    size_t removed = 0;
    for (size_t i = 0; i < relaxation.nodes().size(); ++i) {
      ModelNode& node = model_.nodes[relaxation.nodes()[i]];
      size_t kept = 0;
      for (int32_t x = 0; x < node.size(); ++x) {
        if (excess.bound + excess.rise[relaxation.offset(i) + x] > limit_ - 1) {
          node.costs[x] = model_.big;
          ++removed;
        } else {
          ++kept;
        }
      }
      closed_ |= kept == 0;
    }
    if (closed_) return false;
    const std::vector<double> prices = relaxation.prices();
    for (size_t i = 0; i < prices.size(); ++i) model_.rows[i].price = prices[i];
    return 20 * removed > excess.rise.size();
  }

  struct Choice {
    int32_t node = -1;
    std::vector<bool> left;  // labels of one side
  };

  // The node whose labels, in the last steps, differ most in what their bytes cost; else one that differs at
  // all; else a large one.
  Choice choose(const Relaxation& relaxation) const {
    const std::vector<double> bytes = relaxation.bytesCost();
    Choice choice;
    double best = -1;
    for (size_t i = 0; i < relaxation.nodes().size(); ++i) {
      const int32_t node = relaxation.nodes()[i];
      const ModelNode& self = model_.nodes[node];
      std::vector<int32_t> count(self.costs.size(), 0);
      for (const std::vector<int32_t>& labels : recent_) ++count[labels[node]];
      double least = std::numeric_limits<double>::infinity(), most = -least;
      int32_t seen = 0;
      for (size_t x = 0; x < count.size(); ++x) {
        if (count[x] == 0) continue;
        ++seen;
        least = std::min(least, bytes[relaxation.offset(i) + x]);
        most = std::max(most, bytes[relaxation.offset(i) + x]);
      }
      const double spread = most - least;
      const double score = (seen > 1 && spread > 0.5 ? 1e9 + spread : 0) + (seen > 1 ? 1e6 : 0) +
                           static_cast<double>(self.edges.size());
      if (score <= best || self.size() < 2) continue;
      best = score;
      choice = {node, std::vector<bool>(count.size())};
      const size_t usual = std::max_element(count.begin(), count.end()) - count.begin();
      for (size_t x = 0; x < count.size(); ++x) {
        choice.left[x] = spread > 0.5 ? bytes[relaxation.offset(i) + x] <= (least + most) / 2 : x == usual;
      }
    }
    return choice;
  }

  void split(const Relaxation& relaxation) {
    const Choice choice = choose(relaxation);
    if (choice.node < 0) return;  // nothing is left to choose, and what is left was offered
    Open child{.bound = bound_, .id = 0, .allowed = open_.allowed, .prices = {}};
    for (const ModelRow& row : model_.rows) {
      if (row.price > 0) child.prices.emplace_back(row.time, row.price);
    }
    for (size_t i = 0; i < model_.nodes.size(); ++i) {
      const ModelNode& node = model_.nodes[i];
      if (node.size() == 0) continue;
      std::vector<bool> kept(tree_.root_.nodes[i].costs.size());
      for (size_t x = 0; x < node.costs.size(); ++x) {
        if (node.costs[x] < model_.big) kept[node.origins[x]] = true;
      }
      for (size_t x = 0; x < kept.size(); ++x) {
        if (!kept[x]) child.allowed[tree_.offsets_[i] + x] = false;
      }
    }
    const ModelNode& node = model_.nodes[choice.node];
    for (const bool side : {true, false}) {
      outcome_.children.push_back(child);
      for (size_t x = 0; x < node.costs.size(); ++x) {
        if (choice.left[x] != side)
          outcome_.children.back().allowed[tree_.offsets_[choice.node] + node.origins[x]] = false;
      }
    }
  }

  static constexpr size_t kRecent = 24;

  const BranchAndBound& tree_;
  const Open& open_;
  double limit_;
  const std::function<bool()>& stop_;
  Model model_;
  std::deque<std::vector<int32_t>> recent_;
  double bound_ = -std::numeric_limits<double>::infinity();
  bool closed_ = false;
  Outcome outcome_;
};

bool BranchAndBound::later(const Open& x, const Open& y) {
  return x.bound != y.bound ? x.bound > y.bound : x.id > y.id;
}

BranchAndBound::BranchAndBound(const Model& model, double bound) : root_(model), start_(model) {
  trackOrigins(start_);
  offsets_.assign(1, 0);
  for (const ModelNode& node : model.nodes) offsets_.push_back(offsets_.back() + node.costs.size());
  for (ModelEdge& edge : start_.edges) edge.transposed = {};
  Open first{
      .bound = bound, .id = next_id_++, .allowed = std::vector<bool>(offsets_.back(), true), .prices = {}};
  for (const ModelRow& row : model.rows) {
    if (row.price > 0) first.prices.emplace_back(row.time, row.price);
  }
  open_.push_back(std::move(first));
}

void BranchAndBound::push(Open open) {
  open_.push_back(std::move(open));
  std::push_heap(open_.begin(), open_.end(), later);
}

// Those that dive, and the ones of least bound.
std::vector<BranchAndBound::Open> BranchAndBound::nextBatch(double limit) {
  std::vector<Open> batch;
  for (Open& open : diving_) {
    if (open.bound <= limit - 1) batch.push_back(std::move(open));
  }
  diving_.clear();
  while (!open_.empty() && batch.size() < kNodesPerRound) {
    std::pop_heap(open_.begin(), open_.end(), later);
    if (open_.back().bound <= limit - 1) batch.push_back(std::move(open_.back()));
    open_.pop_back();
  }
  return batch;
}

std::optional<std::vector<int32_t>> BranchAndBound::round(double limit, int threads,
                                                          const std::function<bool()>& stop) {
  std::vector<Open> batch = nextBatch(limit);
  std::vector<Outcome> outcomes(batch.size());
  parallelFor(threads, batch.size(), [&](int32_t i) { outcomes[i] = expand(batch[i], limit, stop); });
  std::optional<std::vector<int32_t>> best;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    Outcome& outcome = outcomes[i];
    work_ += outcome.work;
    if (!outcome.labels.empty() && outcome.cost < limit) {
      limit = outcome.cost;
      best = std::move(outcome.labels);
    }
    if (outcome.stopped) outcome.children.push_back(std::move(batch[i]));
    for (Open& child : outcome.children) child.id = next_id_++;
    // Divers come first in the batch; who has ended is followed by a child of the next.
    if (!outcome.children.empty() && !outcome.stopped && diving_.size() < kDivers) {
      diving_.push_back(std::move(outcome.children.front()));
      outcome.children.erase(outcome.children.begin());
    }
    for (Open& child : outcome.children) push(std::move(child));
  }
  return best;
}

BranchAndBound::Outcome BranchAndBound::expand(const Open& open, double limit,
                                               const std::function<bool()>& stop) const {
  return Expansion(*this, open, limit, stop).run();
}

double BranchAndBound::bound() const {
  double least = open_.empty() ? std::numeric_limits<double>::infinity() : open_.front().bound;
  for (const Open& open : diving_) least = std::min(least, open.bound);
  return least;
}

bool BranchAndBound::full() const { return open_.size() * (offsets_.back() / 8 + 200) > kMostOpenBytes; }

}  // namespace pipeshard::solver
