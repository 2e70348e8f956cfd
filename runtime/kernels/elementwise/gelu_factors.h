// The numbers in a Gelu and in its gradient.
#pragma once

#include <cmath>

#include "ir/graph/graph.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {

// Those of the node (pipeshard::Gelu, of a file that holds them rounded), else the exact ones.
inline UnaryParameters geluFactors(const Node& node) {
  const bool tanh = node.stringAttribute("approximate", "none") == "tanh";
  const auto given = [&](const char* name, double exact) {
    return node.hasAttribute(name) ? double{node.floatAttribute(name, 0)} : exact;
  };
  UnaryParameters factors;
  factors.alpha = given("factor", tanh ? M_2_SQRTPI * M_SQRT1_2 : M_SQRT1_2);
  if (node.hasAttribute("divisor")) factors.alpha = 1 / given("divisor", 1);
  factors.beta = given("cubic", 0.044715);
  return factors;
}

}  // namespace pipeshard::kernels
