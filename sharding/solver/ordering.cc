#include "sharding/solver/ordering.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace pipeshard::solver {

namespace {

// Products of sizes as sums of logarithms in fixed point: the same on every machine.
int64_t logarithm(int32_t size) { return std::lround(std::log2(static_cast<double>(size)) * 65536); }

class Eliminator {
 public:
  Eliminator(const Model& model, const std::vector<int32_t>& nodes, const OrderingLimits& limits)
      : model_(model),
        nodes_(nodes),
        limits_(limits),
        limit_(std::lround(std::log2(static_cast<double>(limits.joint_entries)) * 65536)) {}

  Ordering run() {
    connect();
    for (size_t i = 0; i < nodes_.size(); ++i) enqueue(i);
    while (!queue_.empty()) {
      const auto [key, node] = queue_.top();
      queue_.pop();
      if (gone_[node] || key != key_[node]) continue;
      if (weight_[node] + log_[node] > limit_) {
        fixOne();
        enqueue(node);
      } else {
        eliminate(node);
      }
    }
    return std::move(result_);
  }

 private:
  void connect() {
    const size_t count = nodes_.size();
    std::vector<int32_t> local(model_.nodes.size(), -1);
    for (size_t i = 0; i < count; ++i) local[nodes_[i]] = i;
    neighbours_.resize(count);
    weight_.assign(count, 0);
    key_.assign(count, -1);
    mark_.assign(count, -1);
    gone_.assign(count, false);
    for (size_t i = 0; i < count; ++i) log_.push_back(logarithm(model_.nodes[nodes_[i]].size()));
    for (size_t i = 0; i < count; ++i) {
      for (const int32_t id : model_.nodes[nodes_[i]].edges) {
        const int32_t other = local[model_.edges[id].other(nodes_[i])];
        if (other < 0) continue;
        neighbours_[i].push_back(other);
        weight_[i] += log_[other];
      }
    }
  }

  int64_t fill(int32_t node) {
    forget(node);
    const std::vector<int32_t>& around = neighbours_[node];
    int64_t missing = 0;
    for (const int32_t a : around) {
      ++stamp_;
      for (const int32_t b : neighbours_[a]) mark_[b] = stamp_;
      for (const int32_t b : around) missing += b > a && mark_[b] != stamp_ ? 1 : 0;
    }
    return missing;
  }

  void enqueue(int32_t node) {
    if (gone_[node]) return;
    int64_t key = weight_[node] + log_[node];
    if (limits_.fill) key += fill(node) << 24;
    key_[node] = key;
    queue_.emplace(key, node);
  }

  // Drops neighbours that are gone.
  void forget(int32_t node) {
    std::erase_if(neighbours_[node], [&](int32_t other) { return gone_[other]; });
  }

  void remove(int32_t node) {
    forget(node);
    gone_[node] = true;
    for (const int32_t other : neighbours_[node]) weight_[other] -= log_[node];
  }

  void fixOne() {
    int32_t best = -1;
    double best_score = -1;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (gone_[i]) continue;
      double score = static_cast<double>(weight_[i]) * 65536 + static_cast<double>(log_[i]);
      if (limits_.random != nullptr) score *= 0.3 + limits_.random->unit();
      if (score <= best_score) continue;
      best = i;
      best_score = score;
    }
    remove(best);
    for (const int32_t other : neighbours_[best]) enqueue(other);
    result_.fixed.push_back(nodes_[best]);
  }

  void eliminate(int32_t node) {
    const double entries = std::exp2(static_cast<double>(weight_[node] + log_[node]) / 65536);
    result_.widest = std::max(
        result_.widest, static_cast<int64_t>(std::min(entries, static_cast<double>(Ordering::kMostWork))));
    result_.work = static_cast<int64_t>(
        std::min(static_cast<double>(result_.work) + entries, static_cast<double>(Ordering::kMostWork)));
    remove(node);
    const std::vector<int32_t>& around = neighbours_[node];
    for (const int32_t a : around) {
      forget(a);
      ++stamp_;
      for (const int32_t b : neighbours_[a]) mark_[b] = stamp_;
      for (const int32_t b : around) {
        if (b == a || mark_[b] == stamp_) continue;
        neighbours_[a].push_back(b);
        weight_[a] += log_[b];
      }
    }
    for (const int32_t a : around) enqueue(a);
    result_.order.push_back(nodes_[node]);
  }

  using Entry = std::pair<int64_t, int32_t>;

  const Model& model_;
  const std::vector<int32_t>& nodes_;
  const OrderingLimits& limits_;
  int64_t limit_;
  std::vector<std::vector<int32_t>> neighbours_;
  std::vector<int64_t> log_;
  std::vector<int64_t> weight_;  // of the neighbours together
  std::vector<int64_t> key_;
  std::vector<int64_t> mark_;
  int64_t stamp_ = 0;
  std::vector<bool> gone_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  Ordering result_;
};

}  // namespace

Ordering orderNodes(const Model& model, const std::vector<int32_t>& nodes, const OrderingLimits& limits) {
  return Eliminator(model, nodes, limits).run();
}

}  // namespace pipeshard::solver
