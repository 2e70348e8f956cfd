#include "benchmarks/suite_fit.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace pipeshard {
namespace {

// Of a step, in parts of its measured time: what its classes of work take at the data sheet's rates.
struct Shares {
  double products = 0;  // matrix products and convolutions
  double memory = 0;    // all else
};

Shares sharesOf(const MeasuredStep& step) {
  const double base = step.predicted({1, 1, 1});
  const double memory = (step.predicted({1, 1, 0.5}) - base) / step.seconds;
  const Shares shares{base / step.seconds - memory, memory};
  fmt::print("{}: products {:.3f} and all else {:.3f} of the measured {:.2f} s at the data sheet's rates\n",
             step.name, shares.products, shares.memory, step.seconds);
  return shares;
}

// Of products, where memory has this one.
double fitted(const std::vector<Shares>& steps, double memory) {
  double squares = 0, left = 0;
  for (const Shares& step : steps) {
    squares += step.products * step.products;
    left += step.products * (1 - step.memory / memory);
  }
  return left > squares ? squares / left : 1;
}

double errors(const std::vector<Shares>& steps, double products, double memory) {
  double sum = 0;
  for (const Shares& step : steps) sum += std::pow(step.products / products + step.memory / memory - 1, 2);
  return sum;
}

}  // namespace

Cluster withEfficiency(Cluster cluster, const Efficiency& efficiency) {
  for (DeviceKind& kind : cluster.kinds) {
    kind.efficiency.fill(efficiency.memory);
    kind.efficiency[static_cast<size_t>(WorkClass::kContraction)] = efficiency.contraction;
    kind.efficiency[static_cast<size_t>(WorkClass::kConvolution)] = efficiency.convolution;
  }
  return cluster;
}

void printFit(const std::vector<MeasuredStep>& contractions, const std::vector<MeasuredStep>& convolutions) {
  std::vector<Shares> matrices, images;
  for (const MeasuredStep& step : contractions) matrices.push_back(sharesOf(step));
  for (const MeasuredStep& step : convolutions) images.push_back(sharesOf(step));
  for (int tenths = 4; tenths <= 10; ++tenths) {
    const double memory = tenths / 10.0;
    const double contraction = fitted(matrices, memory), convolution = fitted(images, memory);
    const double error = errors(matrices, contraction, memory) + errors(images, convolution, memory);
    fmt::print(
        "memory {:.2f} of the data sheet: contraction {:.2f}, convolution {:.2f}, error {:.1f} %\n", memory,
        contraction, convolution,
        100 * std::sqrt(error / static_cast<double>(std::max<size_t>(1, matrices.size() + images.size()))));
  }
}

}  // namespace pipeshard
