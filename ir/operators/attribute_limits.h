// Numbers that no operator of ONNX gives a meaning to, or that nobody's memory has room for: said at the
// node, before shapes are found by them. ONNX's own inference divides by a stride of 0, and takes a keepdims
// of 2 for what another of its functions takes for 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The integer attributes of a node of ONNX's own domain: switches are 0 or 1; sizes, steps and counts from 1
// to 2^20; paddings up to 2^20; axes within 64. Error(kBadModel) naming node, attribute, number and what is
// allowed.
void checkAttributes(const Node& node);

// An input that gives a size per axis, of `length` elements: ONNX's inference makes as many axes as it has,
// whatever memory that takes. Error(kBadModel) above two for each of 64 axes.
void checkShapeInput(const Node& node, size_t input, int64_t length);

// Of a convolution of any kind: which of its inputs are the weights, if it has them. ONNX's inference reads
// behind its lists where their rank is not the rank of input 0: checkWindow is Error(kBadModel) then.
std::optional<size_t> windowInput(const Node& node);
void checkWindow(const Node& node, int64_t image_rank, int64_t window_rank);

// That a reduction names no axis twice, of `rank` axes, of which -1 is the last. Error(kBadModel).
void checkReducedAxes(const Node& node, const std::vector<int64_t>& axes, int64_t rank);

}  // namespace pipeshard
