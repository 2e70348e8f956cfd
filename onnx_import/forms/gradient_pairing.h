// Which output is the gradient of which parameter, where names do not say. Internal to onnx_import/forms.
//
// Exporters of joint graphs write the gradients in the order of the parameters; those of frozen ones are left
// out. Type and shape must agree. That alone may leave a choice:
//
//   parameters a [8,8], b [8,8] (frozen), c [4]      outputs g0 [8,8], g1 [4]      g0 may belong to a or b
//
// Then it is looked at what the gradient was computed from. Of y = x W it is a product of x and dy, and where
// x has a gradient, too, that is a product of dy and W. So values that the loss depends on are gathered:
//   of the parameter   what it is multiplied with, and itself: x, W; of a bias beside it the same
//   of the gradient    what it is a product of, and what the dy in it is multiplied with elsewhere: x, W
// The more they have in common, the likelier the two belong together; nothing in common speaks against it,
// and no values on one side say nothing.
//
// A pairing is taken if every gradient has most in common with one parameter, each with another one; or else
// if it is the only one in order that nothing speaks against, or has more in common than every other.
#pragma once

#include <vector>

#include "onnx_import/forms/step_graph.h"

namespace pipeshard {

struct GradientPairing {
  enum class Found { kNone, kPaired, kAmbiguous };
  Found found = Found::kNone;      // kNone: no pairing in order has types and shapes that agree
  std::vector<ValueId> parameter;  // by gradient; if found == kPaired
  size_t confirmed = 0;            // pairs
};

GradientPairing pairGradients(const StepGraph& step, const std::vector<ValueId>& gradients,
                              const std::vector<ValueId>& parameters);

}  // namespace pipeshard
