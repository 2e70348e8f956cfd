#include "sharding/solver/memory.h"

namespace pipeshard::solver {

Memory::Memory(const Model& model) {
  for (const ModelRow& row : model.rows) capacity_.push_back(row.capacity);
  for (const ModelNode& node : model.nodes) {
    begin_.push_back(items_.size());
    size_.push_back(node.size());
    for (const MemoryItem& item : node.items) {
      items_.push_back({item.from, item.to, std::ssize(usages_)});
      usages_.insert(usages_.end(), item.usages.begin(), item.usages.end());
    }
  }
  begin_.push_back(items_.size());
}

std::vector<double> Memory::prefix(const std::vector<double>& prices) const {
  std::vector<double> sums(prices.size() + 1, 0);
  for (size_t i = 0; i < prices.size(); ++i) sums[i + 1] = sums[i] + prices[i];
  return sums;
}

void Memory::addPrices(int32_t node, const std::vector<double>& prefix, double* costs) const {
  for (int32_t i = begin_[node]; i < begin_[node + 1]; ++i) {
    const Item& item = items_[i];
    const double price = prefix[item.to] - prefix[item.from];
    if (price <= 0) continue;
    const int64_t* usages = &usages_[item.at];
    for (int32_t x = 0; x < size_[node]; ++x) costs[x] += price * static_cast<double>(usages[x]);
  }
}

void Memory::addUsage(int32_t node, int32_t label, int64_t sign, std::vector<int64_t>& changes) const {
  for (int32_t i = begin_[node]; i < begin_[node + 1]; ++i) {
    const int64_t usage = sign * usages_[items_[i].at + label];
    changes[items_[i].from] += usage;
    changes[items_[i].to] -= usage;
  }
}

void Memory::bytesIn(int32_t row, int32_t node, double* bytes) const {
  for (int32_t i = begin_[node]; i < begin_[node + 1]; ++i) {
    const Item& item = items_[i];
    if (row < item.from || row >= item.to) continue;
    for (int32_t x = 0; x < size_[node]; ++x) bytes[x] += static_cast<double>(usages_[item.at + x]);
  }
}

std::vector<int64_t> Memory::usage(const std::vector<int32_t>& labels) const {
  std::vector<int64_t> changes(capacity_.size() + 1, 0);
  for (size_t i = 0; i + 1 < begin_.size(); ++i) {
    if (begin_[i] < begin_[i + 1]) addUsage(i, labels[i], 1, changes);
  }
  int64_t sum = 0;
  for (int64_t& change : changes) change = sum += change;
  changes.pop_back();
  return changes;
}

bool Memory::fits(const std::vector<int32_t>& labels) const {
  const std::vector<int64_t> bytes = usage(labels);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > capacity_[i]) return false;
  }
  return true;
}

}  // namespace pipeshard::solver
