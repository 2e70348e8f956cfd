#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary_loop.h"

namespace pipeshard::kernels {
namespace {

struct EqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a == b;
  }
};
struct EqualBoolOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return (a != 0) == (b != 0); }
};
struct LessOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a < b;
  }
};
struct LessOrEqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a <= b;
  }
};
struct GreaterOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a > b;
  }
};
struct GreaterOrEqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a >= b;
  }
};

template <typename Op>
std::unique_ptr<Kernel> comparison(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkOutputType(spec, 0, DataType::kBool);
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t>(
      spec, spec.inputs[0].data_type, "input 0",
      [&](auto zero) { return makeBinary<Op, decltype(zero), bool>(spec); });
}

std::unique_ptr<Kernel> equal(const KernelSpec& spec) {
  if (!hasInput(spec, 0) || spec.inputs[0].data_type != DataType::kBool) return comparison<EqualOp>(spec);
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, DataType::kBool);
  checkOutputType(spec, 0, DataType::kBool);
  return makeBinary<EqualBoolOp, uint8_t, bool>(spec);
}

template <typename T, int StepCondition, int StepX, int StepY>
struct WhereLoop {
  PIPESHARD_INLINE static void run(const uint8_t* condition, const T* x, const T* y, T* out, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T yes = x[i * StepX];
      const T no = y[i * StepY];
      out[i] = condition[i * StepCondition] != 0 ? yes : no;
    }
  }
};

template <typename T>
void runWhere(const Broadcast& plan, const uint8_t* condition, const T* x, const T* y, T* out) {
  const auto& step = plan.inner_strides;
  forBroadcast(plan, [&](int64_t at, const BroadcastOffsets& from, int64_t count) {
    const uint8_t* c = condition + from[0];
    const T* a = x + from[1];
    const T* b = y + from[2];
    switch (step[0] * 4 + step[1] * 2 + step[2]) {
      case 7: return runVectorised<WhereLoop<T, 1, 1, 1>>(c, a, b, out + at, count);
      case 6: return runVectorised<WhereLoop<T, 1, 1, 0>>(c, a, b, out + at, count);
      case 5: return runVectorised<WhereLoop<T, 1, 0, 1>>(c, a, b, out + at, count);
      case 4: return runVectorised<WhereLoop<T, 1, 0, 0>>(c, a, b, out + at, count);
      case 3: return runVectorised<WhereLoop<T, 0, 1, 1>>(c, a, b, out + at, count);
      case 2: return runVectorised<WhereLoop<T, 0, 1, 0>>(c, a, b, out + at, count);
      case 1: return runVectorised<WhereLoop<T, 0, 0, 1>>(c, a, b, out + at, count);
      default: return runVectorised<WhereLoop<T, 0, 0, 0>>(c, a, b, out + at, count);
    }
  });
}

std::unique_ptr<Kernel> where(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  checkInputType(spec, 0, DataType::kBool);
  checkInputType(spec, 2, spec.inputs[1].data_type);
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  const Shape shape =
      broadcastShapes(broadcastShapes(spec.inputs[0].shape, spec.inputs[1].shape), spec.inputs[2].shape);
  checkOutputShape(spec, 0, shape);
  const Broadcast plan =
      makeBroadcast(shape, {spec.inputs[0].shape, spec.inputs[1].shape, spec.inputs[2].shape});
  return withElementSize(spec, spec.inputs[1].data_type, "input 1", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan](const KernelArguments& arguments) {
          runWhere<T>(plan, input<uint8_t>(arguments, 0), input<T>(arguments, 1), input<T>(arguments, 2),
                      output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {1, 2}));
  });
}

}  // namespace

void addComparisonKernels(KernelRegistry& registry) {
  registry.add("", "Equal", equal);
  registry.add("", "Less", comparison<LessOp>);
  registry.add("", "LessOrEqual", comparison<LessOrEqualOp>);
  registry.add("", "Greater", comparison<GreaterOp>);
  registry.add("", "GreaterOrEqual", comparison<GreaterOrEqualOp>);
  registry.add("", "Where", where);
}

}  // namespace pipeshard::kernels
