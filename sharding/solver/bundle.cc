#include "sharding/solver/bundle.h"

#include <algorithm>
#include <limits>

namespace pipeshard::solver {

namespace {

constexpr size_t kMostPlanes = 40;

double product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace

void Bundle::add(double cost, std::vector<double> over, std::vector<int32_t> labels) {
  for (size_t i = 0; i < costs_.size(); ++i) {
    if (costs_[i] == cost && over_[i] == over) return;
  }
  costs_.push_back(cost);
  over_.push_back(std::move(over));
  labels_.push_back(std::move(labels));
  weights_.push_back(weights_.empty() ? 1 : 0);
  unused_.push_back(0);
  dropOld();
}

void Bundle::dropOld() {
  while (costs_.size() > kMostPlanes) {
    const auto oldest = std::max_element(unused_.begin(), unused_.end() - 1) - unused_.begin();
    const double weight = weights_[oldest];
    const auto drop = [&](auto& list) { list.erase(list.begin() + oldest); };
    drop(costs_);
    drop(over_);
    drop(labels_);
    drop(weights_);
    drop(unused_);
    weights_.back() += weight;
  }
}

void Bundle::addRow(const std::vector<double>& over) {
  for (size_t i = 0; i < over_.size(); ++i) over_[i].push_back(over[i]);
}

// The direction in a row; prices do not fall below 0.
double Bundle::clipped(const std::vector<double>& sum, const std::vector<double>& centre, size_t row) const {
  return std::max(sum[row], -centre[row] / length_);
}

// Moves weight from the plane that binds least to the one that binds most until they agree.
void Bundle::balance(const std::vector<double>& centre, double bound) {
  constexpr int32_t kMoves = 400;
  const size_t rows = centre.size(), planes = costs_.size();
  std::vector<double> slack(planes), sum(rows, 0), direction(rows), gradient(planes);
  for (size_t i = 0; i < planes; ++i) {
    slack[i] = std::max(0.0, costs_[i] + product(over_[i], centre) - bound);
    for (size_t r = 0; r < rows; ++r) sum[r] += weights_[i] * over_[i][r];
  }
  for (int32_t move = 0; move < kMoves; ++move) {
    for (size_t r = 0; r < rows; ++r) direction[r] = clipped(sum, centre, r);
    size_t most = planes, least = planes;
    for (size_t i = 0; i < planes; ++i) {
      gradient[i] = length_ * product(over_[i], direction) + slack[i];
      if (least == planes || gradient[i] < gradient[least]) least = i;
      if (weights_[i] > 0 && (most == planes || gradient[i] > gradient[most])) most = i;
    }
    const double difference = gradient[most] - gradient[least];
    if (difference <= 1e-3 + 1e-9 * bound || most == least) break;
    double square = 0;
    for (size_t r = 0; r < rows; ++r)
      square += (over_[least][r] - over_[most][r]) * (over_[least][r] - over_[most][r]);
    const double shift =
        square > 0 ? std::min(weights_[most], difference / (length_ * square)) : weights_[most];
    weights_[most] -= shift;
    weights_[least] += shift;
    for (size_t r = 0; r < rows; ++r) sum[r] += shift * (over_[least][r] - over_[most][r]);
  }
}

std::vector<double> Bundle::next(const std::vector<double>& centre, double bound, double value,
                                 double target) {
  const size_t rows = centre.size();
  if (length_ < 0) {
    const double square = product(over_.back(), over_.back());
    if (square <= 0) return centre;
    length_ = std::max(1e-6, target - bound) / square;
  } else {
    // Longer steps while the planes foresee well, shorter ones when they are far off.
    const double rise = value - last_bound_, expected = expected_rises_[0];
    length_ *= rise >= 0.5 * expected ? 4 : rise > 0.1 * expected ? 1.5 : rise > -expected ? 0.8 : 0.4;
  }
  last_bound_ = bound;
  balance(centre, bound);
  std::vector<double> sum(rows, 0), prices(rows);
  for (size_t i = 0; i < costs_.size(); ++i) {
    unused_[i] = weights_[i] > 0 ? 0 : unused_[i] + 1;
    for (size_t r = 0; r < rows; ++r) sum[r] += weights_[i] * over_[i][r];
  }
  for (size_t r = 0; r < rows; ++r) prices[r] = std::max(0.0, centre[r] + length_ * clipped(sum, centre, r));
  double roof = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < costs_.size(); ++i) roof = std::min(roof, costs_[i] + product(over_[i], prices));
  expected_rises_ = {roof - bound, expected_rises_[0], expected_rises_[1]};
  return prices;
}

}  // namespace pipeshard::solver
