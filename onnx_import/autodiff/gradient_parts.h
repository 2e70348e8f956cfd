// What the readers of a value contribute to its gradient becomes one value.
//
//   x [10] is read as x[0:4], x[4:7] and a whole: Sum(the whole's, Concat(that of 0:4, that of 4:7, zeros
//   [3]))
//
// A recurrent layer reads its sequence step by step: padding each step's gradient to the whole, and adding
// these, would take time and memory quadratic in the steps.
//
//   w [512,2048] is read in 64 products, whose parts are the products x_t^T dy_t, of x_t [16,512] and dy_t
//   [16,2048]: one product of all x_t, one behind the other, and all dy_t
//
// where the copies are far smaller than the sum would be. The rows of all x_t are [16,64,512], the steps
// inside the rows of a batch, so that a batch can still be shared out.
#pragma once

#include <vector>

#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// The gradient of a value of this shape from all `parts`, of one type; at least one. Emitted by `context`,
// whose builder knows who makes the parts. Products that become one are replaced: BackwardBuilder::replace.
ValueId joinGradientParts(GradientContext& context, BackwardBuilder& builder, const Shape& shape,
                          const std::vector<GradientPart>& parts);

}  // namespace pipeshard
