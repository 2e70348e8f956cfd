// What a step is made of: a plan has a set of programs for every size.
#pragma once

#include <compare>
#include <cstddef>

namespace pipeshard {

struct StepSize {
  bool last_batch = false;  // the rows of the shorter batch that ends an epoch, not those of a whole one
  // Of sequences: 0: the longest, which the plan was made for; k: the k-th shorter one, descending
  // (Plan::shorter_lengths).
  size_t length = 0;

  friend auto operator<=>(const StepSize&, const StepSize&) = default;
  static const StepSize kWholeBatch, kLastBatch;
};
inline constexpr StepSize StepSize::kWholeBatch{};
inline constexpr StepSize StepSize::kLastBatch{true};

}  // namespace pipeshard
