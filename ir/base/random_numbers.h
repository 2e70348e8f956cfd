// Numbers that are drawn: by a training step (the mask of a Dropout), as an input that no data give, or for a
// weight that no file has. Every element is a function of the seed, the step (0 for a weight), the tensor's
// name and the element's place in the whole tensor alone (runtime/files/random_numbers.h). So any plan, any
// number of microbatches and any repetition sees the same numbers.
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
  // Floating-point numbers are multiplied by `scale`, then `shift` is added.
  double scale = 1;
  double shift = 0;
  friend bool operator==(const RandomNumbers&, const RandomNumbers&) = default;
};

}  // namespace pipeshard
