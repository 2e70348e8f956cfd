#include "sharding/solver/relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pipeshard::solver {

Relaxation::Relaxation(const Model& model)
    : model_(model), memory_(model), messages_(model), costs_(messages_.costCount()), bound_(-std::numeric_limits<double>::infinity()) {
  last_progress_ = bound_;
  for (const ModelRow& row : model.rows) prices_.push_back(row.price);
  best_prices_ = prices_;
  work_ = messages_.work() + static_cast<int64_t>(4 * prices_.size() + costs_.size());
}

void Relaxation::setCosts(const std::vector<double>& prices) {
  const std::vector<double> prefix = memory_.prefix(prices);
  for (size_t i = 0; i < nodes().size(); ++i) {
    const std::vector<double>& costs = model_.nodes[nodes()[i]].costs;
    std::copy(costs.begin(), costs.end(), &costs_[offset(i)]);
    memory_.addPrices(nodes()[i], prefix, &costs_[offset(i)]);
  }
}

double Relaxation::sweep(const std::vector<double>& prices) {
  const double bound = messages_.sweep(costs_) + model_.constant, capacity_price = memory_.capacityPrice(prices);
  return bound - capacity_price - 1e-3 - 1e-11 * (std::abs(bound) + capacity_price);
}

void Relaxation::step(double target) {
  constexpr int32_t kPatience = 20;
  setCosts(prices_);
  const double bound = sweep(prices_);
  ++steps_;
  ++stalled_;
  ++since_shrink_;
  if (bound > bound_) {
    bound_ = bound;
    best_prices_ = prices_;
    if (bound - last_progress_ > 1e-3 * std::abs(target - bound) || last_progress_ == -std::numeric_limits<double>::infinity()) {
      last_progress_ = bound;
      stalled_ = 0;
    }
    if (stalled_ == 0) since_shrink_ = 0;
  }
  if (since_shrink_ > kPatience) {
    step_size_ *= 0.8;
    since_shrink_ = 0;
    prices_ = best_prices_;
  }
  movePrices(target);
}

// A row's price moves if it has one already, or if it is the fullest of rows that are too full, one beside the other.
void Relaxation::movePrices(double target) {
  const std::vector<int64_t> usage = memory_.usage(messages_.labels());
  const double weight = std::max(0.1, 1.0 / (1 + 0.2 * steps_));
  fit_ = true;
  if (average_.empty()) average_.assign(usage.begin(), usage.end());
  std::vector<double> over(usage.size());
  for (size_t i = 0; i < usage.size(); ++i) {
    fit_ &= usage[i] <= memory_.capacity(i);
    average_[i] += weight * (static_cast<double>(usage[i]) - average_[i]);
    over[i] = average_[i] - static_cast<double>(memory_.capacity(i));
  }
  std::vector<double> direction(usage.size(), 0);
  for (size_t i = 0; i < over.size();) {
    if (prices_[i] > 0) direction[i] = over[i];
    if (over[i] <= 0) {
      ++i;
      continue;
    }
    size_t most = i;
    for (; i < over.size() && over[i] > 0; ++i) {
      if (over[i] > over[most]) most = i;
      if (prices_[i] > 0) direction[i] = over[i];
    }
    direction[most] = over[most];
  }
  double square = 0;
  for (const double change : direction) square += change * change;
  const double distance = target - bound_;
  if (square == 0 || distance <= 0 || steps_ < 10) return;
  const double step = step_size_ * distance / square;
  for (size_t i = 0; i < prices_.size(); ++i) prices_[i] = std::max(0.0, prices_[i] + step * direction[i]);
}

Relaxation::Excess Relaxation::excess() {
  constexpr int32_t kSweeps = 8;
  setCosts(best_prices_);
  Excess result;
  for (int32_t i = 0; i < kSweeps; ++i) result.bound = sweep(best_prices_);
  bound_ = std::max(bound_, result.bound);
  result.rise = messages_.excess();
  return result;
}

}  // namespace pipeshard::solver
