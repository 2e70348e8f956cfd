#include "sharding/solver/state.h"

#include <algorithm>

namespace pipeshard::solver {

namespace {

double excessOf(const Memory& memory, const std::vector<int64_t>& usage) {
  double sum = 0;
  for (size_t i = 0; i < usage.size(); ++i)
    sum += static_cast<double>(std::max<int64_t>(0, usage[i] - memory.capacity(i)));
  return sum;
}

double entry(const ModelEdge& edge, const Model& model, int32_t a, int32_t b) {
  return edge.table[a * model.nodes[edge.b].costs.size() + b];
}

}  // namespace

State::State(const Model& model, const Memory& memory, std::vector<int32_t> labels)
    : model_(&model), memory_(&memory), labels_(std::move(labels)), usage_(memory.usage(labels_)) {
  score_ = {excessOf(*memory_, usage_), model_->cost(labels_)};
}

Score State::scoreAfter(const std::vector<Change>& changes, std::vector<int64_t>* usage) const {
  // Positions of changed nodes, by binary search: few nodes change.
  std::vector<Change> sorted = changes;
  std::sort(sorted.begin(), sorted.end());
  const auto labelAfter = [&](int32_t node) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), Change{node, -1});
    return at != sorted.end() && at->first == node ? std::pair{at->second, true}
                                                   : std::pair{labels_[node], false};
  };
  double cost = score_.cost;
  std::vector<int64_t> difference(usage_.size() + 1, 0);
  for (const auto& [node, label] : sorted) {
    const ModelNode& self = model_->nodes[node];
    cost += self.costs[label] - self.costs[labels_[node]];
    for (const int32_t id : self.edges) {
      const ModelEdge& edge = model_->edges[id];
      const auto [other_label, other_changed] = labelAfter(edge.other(node));
      if (other_changed && node == edge.b) continue;
      const int32_t a = node == edge.a ? label : other_label, b = node == edge.a ? other_label : label;
      cost += entry(edge, *model_, a, b) - entry(edge, *model_, labels_[edge.a], labels_[edge.b]);
    }
    if (!memory_->hasItems(node)) continue;
    memory_->addUsage(node, label, 1, difference);
    memory_->addUsage(node, labels_[node], -1, difference);
  }
  int64_t sum = 0;
  double excess = 0;
  if (usage != nullptr) usage->resize(usage_.size());
  for (size_t i = 0; i < usage_.size(); ++i) {
    sum += difference[i];
    const int64_t bytes = usage_[i] + sum;
    excess += static_cast<double>(std::max<int64_t>(0, bytes - memory_->capacity(i)));
    if (usage != nullptr) (*usage)[i] = bytes;
  }
  return {excess, cost};
}

void State::apply(const std::vector<Change>& changes) {
  score_ = scoreAfter(changes, &usage_);
  for (const auto& [node, label] : changes) labels_[node] = label;
  if (score_.cost >= model_->big) score_.cost = model_->cost(labels_);  // large numbers cancel badly
}

std::vector<int32_t> State::peaks(const std::vector<int64_t>& usage) const {
  std::vector<int32_t> result;
  for (size_t i = 0; i < usage.size();) {
    if (usage[i] <= memory_->capacity(i)) {
      ++i;
      continue;
    }
    size_t most = i;
    for (; i < usage.size() && usage[i] > memory_->capacity(i); ++i) {
      if (usage[i] - memory_->capacity(i) > usage[most] - memory_->capacity(most)) most = i;
    }
    result.push_back(most);
  }
  return result;
}

}  // namespace pipeshard::solver
