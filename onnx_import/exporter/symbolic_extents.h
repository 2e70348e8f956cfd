// Sizes of a graph as read, before its symbolic dimensions are bound: products such as 5 * batch. Internal to
// onnx_import.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A product of a number and symbolic dimensions: 5 * batch.
struct Extent {
  int64_t factor = 1;
  std::multiset<std::string> symbols;
  friend bool operator==(const Extent&, const Extent&) = default;
};
using MaybeExtent = std::optional<Extent>;

MaybeExtent times(const MaybeExtent& a, const MaybeExtent& b);
// Nothing if it does not go without a rest whatever the symbols stand for.
MaybeExtent dividedBy(const Extent& whole, const Extent& part);

// "12" as 12; nothing for any other text.
std::optional<int64_t> wholeNumber(std::string_view text);

// Whether the first `count` inputs are there.
bool hasOperands(const Node& node, size_t count);

inline constexpr int kLongestChain = 16;  // nodes that are followed from a value to where it comes from

// Where values of a graph come from, and how large they are. The graph must not change meanwhile.
class SymbolicExtents {
 public:
  explicit SymbolicExtents(const Graph& graph);

  // Nothing for inputs, initializers and values that were added later.
  const Node* producerOf(ValueId value) const;
  // The extents of its axes; empty too where they are not known.
  std::vector<Extent> axesOf(ValueId id) const;
  // Of a tensor that is not a scalar.
  MaybeExtent elementsOf(ValueId id) const;
  // The whole number that a scalar is, in terms of the sizes of the inputs.
  MaybeExtent numberIn(ValueId id, int depth = 0) const;

 private:
  MaybeExtent oneAxis(const Node& shape) const;

  const Graph& graph_;
  std::vector<NodeId> producer_;
};

}  // namespace pipeshard
