// BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot. Bits know no sign: every integer type is computed
// as the unsigned type of its size, and a shift to the right fills up with zeros.
#include <string>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {
namespace {

// Calls body(U{}) with the unsigned integer that stands for the type of input 0, which the output has as
// well.
template <typename Body>
std::unique_ptr<Kernel> withBits(const KernelSpec& spec, Body&& body) {
  const DataType type = spec.inputs[0].data_type;
  checkOutputType(spec, 0, type);
  if (!isInteger(type)) refuse(spec, "input 0 has type {}; the kernel supports integers", dataTypeName(type));
  return withElementSize(spec, type, "input 0", std::forward<Body>(body));
}

template <typename Op>
std::unique_ptr<Kernel> bitwise(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  return withBits(spec, [&](auto zero) {
    using T = decltype(zero);
    return makeBinary<Op, T, T>(spec);
  });
}

std::unique_ptr<Kernel> makeBitShift(const KernelSpec& spec) {
  const std::string direction = spec.node->stringAttribute("direction", "");
  if (direction == "LEFT") return bitwise<ShiftLeftOp>(spec);
  if (direction == "RIGHT") return bitwise<ShiftRightOp>(spec);
  refuse(spec, "attribute direction is '{}'; the kernel supports 'LEFT' and 'RIGHT'", direction);
}

std::unique_ptr<Kernel> makeBitwiseNot(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return withBits(spec, [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count](const KernelArguments& arguments) {
          applyUnary<InvertOp, T, T>(arguments.queue, {}, count, input<T>(arguments, 0),
                                     output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addBitwiseKernels(KernelRegistry& registry) {
  registry.add("", "BitShift", makeBitShift);
  registry.add("", "BitwiseAnd", bitwise<BitAndOp>);
  registry.add("", "BitwiseOr", bitwise<BitOrOp>);
  registry.add("", "BitwiseXor", bitwise<BitXorOp>);
  registry.add("", "BitwiseNot", makeBitwiseNot);
}

}  // namespace pipeshard::kernels
