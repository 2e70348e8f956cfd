// What an input that is drawn in every step holds, for tests that run a graph without a job.
#pragma once

#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "runtime/files/random_numbers.h"

namespace pipeshard::testing {

// `box`: of the input of the whole batch, whose shape is `whole`; the value is of the box's shape.
inline Constant drawnContent(const Value& value, const Shape& whole, const Shard& box, uint64_t seed = 0,
                             int64_t step = 1) {
  ProgramInput input{value.name, value.data_type, whole};
  input.drawn = value.drawn;
  const size_t bytes = elementCount(box.size) * dataTypeSize(value.data_type);
  Constant content{value.data_type, box.size, std::vector<std::byte>(bytes)};
  writeRandomNumbers(input, seed, step, box, content.bytes);
  return content;
}

}  // namespace pipeshard::testing
