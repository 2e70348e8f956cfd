#include "runtime/kernels/movement/scatter.h"

#include <cstring>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"

namespace pipeshard::kernels {

ElementsPlan planElements(const KernelSpec& spec, const Shape& data, const Shape& indices) {
  ElementsPlan plan;
  plan.axis = checkedAxis(spec, spec.node->intAttribute("axis", 0), data.size());
  if (indices.size() != data.size())
    refuse(spec, "indices of shape {} and data of shape {} differ in rank", shapeToString(indices),
           shapeToString(data));
  for (size_t a = 0; a < data.size(); ++a) {
    if (a != plan.axis && indices[a] > data[a]) {
      refuse(spec, "indices of shape {} are larger than data of shape {} on axis {}", shapeToString(indices),
             shapeToString(data), a);
    }
  }
  plan.indices = indices;
  plan.data_strides = rowMajorStrides(data);
  plan.size = data[plan.axis];
  plan.count = elementCount(indices);
  plan.node = describeNode(*spec.node);
  return plan;
}

// The axes of data are three runs: batch axes, which data and indices share; addressed axes, one for each
// entry of a tuple; and the rest, which is the slice that a tuple names.
//   data [2,3,4], indices [2,5,1], batch_dims 1: 2 batches of 5 tuples of one entry, which is an index from
//   -3 to 2; batch_stride 12, sizes {3}, strides {4}, slice 4, output [2,5,4]
TuplePlan planTuples(const KernelSpec& spec, const Shape& data, const Shape& indices, int64_t batch_dims) {
  if (indices.empty() || batch_dims < 0 || batch_dims >= std::min(std::ssize(data), std::ssize(indices))) {
    refuse(spec, "indices of shape {} with batch_dims {} do not address data of shape {}",
           shapeToString(indices), batch_dims, shapeToString(data));
  }
  TuplePlan plan;
  plan.node = describeNode(*spec.node);
  plan.depth = indices.back();
  const size_t batch_axes = batch_dims;
  const size_t addressed = batch_axes + plan.depth;
  if (plan.depth < 0 || addressed > data.size()) {
    refuse(spec, "index tuples of {} entries address data of shape {} with batch_dims {}", plan.depth,
           shapeToString(data), batch_dims);
  }
  const Shape strides = rowMajorStrides(data);
  for (size_t a = 0; a < data.size(); ++a) {
    if (a < batch_axes) {
      if (indices[a] != data[a])
        refuse(spec, "batch axis {} has {} indices for {} elements of data", a, indices[a], data[a]);
      plan.batches *= data[a];
      plan.batch_stride = strides[a];
    } else if (a < addressed) {
      plan.sizes.push_back(data[a]);
      plan.strides.push_back(strides[a]);
    } else {
      plan.slice *= data[a];
    }
  }
  plan.output.assign(indices.begin(), indices.end() - 1);
  for (size_t a = batch_axes; a + 1 < indices.size(); ++a) plan.tuples *= indices[a];
  plan.output.insert(plan.output.end(), data.begin() + addressed, data.end());
  return plan;
}

void checkTuples(const TuplePlan& plan, const int64_t* indices) {
  for (int64_t i = 0; i < plan.batches * plan.tuples; ++i) {
    for (int64_t entry = 0; entry < plan.depth; ++entry) {
      const int64_t index = indices[i * plan.depth + entry];
      const int64_t size = plan.sizes[entry];
      if (index >= -size && index < size) continue;
      fail(ErrorCode::kBadModel, "{}: index {} in entry {} of tuple {} is outside of [{}, {})", plan.node,
           index, entry, i, -size, size);
    }
  }
}

int64_t tuplePosition(const TuplePlan& plan, const int64_t* indices, int64_t batch, int64_t tuple) {
  const int64_t* entries = indices + (batch * plan.tuples + tuple) * plan.depth;
  int64_t position = batch * plan.batch_stride;
  for (size_t i = 0; i < plan.sizes.size(); ++i)
    position += wrapIndex(entries[i], plan.sizes[i]) * plan.strides[i];
  return position;
}

namespace {

struct SetOp {
  template <typename T>
  static T apply(T, T b) {
    return b;
  }
};
struct AddOp {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
    else
      return a + b;
  }
};
struct MulOp {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return T(std::make_unsigned_t<T>(a) * std::make_unsigned_t<T>(b));
    else
      return a * b;
  }
};
struct MaxOp {
  template <typename T>
  static T apply(T a, T b) {
    return a < b ? b : a;
  }
};
struct MinOp {
  template <typename T>
  static T apply(T a, T b) {
    return b < a ? b : a;
  }
};

template <typename T>
void copyAll(const T* from, T* to, int64_t count) {
  if (from == to) return;
  forBlocks(count, kBlockElements * 16,
            [&](int64_t begin, int64_t end) { std::copy(from + begin, from + end, to + begin); });
}

// Scattering: all indices are checked before anything is written; data is copied to the output unless the two
// are one (in place); then updates are applied one after another, by one thread. Several updates may hit one
// element, so their order decides the bits, and it is always that of the index tensor.
template <typename Op, typename T, typename I>
std::unique_ptr<Kernel> makeScatterElements(const KernelSpec& spec, const ElementsPlan& plan) {
  const int64_t total = elementCount(spec.inputs[0].shape);
  return makeKernel(
      [plan, total](const KernelArguments& arguments) {
        const I* indices = input<I>(arguments, 1);
        const T* updates = input<T>(arguments, 2);
        T* out = output<T>(arguments, 0);
        checkIndices(plan.node, indices, plan.count, plan.size);
        copyAll(input<T>(arguments, 0), out, total);
        forElements(plan, indices, [&](int64_t i, int64_t position) {
          out[position] = Op::apply(out[position], updates[i]);
        });
      },
      inPlaceTraits(spec, {0}));
}

