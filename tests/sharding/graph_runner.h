// Runs prepared graphs node by node with the CPU kernels, for tests that compare a whole computation with its
// parts.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::testing {

using Tensors = std::map<std::string, Constant>;  // by value name

// The values named `wanted`. `given`: graph inputs, and initializers that are weight references. Runs only
// what is needed. `collectives`: what its collective nodes call.
Tensors runGraph(const Graph& graph, const Tensors& given, const std::vector<std::string>& wanted,
                 Collectives* collectives = nullptr);

// One node, whose inputs are constants or in `values`; its outputs are put there.
void runNode(const Graph& graph, const Node& node, Tensors& values, Collectives* collectives = nullptr);

// Normally distributed elements of type float64 or float32.
Constant randomReals(std::mt19937_64& generator, const Shape& shape, DataType type = DataType::kFloat64);
// Uniform in [low, high), int64.
Constant randomIntegers(std::mt19937_64& generator, const Shape& shape, int64_t low, int64_t high);
Constant randomFlags(std::mt19937_64& generator, const Shape& shape);

// Entries `indices` of an axis, in this order.
Constant selectAlong(const Constant& tensor, size_t axis, const std::vector<int64_t>& indices);
// The other way: entries of `part` become entries `indices` of `whole`.
void placeAlong(Constant& whole, const Constant& part, size_t axis, const std::vector<int64_t>& indices);

// max |a - b| / max(1, max |b|); infinite when type or shape differ or only one side has a NaN.
double distance(const Constant& a, const Constant& b);

}  // namespace pipeshard::testing
