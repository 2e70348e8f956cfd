#include "runtime/kernels/movement/scatter.h"

#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/indices.h"

namespace pipeshard::kernels {
namespace {

// Checks ranks and sizes: indices may be smaller than data on every axis but `axis`.
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
  const Shape strides = rowMajorStrides(indices);
  std::vector<CopyAxis> others;
  for (size_t a = 0; a < indices.size(); ++a)
    if (a != plan.axis) others.push_back({indices[a], strides[a], plan.data_strides[a]});
  plan.lines = makeStridedCopy(others);
  plan.length = indices[plan.axis];
  plan.index_stride = strides[plan.axis];
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

using ThrowFault = std::function<void(const DataFault&)>;

// Throws the Error(kBadModel) about an entry of a tuple.
ThrowFault aboutTuples(const KernelSpec& spec, const TuplePlan& plan) {
  return [node = describeNode(*spec.node), sizes = plan.sizes](const DataFault& fault) {
    const auto depth = static_cast<int64_t>(sizes.size());
    const int64_t entry = fault.position % depth;
    fail(ErrorCode::kBadModel, "{}: index {} in entry {} of tuple {} is outside of [{}, {})", node,
         fault.value, entry, fault.position / depth, -sizes[entry], sizes[entry]);
  };
}

void checkTuples(const KernelArguments& arguments, const ThrowFault& throw_fault, const TuplePlan& plan) {
  checkData(arguments, throw_fault, [&](DataFault* fault) {
    findOutsideTuples(arguments.queue, plan.batches * plan.tuples * plan.depth, input<int64_t>(arguments, 1),
                      plan.sizes, fault);
  });
}

// All indices are checked before anything is written; data is copied to the output unless the two are one (in
// place); then come the updates.
template <typename T>
void copyData(const KernelArguments& arguments, int64_t count) {
  if (arguments.inputs[0] == arguments.outputs[0]) return;
  copyElements(arguments.queue, makeStridedCopy({{count, 1, 1}}), bitsOf(input<T>(arguments, 0)),
               bitsOf(output<T>(arguments, 0)));
}

// Calls make(update, T{}) for the attribute `reduction` and the data's type; update is an integral_constant.
template <typename Make>
std::unique_ptr<Kernel> withUpdate(const KernelSpec& spec, const Make& make) {
  const std::string reduction = spec.node->stringAttribute("reduction", "none");
  const DataType type = spec.inputs[0].data_type;
  if (reduction == "none") {
    return withElementSize(spec, type, "input 0", [&](auto zero) {
      return make(std::integral_constant<Update, Update::kSet>{}, zero);
    });
  }
  const auto typed = [&](auto update) {
    return withType<float, double, int32_t, int64_t>(spec, type, "input 0",
                                                     [&](auto zero) { return make(update, zero); });
  };
  if (reduction == "add") return typed(std::integral_constant<Update, Update::kAdd>{});
  if (reduction == "mul") return typed(std::integral_constant<Update, Update::kMultiply>{});
  if (reduction == "max") return typed(std::integral_constant<Update, Update::kMaximum>{});
  if (reduction == "min") return typed(std::integral_constant<Update, Update::kMinimum>{});
  refuse(spec, "attribute reduction is '{}'; the kernel supports 'none', 'add', 'mul', 'max' and 'min'",
         reduction);
}

// Calls make(I{}) for the type of the indices.
template <typename Make>
std::unique_ptr<Kernel> withIndices(const KernelSpec& spec, const Make& make) {
  return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", make);
}

void checkScatter(const KernelSpec& spec, const Shape& updates) {
  checkInputType(spec, 2, spec.inputs[0].data_type);
  checkInputShape(spec, 2, updates);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
}

KernelTraits scatterTraits(const KernelSpec& spec, ThrowFault throw_fault) {
  KernelTraits traits = inPlaceTraits(spec, {0});
  traits.throw_fault = std::move(throw_fault);
  return traits;
}

std::unique_ptr<Kernel> scatterElements(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const ElementsPlan plan = planElements(spec, spec.inputs[0].shape, spec.inputs[1].shape);
  checkScatter(spec, spec.inputs[1].shape);
  const int64_t total = elementCount(spec.inputs[0].shape);
  const auto about = aboutIndices(describeNode(*spec.node), plan.size);
  return withUpdate(spec, [&](auto update, auto zero) {
    using T = decltype(zero);
    return withIndices(spec, [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, total, about](const KernelArguments& a) {
            checkIndices(a, about, input<I>(a, 1), plan.count, plan.size);
            copyData<T>(a, total);
            scatterAddressed<decltype(update)::value>(a.queue, plan, input<I>(a, 1), input<T>(a, 2),
                                                      output<T>(a, 0));
          },
          scatterTraits(spec, about));
    });
  });
}

std::unique_ptr<Kernel> scatterND(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  checkInputType(spec, 1, DataType::kInt64);
  const TuplePlan plan = planTuples(spec, spec.inputs[0].shape, spec.inputs[1].shape, 0);
  checkScatter(spec, plan.output);
  const int64_t total = elementCount(spec.inputs[0].shape);
  const auto about = aboutTuples(spec, plan);
  return withUpdate(spec, [&](auto update, auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan, total, about](const KernelArguments& a) {
          checkTuples(a, about, plan);
          copyData<T>(a, total);
          scatterTuples<decltype(update)::value>(a.queue, plan, input<int64_t>(a, 1), input<T>(a, 2),
                                                 output<T>(a, 0));
        },
        scatterTraits(spec, about));
  });
}

std::unique_ptr<Kernel> gatherElements(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const ElementsPlan plan = planElements(spec, spec.inputs[0].shape, spec.inputs[1].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  const auto about = aboutIndices(describeNode(*spec.node), plan.size);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return withIndices(spec, [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, about](const KernelArguments& a) {
            checkIndices(a, about, input<I>(a, 1), plan.count, plan.size);
            gatherAddressed(a.queue, plan, input<T>(a, 0), input<I>(a, 1), output<T>(a, 0));
          },
          {.in_place = {}, .throw_fault = about});
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
  const auto about = aboutIndices(describeNode(*spec.node), plan.size);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return withIndices(spec, [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, total, about](const KernelArguments& a) {
            checkIndices(a, about, input<I>(a, 1), plan.count, plan.size);
            fillElements(a.queue, total, Bits<T>(0), bitsOf(output<T>(a, 0)));
            scatterAddressed<Update::kAdd>(a.queue, plan, input<I>(a, 1), input<T>(a, 0), output<T>(a, 0));
          },
          {.in_place = {}, .throw_fault = about});
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
  const auto about = aboutTuples(spec, plan);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan, about](const KernelArguments& a) {
          checkTuples(a, about, plan);
          gatherTuples(a.queue, plan, input<T>(a, 0), input<int64_t>(a, 1), output<T>(a, 0));
        },
        {.in_place = {}, .throw_fault = about});
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
