// Kernels of operators of two broadcast operands, on any device.
#pragma once

#include "runtime/kernels/base/broadcast.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary_functors.h"

namespace pipeshard::kernels {

// The kernel of a two-input operator whose types are already checked.
template <typename Op, typename T, typename R, typename U = T>
std::unique_ptr<Kernel> makeBinary(const KernelSpec& spec) {
  const Shape& a = spec.inputs[0].shape;
  const Shape& b = spec.inputs[1].shape;
  checkOutputShape(spec, 0, broadcastShapes(a, b));
  const Broadcast plan = makeBroadcast(spec.outputs[0].shape, {a, b});
  return makeKernel(
      [plan](const KernelArguments& arguments) {
        applyBinary<Op, T, R, U>(arguments.queue, plan, input<T>(arguments, 0), input<U>(arguments, 1),
                                 output<R>(arguments, 0));
      },
      inPlaceTraits(spec, {0, 1}));
}

}  // namespace pipeshard::kernels
