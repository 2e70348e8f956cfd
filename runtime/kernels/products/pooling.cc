// Pools: checks and plan; pooling.h has what computes them.
#include "runtime/kernels/products/pooling.h"

#include <algorithm>
#include <limits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

Pool planPool(const KernelSpec& spec, const Shape& image, const Shape& output) {
  const std::vector<int64_t> kernel = kernelSizes(spec, nullptr);
  if (kernel.empty()) refuse(spec, "attribute kernel_shape is missing");
  Pool pool{windowOf(spec, image, output, kernel), image[0], image[1], image[0] * image[1]};
  if (image[0] != output[0] || image[1] != output[1])
    refuse(spec, "{} and {} differ in batch or channels", shapeToString(image), shapeToString(output));
  if (pool.window.inSize() + pool.window.out[2] * pool.window.stride[2] > std::numeric_limits<int32_t>::max())
    refuse(spec, "an image of {} has more elements than the kernel can number in 32 bits",
           shapeToString(image));
  return pool;
}

std::unique_ptr<Kernel> maxPool(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.inputs[0].shape, spec.outputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputType(spec, 1, DataType::kInt64);
  checkOutputShape(spec, 1, spec.outputs[0].shape);
  const bool column_major = spec.node->intAttribute("storage_order", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [largest = preparePoolLargest<T>(pool, column_major, hasOutput(spec, 1))](const KernelArguments& a) {
          largest(a.queue, input<T>(a, 0), output<T>(a, 0), output<int64_t>(a, 1));
        });
  });
}

std::unique_ptr<Kernel> maxPoolGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const Pool pool = planPool(spec, spec.inputs[1].shape, spec.inputs[0].shape);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withType<float, double>(spec, type, "dY", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [pool](const KernelArguments& a) {
          poolLargestGrad(a.queue, pool, input<T>(a, 0), input<T>(a, 1), static_cast<int32_t*>(a.workspace),
                          output<T>(a, 0));
        },
        {.in_place = {},
         .workspace_bytes = kPlacesOfLargest ? pool.planes * pool.window.outSize() * sizeof(int32_t) : 0});
  });
}

std::unique_ptr<Kernel> averagePool(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.inputs[0].shape, spec.outputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const bool with_padding = spec.node->intAttribute("count_include_pad", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([average = preparePoolAverage<T>(pool, with_padding)](const KernelArguments& a) {
      average(a.queue, input<T>(a, 0), output<T>(a, 0));
    });
  });
}

std::unique_ptr<Kernel> averagePoolGrad(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.outputs[0].shape, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const bool with_padding = spec.node->intAttribute("count_include_pad", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([pool, with_padding](const KernelArguments& a) {
      poolAverageGrad(a.queue, pool, with_padding, input<T>(a, 0), output<T>(a, 0));
    });
  });
}

// Over all spatial axes.
template <bool kMaximum>
std::unique_ptr<Kernel> globalPool(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Shape& image = spec.inputs[0].shape;
  if (image.size() < 2) refuse(spec, "X has shape {}; it needs batch and channel axes", shapeToString(image));
  Shape expected(image.size(), 1);
  std::copy_n(image.begin(), 2, expected.begin());
  checkOutputShape(spec, 0, expected);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const int64_t planes = image[0] * image[1];
  const int64_t size = planes == 0 ? 0 : elementCount(image) / planes;
  if (size == 0 && planes > 0)
    refuse(spec, "X has shape {} without any element to pool", shapeToString(image));
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([planes, size](const KernelArguments& a) {
      poolAll(a.queue, kMaximum, planes, size, input<T>(a, 0), output<T>(a, 0));
    });
  });
}

}  // namespace

void addPoolingKernels(KernelRegistry& registry) {
  registry.add("", "MaxPool", maxPool);
  registry.add("", "AveragePool", averagePool);
  registry.add("", "GlobalAveragePool", globalPool<false>);
  registry.add("", "GlobalMaxPool", globalPool<true>);
  registry.add(std::string(kPipeshardDomain), "MaxPoolGrad", maxPoolGrad);
  registry.add(std::string(kPipeshardDomain), "AveragePoolGrad", averagePoolGrad);
}

}  // namespace pipeshard::kernels
