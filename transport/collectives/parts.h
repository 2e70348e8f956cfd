// How the arrays of a collective are cut among its members.
#pragma once

#include <algorithm>
#include <cstddef>

namespace pipeshard {

struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t count() const { return end - begin; }
};

// Part `index` of `parts` of [0, count): equal, in multiples of a cache line, the last ones shorter or empty.
inline Range partOf(size_t count, size_t parts, size_t index, size_t element_bytes) {
  const size_t line = std::max<size_t>(1, 64 / element_bytes);
  const size_t each = ((count + parts - 1) / parts + line - 1) / line * line;
  return {std::min(count, index * each), std::min(count, (index + 1) * each)};
}

}  // namespace pipeshard