template <typename Op, typename T>
std::unique_ptr<Kernel> makeScatterND(const KernelSpec& spec, const TuplePlan& plan) {
  const int64_t total = elementCount(spec.inputs[0].shape);
  return makeKernel(
      [plan, total](const KernelArguments& arguments) {
        const auto* indices = input<int64_t>(arguments, 1);
        const T* updates = input<T>(arguments, 2);
        T* out = output<T>(arguments, 0);
        checkTuples(plan, indices);
        copyAll(input<T>(arguments, 0), out, total);
        for (int64_t tuple = 0; tuple < plan.tuples; ++tuple) {
          T* to = out + tuplePosition(plan, indices, 0, tuple);
          for (int64_t i = 0; i < plan.slice; ++i) to[i] = Op::apply(to[i], updates[tuple * plan.slice + i]);
        }
      },
      inPlaceTraits(spec, {0}));
}

// Calls make(Op{}, T{}) for the attribute `reduction` and the data's type.
template <typename Make>
std::unique_ptr<Kernel> withReduction(const KernelSpec& spec, const Make& make) {
  const std::string reduction = spec.node->stringAttribute("reduction", "none");
  const DataType type = spec.inputs[0].data_type;
  if (reduction == "none")
    return withElementSize(spec, type, "input 0", [&](auto zero) { return make(SetOp{}, zero); });
  const auto typed = [&](auto op) {
    return withType<float, double, int32_t, int64_t>(spec, type, "input 0",
                                                     [&](auto zero) { return make(op, zero); });
  };
  if (reduction == "add") return typed(AddOp{});
  if (reduction == "mul") return typed(MulOp{});
  if (reduction == "max") return typed(MaxOp{});
  if (reduction == "min") return typed(MinOp{});
  refuse(spec, "attribute reduction is '{}'; the CPU kernel supports 'none', 'add', 'mul', 'max' and 'min'",
         reduction);
}

void checkScatter(const KernelSpec& spec, const Shape& updates) {
  checkInputType(spec, 2, spec.inputs[0].data_type);
  checkInputShape(spec, 2, updates);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
}

std::unique_ptr<Kernel> scatterElements(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const ElementsPlan plan = planElements(spec, spec.inputs[0].shape, spec.inputs[1].shape);
  checkScatter(spec, spec.inputs[1].shape);
  return withReduction(spec, [&](auto op, auto zero) {
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      return makeScatterElements<decltype(op), decltype(zero), decltype(index)>(spec, plan);
    });
  });
}

std::unique_ptr<Kernel> scatterND(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  checkInputType(spec, 1, DataType::kInt64);
  const TuplePlan plan = planTuples(spec, spec.inputs[0].shape, spec.inputs[1].shape, 0);
  checkScatter(spec, plan.output);
  return withReduction(
      spec, [&](auto op, auto zero) { return makeScatterND<decltype(op), decltype(zero)>(spec, plan); });
}

std::unique_ptr<Kernel> gatherElements(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const ElementsPlan plan = planElements(spec, spec.inputs[0].shape, spec.inputs[1].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel([plan](const KernelArguments& arguments) {
        const T* data = input<T>(arguments, 0);
        const I* indices = input<I>(arguments, 1);
        T* out = output<T>(arguments, 0);
        checkIndices(plan.node, indices, plan.count, plan.size);
        forElements(plan, indices, [&](int64_t i, int64_t position) { out[i] = data[position]; });
      });
    });
  });
}

std::unique_ptr<Kernel> gatherElementsGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const Shape data = constantIntegers(spec, 2, "Shape");
  const ElementsPlan plan = planElements(spec, data, spec.inputs[1].shape);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, data);
  const int64_t total = elementCount(data);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel([plan, total](const KernelArguments& arguments) {
        const T* dy = input<T>(arguments, 0);
        const I* indices = input<I>(arguments, 1);
        T* out = output<T>(arguments, 0);
        checkIndices(plan.node, indices, plan.count, plan.size);
        std::fill(out, out + total, T(0));
        forElements(plan, indices, [&](int64_t i, int64_t position) { out[position] += dy[i]; });
      });
    });
  });
}

std::unique_ptr<Kernel> gatherND(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, DataType::kInt64);
  const TuplePlan plan =
      planTuples(spec, spec.inputs[0].shape, spec.inputs[1].shape, spec.node->intAttribute("batch_dims", 0));
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, plan.output);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      const T* data = input<T>(arguments, 0);
      const auto* indices = input<int64_t>(arguments, 1);
      T* out = output<T>(arguments, 0);
      checkTuples(plan, indices);
      forRows(plan.batches * plan.tuples, plan.slice, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const T* from = data + tuplePosition(plan, indices, i / plan.tuples, i % plan.tuples);
          std::copy(from, from + plan.slice, out + i * plan.slice);
        }
      });
    });
  });
}

}  // namespace

void addScatterKernels(KernelRegistry& registry) {
  registry.add("", "GatherElements", gatherElements);
  registry.add("", "GatherND", gatherND);
  registry.add("", "ScatterElements", scatterElements);
  registry.add("", "ScatterND", scatterND);
  registry.add(std::string(kPipeshardDomain), "GatherElementsGrad", gatherElementsGrad);
}

}  // namespace pipeshard::kernels
