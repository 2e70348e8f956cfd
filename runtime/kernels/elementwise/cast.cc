#include <limits>
#include <type_traits>

#include "ir/base/convert.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// Out-of-range numbers saturate and NaN becomes 0 (ONNX leaves both undefined).
template <typename To, typename From>
PIPESHARD_INLINE To castElement(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::lowest());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (!(x >= kLow)) return x != x ? To(0) : std::numeric_limits<To>::lowest();
    if (x >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
struct CastLoop {
  PIPESHARD_INLINE static void run(const From* x, To* y, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = castElement<To, From>(x[i]);
  }
};

// A bool in memory is read as a byte, since a file may hold other values than 0 and 1.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <typename From, typename To>
std::unique_ptr<Kernel> makeCast(const KernelSpec& spec) {
  const int64_t count = elementCount(spec.inputs[0].shape);
  KernelTraits traits;
  if (sizeof(From) == sizeof(To)) traits.in_place.emplace_back(0, 0);
  return makeKernel(
      [count](const KernelArguments& arguments) {
        const auto* x = input<Stored<From>>(arguments, 0);
        To* y = output<To>(arguments, 0);
        forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
          if constexpr (std::is_same_v<From, bool> && std::is_arithmetic_v<To>) {
            for (int64_t i = begin; i < end; ++i) y[i] = x[i] != 0 ? To(1) : To(0);
          } else {
            runVectorised<CastLoop<From, To>>(x + begin, y + begin, end - begin);
          }
        });
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

// Any other pair of types, rounded once.
std::unique_ptr<Kernel> makeConversion(const KernelSpec& spec, DataType to) {
  const DataType from = spec.inputs[0].data_type;
  const SmallFloatRounding rounding = roundingOf(*spec.node);
  return makeKernel([=, count = elementCount(spec.inputs[0].shape)](const KernelArguments& arguments) {
    const auto* x = input<std::byte>(arguments, 0);
    auto* y = output<std::byte>(arguments, 0);
    const auto from_bytes = static_cast<int64_t>(dataTypeSize(from));
    const auto to_bytes = static_cast<int64_t>(dataTypeSize(to));
    forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
      convertElements(from, x + begin * from_bytes, to, y + begin * to_bytes, end - begin, rounding);
    });
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
