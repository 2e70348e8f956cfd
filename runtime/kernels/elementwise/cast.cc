#include "runtime/kernels/elementwise/cast.h"
#include "ir/base/convert.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/base/widening.h"

namespace pipeshard::kernels {
namespace {

template <typename From, typename To>
std::unique_ptr<Kernel> makeCast(const KernelSpec& spec) {
  const int64_t count = elementCount(spec.inputs[0].shape);
  KernelTraits traits;
  if (sizeof(From) == sizeof(To)) traits.in_place.emplace_back(0, 0);
  return makeKernel(
      [count](const KernelArguments& arguments) {
        applyCast<From, To>(arguments.queue, count, input<Stored<From>>(arguments, 0),
                            output<To>(arguments, 0));
      },
      traits);
}

bool hasCastLoop(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kInt32 ||
         type == DataType::kInt64 || type == DataType::kInt8 || type == DataType::kUint8 ||
         type == DataType::kBool;
}

SmallFloatRounding roundingOf(const Node& node) {
  SmallFloatRounding rounding{.saturate = node.intAttribute("saturate", 1) != 0};
  const std::string power = node.stringAttribute("round_mode", "up");
  if (power == "nearest") {
    rounding.power = PowerRounding::kNearest;
  } else if (power == "down") {
    rounding.power = PowerRounding::kDown;
  } else if (power != "up") {
    fail(ErrorCode::kBadModel, "round_mode '{}' is none of up, down, nearest", power);
  }
  return rounding;
}

// From and to types that have no loops of their own (float16 and the like): rounded once.
std::unique_ptr<Kernel> makeConversion(const KernelSpec& spec, DataType to) {
  const DataType from = spec.inputs[0].data_type;
  if (!canConvert(from, to)) {
    refuse(spec,
           "a cast from {} to {}; this device knows float16, bfloat16, float32, float64, int8, int32, int64, "
           "uint8 and bool",
           dataTypeName(from), dataTypeName(to));
  }
  const SmallFloatRounding rounding = roundingOf(*spec.node);
  return makeKernel([=, count = elementCount(spec.inputs[0].shape)](const KernelArguments& arguments) {
    convertTensor(arguments.queue, from, arguments.inputs[0], to, arguments.outputs[0], count, rounding);
  });
}

std::unique_ptr<Kernel> castTo(const KernelSpec& spec, DataType to) {
  checkOutputType(spec, 0, to);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const DataType given = spec.inputs[0].data_type;
  if ((!hasCastLoop(given) || !hasCastLoop(to)) && isConvertible(given, to)) return makeConversion(spec, to);
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t, bool>(
      spec, spec.inputs[0].data_type, "input 0", [&](auto from) {
        return withType<float, double, int32_t, int64_t, int8_t, uint8_t, bool>(
            spec, to, "output 0",
            [&](auto target) { return makeCast<decltype(from), decltype(target)>(spec); });
      });
}

}  // namespace

void addCastKernels(KernelRegistry& registry) {
  registry.add("", "Cast", [](const KernelSpec& spec) {
    checkArity(spec, 1, 1);
    return castTo(spec, static_cast<DataType>(spec.node->intAttribute("to", 0)));
  });
  registry.add("", "CastLike", [](const KernelSpec& spec) {
    checkArity(spec, 2, 2);
    return castTo(spec, spec.inputs[1].data_type);
  });
}

}  // namespace pipeshard::kernels
