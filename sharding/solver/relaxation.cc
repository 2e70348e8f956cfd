#include "sharding/solver/relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sharding/solver/ordering.h"

namespace pipeshard::solver {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr int32_t kConverged = 1 << 20;
constexpr int64_t kCheapElimination = 200'000;  // entries
constexpr int64_t kDearElimination = 50'000'000;
// message passing needs about as many for a bound that is worse
constexpr int64_t kSweepsPerElimination = 40;

}  // namespace

Relaxation::Relaxation(const Model& model)
    : model_(model),
      memory_(model),
      is_active_(model.rows.size(), false),
      labels_(model.nodes.size(), 0),
      bound_(kNone),
      last_progress_(kNone) {
  std::vector<int32_t> alive;
  int64_t entries = 0;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (model.nodes[i].size() > 0) alive.push_back(i);
  }
  for (const ModelEdge& edge : model.edges) entries += edge.a >= 0 ? std::ssize(edge.table) : 0;
  const Ordering ordering = orderNodes(model, alive, {});
  if (ordering.work <= std::clamp(kSweepsPerElimination * 2 * entries, kCheapElimination, kDearElimination)) {
    elimination_.emplace(model, ordering.order);
    nodes_ = ordering.order;
    for (size_t i = 0; i <= nodes_.size(); ++i) offsets_.push_back(elimination_->offset(i));
    work_ = elimination_->work();
  } else {
    messages_.emplace(model);
    nodes_ = messages_->nodes();
    for (size_t i = 0; i <= nodes_.size(); ++i) offsets_.push_back(messages_->offset(i));
    work_ = messages_->work();
  }
  costs_.resize(offsets_.back());
  work_ += 4 * model.rows.size() + 4 * costs_.size();
  for (size_t i = 0; i < model.rows.size(); ++i) {
    if (model.rows[i].price > 0) addRow(i, model.rows[i].price);
  }
}

void Relaxation::addRow(int32_t row, double price) {
  if (is_active_[row]) return;
  is_active_[row] = true;
  ActiveRow added{.row = row,
                  .price = price,
                  .best_price = price,
                  .average = 0,
                  .bytes = std::vector<double>(costs_.size(), 0)};
  for (size_t i = 0; i < nodes_.size(); ++i) memory_.bytesIn(row, nodes_[i], &added.bytes[offsets_[i]]);
  added.average = bytesNow(added, labels_);
  std::vector<double> over;
  for (const std::vector<int32_t>& labels : bundle_.answers()) {
    over.push_back(bytesNow(added, labels) - static_cast<double>(memory_.capacity(row)));
  }
  bundle_.addRow(over);
  active_.push_back(std::move(added));
}

double Relaxation::bytesNow(const ActiveRow& row, const std::vector<int32_t>& labels) const {
  double bytes = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) bytes += row.bytes[offsets_[i] + labels[nodes_[i]]];
  return bytes;
}

void Relaxation::setCosts(bool best) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<double>& costs = model_.nodes[nodes_[i]].costs;
    std::copy(costs.begin(), costs.end(), &costs_[offsets_[i]]);
  }
  for (const ActiveRow& row : active_) {
    const double price = best ? row.best_price : row.price;
    if (price <= 0) continue;
    for (size_t i = 0; i < costs_.size(); ++i) costs_[i] += price * row.bytes[i];
  }
}

// Returns the bound.
double Relaxation::findLabels(bool best) {
  setCosts(best);
  double capacity_price = 0;
  for (const ActiveRow& row : active_) {
    capacity_price += (best ? row.best_price : row.price) * static_cast<double>(memory_.capacity(row.row));
  }
  double bound = model_.constant;
  if (elimination_) {
    bound += elimination_->run(costs_);
    elimination_->assign(labels_);
  } else {
    bound += messages_->sweep(costs_);
    labels_ = messages_->labels();
  }
  return bound - capacity_price - 1e-3 - 1e-11 * (std::abs(bound) + capacity_price);
}

