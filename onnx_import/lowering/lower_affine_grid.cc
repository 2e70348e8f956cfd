// AffineGrid: a product with the places of an image, which are constants.
//
// ONNX's own body of it does not work with one example: a Squeeze there takes the axis of the batch, too.
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// Where element `i` of `size` is along an axis on which -1 and 1 are the centres of the outer elements
// (align_corners), or their outer edges.
double placeOnAxis(int64_t i, int64_t size, bool align_corners) {
  const auto at = static_cast<double>(i);
  const auto count = static_cast<double>(size);
  return align_corners ? 2 * at / (count - 1) - 1 : (2 * at + 1) / count - 1;
}

// theta [N, D, D + 1] of images with D axes; result [N, ..., D], the last axis in reverse order of the
// images'.
void lowerAffineGrid(LoweringContext& c) {
  const ValueId theta = c.input(0);
  const Shape given = c.shape(theta);
  const Shape result = c.outputShape();
  const int64_t axes = std::ssize(result) - 2;
  if ((axes != 2 && axes != 3) || given != Shape({result[0], axes, axes + 1}) || result.back() != axes)
    c.refuse(fmt::format("its theta is {}, its output {}", shapeToString(given), shapeToString(result)));
  const bool align_corners = c.node().intAttribute("align_corners", 0) != 0;
  const Shape image(result.begin() + 1, result.end() - 1);
  const int64_t count = elementCount(image);
  c.requireTable({axes + 1, count});
  const Shape strides = rowMajorStrides(image);
  std::vector<double> places;  // [D + 1, elements], below the axes a row of ones
  for (int64_t axis = axes; axis-- > 0;) {
    if (align_corners && image[axis] == 1)
      c.refuse("align_corners of an axis with one element, which runtimes understand differently");
    for (int64_t i = 0; i < count; ++i)
      places.push_back(placeOnAxis(i / strides[axis] % image[axis], image[axis], align_corners));
  }
  places.insert(places.end(), count, 1);
  const ValueId product = c.matMul(theta, c.numbers(c.type(theta), {axes + 1, count}, places));
  c.give(0, c.reshape(c.transpose(product, {0, 2, 1}), result));
}

}  // namespace

void addAffineGridLowerings(LoweringRules& rules) { rules[{"", "AffineGrid"}] = lowerAffineGrid; }

}  // namespace pipeshard
