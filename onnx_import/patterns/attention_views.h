// Scores are viewed with other axes before their matrices, and back: Swin's windows [b*w, h] are [b, w, h]
// for a mask of windows; heads [h] are groups of heads that share their keys [g, h/g]. The attention takes
// the finer of two such views, and what lies over the scores is viewed alike.
#pragma once

#include <optional>
#include <vector>

#include "ir/base/shape.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// Without the axes of the matrices.
Shape leadingAxes(const Shape& shape);
// With those of `matrices`.
Shape withMatrices(Shape leading, const Shape& matrices);

// How many axes of `fine` each axis of `coarse` is made of: [8,3], [2,4,3] -> {2,1}. nullopt: they do not
// match. At another size of a batch, the same.
std::optional<std::vector<int>> axesOfEach(const Shape& coarse, const Shape& fine);

// Matrices of heads that are one axis with the rows of the batch: the operand of an attention is Transpose of
// a view [s,bh,d] of [s,b,hd]. Its leading axes when these are two, [b,h]; nullopt where they are not.
std::optional<Shape> headsOfRows(const Graph& graph, const UseDef& uses, ValueId operand);

// What is broadcast to [coarse.., i, j], as it is broadcast to [fine.., i, j]. The same shape where none of
// its axes is divided.
std::optional<Shape> viewOfOverlay(const Shape& overlay, const Shape& coarse, const Shape& fine);

}  // namespace pipeshard