void Relaxation::step(double target) {
  constexpr int32_t kPatience = 20;
  const double bound = findLabels(false);
  ++steps_;
  ++stalled_;
  ++since_shrink_;
  if (bound > bound_) {
    if (last_progress_ == kNone || bound - last_progress_ > 1e-3 * std::abs(target - bound)) {
      last_progress_ = bound;
      stalled_ = 0;
      since_shrink_ = 0;
    }
    bound_ = bound;
    for (ActiveRow& row : active_) row.best_price = row.price;
  }
  if (elimination_) {
    checkAllRows();
    return movePricesByBundle(bound, target);
  }
  if (since_shrink_ > kPatience) {
    step_size_ *= 0.8;
    since_shrink_ = 0;
    for (ActiveRow& row : active_) row.price = row.best_price;
  }
  checkAllRows();
  movePrices(target);
}

// Sets fit_, and gives prices to rows that are too full: the fullest of those that follow each other.
void Relaxation::checkAllRows() {
  const std::vector<int64_t> usage = memory_.usage(labels_);
  fit_ = true;
  for (size_t i = 0; i < usage.size();) {
    if (usage[i] <= memory_.capacity(i)) {
      ++i;
      continue;
    }
    fit_ = false;
    size_t most = i;
    int64_t most_active = 0;
    for (; i < usage.size() && usage[i] > memory_.capacity(i); ++i) {
      if (usage[i] - memory_.capacity(i) > usage[most] - memory_.capacity(most)) most = i;
      if (is_active_[i]) most_active = std::max(most_active, usage[i] - memory_.capacity(i));
    }
    if (2 * most_active < usage[most] - memory_.capacity(most)) addRow(most, 0);
  }
}

void Relaxation::movePrices(double target) {
  constexpr int32_t kMostIdle = 50;
  const double weight = std::max(0.1, 1.0 / (1 + 0.02 * steps_));
  double square = 0;
  for (ActiveRow& row : active_) {
    row.average += weight * (bytesNow(row, labels_) - row.average);
    const double over = row.average - static_cast<double>(memory_.capacity(row.row));
    if (over > 0 || row.price > 0) square += over * over;
    row.idle = over > 0 || row.price > 0 || row.best_price > 0 ? 0 : row.idle + 1;
    if (row.idle > kMostIdle) is_active_[row.row] = false;
  }
  std::erase_if(active_, [](const ActiveRow& row) { return row.idle > kMostIdle; });
  const double distance = target - bound_;
  if (square == 0 || distance <= 0 || (messages_ && steps_ < 10)) return;
  const double step = step_size_ * distance / square;
  for (ActiveRow& row : active_) {
    row.price =
        std::max(0.0, row.price + step * (row.average - static_cast<double>(memory_.capacity(row.row))));
  }
}

void Relaxation::movePricesByBundle(double bound, double target) {
  std::vector<double> over, centre;
  for (const ActiveRow& row : active_) {
    over.push_back(bytesNow(row, labels_) - static_cast<double>(memory_.capacity(row.row)));
    centre.push_back(row.best_price);
  }
  if (active_.empty()) {
    stalled_ = kConverged;
    return;
  }
  bundle_.add(model_.cost(labels_), std::move(over), labels_);
  const std::vector<double> prices = bundle_.next(centre, bound_, bound, target);
  for (size_t i = 0; i < active_.size(); ++i) active_[i].price = prices[i];
  if (bundle_.expectedRise() < std::max(0.3, 1e-3 * std::abs(target - bound_))) stalled_ = kConverged;
}

Relaxation::Excess Relaxation::excess() {
  constexpr int32_t kSweeps = 8;
  Excess result;
  result.bound = findLabels(true);
  if (elimination_) {
    result.rise = elimination_->marginals();
    const double least =
        nodes_.empty() ? 0 : *std::min_element(result.rise.begin(), result.rise.begin() + offsets_[1]);
    for (double& rise : result.rise) rise -= least;
  } else {
    for (int32_t i = 1; i < kSweeps; ++i) result.bound = findLabels(true);
    result.rise = messages_->excess();
  }
  bound_ = std::max(bound_, result.bound);
  return result;
}

std::vector<double> Relaxation::prices() const {
  std::vector<double> result(memory_.rows(), 0);
  for (const ActiveRow& row : active_) result[row.row] = row.best_price;
  return result;
}

std::vector<double> Relaxation::bytesCost() const {
  std::vector<double> result(costs_.size(), 0);
  for (const ActiveRow& row : active_) {
    for (size_t i = 0; i < result.size(); ++i) result[i] += row.best_price * row.bytes[i];
  }
  return result;
}

}  // namespace pipeshard::solver
