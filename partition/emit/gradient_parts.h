// Which values are parts of which gradients. Internal to partition/emit/.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "ir/graph/training_graph.h"

namespace pipeshard {

// From a value to the parameters whose gradients it is a part of: index of the parameter, and of the part.
using GradientParts = std::multimap<ValueId, std::pair<size_t, size_t>>;

// Of parameters that are trained.
inline GradientParts gradientParts(const TrainingGraph& training) {
  GradientParts parts;
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    if (!isTrained(training.parameters[p])) continue;
    for (size_t i = 0; i < training.parameters[p].gradient_parts.size(); ++i)
      parts.emplace(training.parameters[p].gradient_parts[i], std::pair{p, i});
  }
  return parts;
}

}  // namespace pipeshard
