// Which axes a reduction folds: ReduceSum, ReduceMean, ..., ONNX's and their like.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// `given`: what its axes input holds (newer versions), or its attribute (older ones); empty: it names none.
// Those that are given, as they are written, or all of `rank` axes where it names none; but none where it
// says that none means none (noop_with_empty_axes).
template <typename Axis>
std::vector<Axis> reducedAxes(const Node& node, std::vector<Axis> given, size_t rank) {
  if (!given.empty() || node.intAttribute("noop_with_empty_axes", 0) != 0) return given;
  given.resize(rank);
  std::iota(given.begin(), given.end(), Axis{0});
  return given;
}

}  // namespace pipeshard
