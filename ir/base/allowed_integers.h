// Which integers a batch input may hold without being refused by the model.
#pragma once

#include <cstdint>
#include <optional>

namespace pipeshard {

// [low, high), and the label that does not count, if there is one: class labels of 10 classes are {0, 10,
// -100}, indices of a table with 50 rows {-50, 50} (ONNX counts negative indices from the end).
struct AllowedIntegers {
  int64_t low = 0;
  int64_t high = 0;
  std::optional<int64_t> ignored = {};
  bool exact = true;  // false: elements may be cut off or replaced before an operator could refuse them
  bool contains(int64_t number) const { return (number >= low && number < high) || number == ignored; }
  friend bool operator==(const AllowedIntegers&, const AllowedIntegers&) = default;
};

}  // namespace pipeshard
