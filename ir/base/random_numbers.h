// Numbers that a training step draws (the mask of a Dropout), as an input that no data give: every element is
// a function of the seed, the step, the input's name and the element's place in the whole batch alone
// (runtime/files/data.h). So any plan, any number of microbatches and any repetition sees the same numbers.
#pragma once

#include <cstdint>

namespace pipeshard {

struct RandomNumbers {
  enum class Kind : uint8_t {
    kUniform,  // floating-point, in [0, 1)
    kNormal,   // floating-point, mean 0, variance 1
    kTrue,     // bool, true with `probability`
  };
  Kind kind = Kind::kUniform;
  double probability = 0;  // kTrue
  friend bool operator==(const RandomNumbers&, const RandomNumbers&) = default;
};

}  // namespace pipeshard
