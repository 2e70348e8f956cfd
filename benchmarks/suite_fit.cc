#include "benchmarks/suite_fit.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace pipeshard {
namespace {

void fitTwo(const MeasuredStep& gpt, const MeasuredStep& moe, Efficiency& efficiency) {
  std::array<std::array<double, 3>, 2> equations{};  // a / contraction + b / memory = c
  size_t i = 0;
  for (const MeasuredStep* step : {&gpt, &moe}) {
    const double base = step->predicted({1, 1, 1});
    const double contraction = step->predicted({0.5, 1, 1}) - base;
    equations[i++] = {contraction, base - contraction, step->seconds};
    fmt::print("{}: contractions {:.2f} s, memory {:.2f} s at the data sheet's rates, measured {:.2f} s\n",
               step->name, contraction, base - contraction, step->seconds);
  }
  const auto& [one, two] = equations;
  const double determinant = one[0] * two[1] - two[0] * one[1];
  const double x = (one[2] * two[1] - two[2] * one[1]) / determinant;
  const double y = (one[0] * two[2] - two[0] * one[2]) / determinant;
  if (x >= 1 && y > 0) {
    efficiency.contraction = 1 / x;
    efficiency.memory = 1 / y;
  } else {  // no such pair is physical: one factor for both
    fmt::print("the two fit no pair of efficiencies (1/{:.2f}, 1/{:.2f}): one is fitted for both\n", x, y);
    efficiency.contraction = efficiency.memory = (one[0] + one[1] + two[0] + two[1]) / (one[2] + two[2]);
  }
}

}  // namespace

Efficiency fitEfficiency(const MeasuredStep* gpt, const MeasuredStep* moe, const MeasuredStep* wrn) {
  Efficiency efficiency;
  if (gpt != nullptr && moe != nullptr) fitTwo(*gpt, *moe, efficiency);
  if (wrn != nullptr) {
    const double base = wrn->predicted({efficiency.contraction, 1, efficiency.memory});
    const double convolution = wrn->predicted({efficiency.contraction, 0.5, efficiency.memory}) - base;
    const double left = wrn->seconds - (base - convolution);
    fmt::print("{}: convolutions {:.2f} s at the data sheet's rate, the rest {:.2f} s, measured {:.2f} s\n",
               wrn->name, convolution, base - convolution, wrn->seconds);
    if (left > 0) efficiency.convolution = std::min(1.0, convolution / left);
  }
  fmt::print("fitted on one GPU: contraction {:.2f}, convolution {:.2f}, memory {:.2f} of the data sheet\n\n",
             efficiency.contraction, efficiency.convolution, efficiency.memory);
  return efficiency;
}

}  // namespace pipeshard
