#include "onnx_import/format/equal_numbers.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "onnx_import/format/initializer_bytes.h"

namespace pipeshard {

ValueId EqualNumbers::sourceOf(ValueId id) const {
  const auto found = source_.find(id);
  return found == source_.end() ? id : found->second;
}

bool EqualNumbers::are(ValueId a, ValueId b) const {
  if (graph_.dataType(a) != graph_.dataType(b) || graph_.shape(a) != graph_.shape(b)) return false;
  if (sourceOf(a) == sourceOf(b)) return true;
  const std::optional<std::vector<std::byte>> left = initializerBytes(graph_, a);
  return left && left == initializerBytes(graph_, b);
}

bool EqualNumbers::areTransposed(ValueId a, ValueId b) const {
  const Shape &shape = graph_.shape(a), &other = graph_.shape(b);
  if (shape.size() != 2 || other.size() != 2 || shape[0] != other[1] || shape[1] != other[0] ||
      graph_.dataType(a) != graph_.dataType(b))
    return false;
  const std::optional<std::vector<std::byte>> left = initializerBytes(graph_, a);
  const std::optional<std::vector<std::byte>> right = initializerBytes(graph_, b);
  if (!left || !right) return false;
  const size_t size = dataTypeSize(graph_.dataType(a));
  for (int64_t row = 0; row < shape[0]; ++row) {
    for (int64_t column = 0; column < shape[1]; ++column) {
      const std::byte* x = left->data() + (row * shape[1] + column) * static_cast<int64_t>(size);
      const std::byte* y = right->data() + (column * shape[0] + row) * static_cast<int64_t>(size);
      if (!std::equal(x, x + size, y)) return false;
    }
  }
  return true;
}

bool EqualNumbers::areDrawn(ValueId id) {
  const auto [found, is_new] = drawn_.try_emplace(sourceOf(id), false);
  const std::optional<std::vector<std::byte>> bytes = is_new ? initializerBytes(graph_, id) : std::nullopt;
  if (!bytes) return found->second;
  const size_t size = dataTypeSize(graph_.dataType(id));
  std::set<uint64_t> different;
  for (size_t at = 0; at + size <= bytes->size() && different.size() <= 2; at += size) {
    uint64_t number = 0;
    std::memcpy(&number, bytes->data() + at, std::min(size, sizeof number));
    different.insert(number);
  }
  return found->second = different.size() > 2;
}

}  // namespace pipeshard
