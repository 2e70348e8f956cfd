// Prices of memory rows by a proximal bundle method. The lower bound is a function of the prices: the least
// of cost + prices * bytes over capacity, over all choices. An answer is the choice that is least at some
// prices; at all other prices the bound is at most what this choice gives there, which is a plane over the
// prices. So the least of the planes of all answers is an upper limit of the bound; the next prices are where
// that is highest, not far from the best prices so far.
//
//   Answers of cost 10, 4 bytes over, and of cost 30, 1 byte below capacity: at price p the bound is at most
//   min(10 + 4 p, 30 - p), which is highest at p = 4, with 26.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipeshard::solver {

class Bundle {
 public:
  // An answer: its cost without prices, and bytes over capacity by row.
  void add(double cost, std::vector<double> over, std::vector<int32_t> labels);
  // A row more, with the bytes over it of each answer, in the order of answers().
  void addRow(const std::vector<double>& over);
  const std::vector<std::vector<int32_t>>& answers() const { return labels_; }

  // The next prices after `centre`, the best so far, where the bound is `bound`; at the last prices that were
  // given it was `value`.
  std::vector<double> next(const std::vector<double>& centre, double bound, double value, double target);
  // How far the planes let the bound rise at the prices that next() gave; the most of the last few calls.
  double expectedRise() const { return *std::max_element(expected_rises_.begin(), expected_rises_.end()); }

 private:
  void balance(const std::vector<double>& centre, double bound);
  double clipped(const std::vector<double>& sum, const std::vector<double>& centre, size_t row) const;
  void dropOld();

  std::vector<double> costs_;
  std::vector<std::vector<double>> over_;
  std::vector<std::vector<int32_t>> labels_;
  std::vector<double> weights_;  // of each plane in the best mixture, sum 1
  std::vector<int32_t> unused_;  // for how many calls of next() its weight was 0
  double length_ = -1;           // of steps
  double last_bound_ = 0;
  std::array<double, 3> expected_rises_ = {kUnknown, kUnknown, kUnknown};  // the latest first

  static constexpr double kUnknown = 1e300;
};

}  // namespace pipeshard::solver
