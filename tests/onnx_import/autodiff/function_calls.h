// Calls of every pipeshard function, for tests of their bodies and kernels.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::testing {

struct Call {
  std::string name;
  std::string overload;
  std::vector<Constant> inputs;  // float64, or int64; `constant_inputs` of them are initializers
  std::vector<Shape> outputs;
  std::map<std::string, Attribute> attributes = {};
  std::set<size_t> constant_inputs = {};
};

// Random, other ones each time.
Constant numbers(const Shape& shape, double low = -1, double high = 1);

std::vector<Call> allCalls();

}  // namespace pipeshard::testing
