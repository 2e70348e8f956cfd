// Shapes of tensors: a list of axis sizes, outermost first (row-major).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/base/data_type.h"

namespace pipeshard {

// Sizes per axis. Inside a Graph before shape inference an unknown or symbolic size is kUnknownSize; every
// shape that leaves onnx_import is static (no unknown sizes).
using Shape = std::vector<int64_t>;

inline constexpr int64_t kUnknownSize = -1;

// No axis is unknown.
bool isStatic(const Shape& shape);

// Product of the sizes; 1 for a scalar. Throws Error(kBadModel) if a size is negative or the product passes
// 2^62.
int64_t elementCount(const Shape& shape);

// elementCount times the element size. Throws as elementCount does, and for types without a whole-byte size.
int64_t byteCount(DataType type, const Shape& shape);

// "[8,16,64]"; an unknown size prints as "?".
std::string shapeToString(const Shape& shape);

// Elements to skip per axis for a dense row-major tensor: [8,16,64] gives [1024,64,1].
Shape rowMajorStrides(const Shape& shape);

// numpy/ONNX multidirectional broadcasting: [8,1,4] with [3,1] gives [8,3,4]. Throws Error(kBadModel) when
// impossible.
Shape broadcastShapes(const Shape& a, const Shape& b);

// Turns an axis in [-rank, rank) into [0, rank). Throws Error(kBadModel) outside of it.
int normalizeAxis(int64_t axis, size_t rank);

}  // namespace pipeshard
