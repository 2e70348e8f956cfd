#include <limits>

#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/strided_copy.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

std::unique_ptr<Kernel> copyKernel(const KernelSpec& spec, const StridedCopy& copy) {
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([copy](const KernelArguments& arguments) {
      copyElements<T>(arguments.queue, copy, input<T>(arguments, 0), output<T>(arguments, 0));
    });
  });
}

// One axis of a Slice: `count` elements from `begin`, `step` apart.
struct SliceAxis {
  int64_t begin = 0;
  int64_t step = 1;
  int64_t count = 0;
};

SliceAxis sliceAxis(int64_t size, int64_t start, int64_t end, int64_t step) {
  SliceAxis axis;
  axis.step = step;
  const auto clamp = [&](int64_t position, int64_t low, int64_t high) {
    if (position < 0) position = position < -size ? -1 - size : position + size;
    return std::clamp(position, low, high);
  };
  if (step > 0) {
    axis.begin = clamp(start < -size ? -size : start, 0, size);
    const int64_t stop = clamp(end < -size ? -size : end, 0, size);
    axis.count = stop > axis.begin ? (stop - axis.begin - 1) / step + 1 : 0;
  } else {
    axis.begin = clamp(start < -size ? -size : start, 0, size - 1);
    const int64_t stop = end < -size ? -1 : clamp(end, 0, size - 1);
    axis.count = axis.begin > stop ? (axis.begin - stop - 1) / (step == std::numeric_limits<int64_t>::min()
                                                                    ? std::numeric_limits<int64_t>::max()
                                                                    : -step) +
                                         1
                                   : 0;
  }
  return axis;
}

std::unique_ptr<Kernel> slice(const KernelSpec& spec) {
  checkArity(spec, 1, 5);
  const Shape& shape = spec.inputs[0].shape;
  const std::vector<int64_t> starts = integersFromAttributeOrInput(spec, "starts", 1);
  const std::vector<int64_t> ends = integersFromAttributeOrInput(spec, "ends", 2);
  std::vector<int64_t> axes = integersFromAttributeOrInput(spec, "axes", 3);
  std::vector<int64_t> steps = integersFromAttributeOrInput(spec, "steps", 4);
  if (axes.empty()) {
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(i);
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    refuse(spec, "starts, ends, axes and steps have {}, {}, {} and {} entries; they must have equally many",
           starts.size(), ends.size(), axes.size(), steps.size());
  }
  Shape sizes = shape;
  Shape strides = rowMajorStrides(shape);
  int64_t begin = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t a = checkedAxis(spec, axes[i], shape.size());
    if (steps[i] == 0) refuse(spec, "the step of axis {} is 0", a);
    const SliceAxis cut = sliceAxis(shape[a], starts[i], ends[i], steps[i]);
    if (cut.count > 0) begin += cut.begin * strides[a];
    sizes[a] = cut.count;
    strides[a] *= cut.count > 1 ? cut.step : 1;
  }
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, sizes);
  return copyKernel(spec, makeStridedCopy(copyAxes(sizes, strides, rowMajorStrides(sizes)), begin));
}

std::vector<int64_t> splitSizes(const KernelSpec& spec, int64_t size) {
  std::vector<int64_t> sizes = integersFromAttributeOrInput(spec, "split", 1);
  if (!sizes.empty()) return sizes;
  const int64_t parts = spec.outputs.size();
  const int64_t part = (size + parts - 1) / parts;
  for (int64_t i = 0; i < parts; ++i) sizes.push_back(std::max<int64_t>(0, std::min(part, size - i * part)));
  return sizes;
}

std::unique_ptr<Kernel> split(const KernelSpec& spec) {
  if (spec.inputs.empty() || spec.inputs.size() > 2 || !hasInput(spec, 0) || spec.outputs.empty())
    refuse(spec, "needs an input and outputs");
  const Shape& shape = spec.inputs[0].shape;
  const size_t axis = axisAttribute(spec, 0);
  const std::vector<int64_t> sizes = splitSizes(spec, shape[axis]);
  if (sizes.size() != spec.outputs.size())
    refuse(spec, "split has {} entries for {} outputs", sizes.size(), spec.outputs.size());
  const Shape strides = rowMajorStrides(shape);
  std::vector<StridedCopy> copies;
  int64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Shape part = shape;
    part[axis] = sizes[i];
    if (sizes[i] < 0 || begin + sizes[i] > shape[axis])
      refuse(spec, "split sizes do not add up to {} on axis {}", shape[axis], axis);
    checkOutputType(spec, i, spec.inputs[0].data_type);
    checkOutputShape(spec, i, part);
    copies.push_back(makeStridedCopy(copyAxes(part, strides, rowMajorStrides(part)), begin * strides[axis]));
    begin += sizes[i];
  }
  if (begin != shape[axis])
    refuse(spec, "split sizes add up to {}; axis {} has {}", begin, axis, shape[axis]);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([copies](const KernelArguments& arguments) {
      for (size_t i = 0; i < copies.size(); ++i) {
        if (T* out = output<T>(arguments, i))
          copyElements<T>(arguments.queue, copies[i], input<T>(arguments, 0), out);
      }
    });
  });
}

std::unique_ptr<Kernel> concat(const KernelSpec& spec) {
  checkArity(spec, 1, spec.inputs.size());
  const size_t axis = axisAttribute(spec, spec.node->opset_version < 4 ? 1 : 0);
  Shape shape = spec.inputs[0].shape;
  shape[axis] = 0;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    if (!hasInput(spec, i)) refuse(spec, "input {} is missing", i);
    checkInputType(spec, i, spec.inputs[0].data_type);
    Shape expected = shape;
    if (spec.inputs[i].shape.size() != shape.size()) refuse(spec, "inputs have different ranks");
    expected[axis] = spec.inputs[i].shape[axis];
    checkInputShape(spec, i, expected);
    shape[axis] += expected[axis];
  }
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, shape);
  const Shape strides = rowMajorStrides(shape);
  std::vector<StridedCopy> copies;
  int64_t begin = 0;
  for (const TensorSpec& part : spec.inputs) {
    copies.push_back(makeStridedCopy(copyAxes(part.shape, rowMajorStrides(part.shape), strides), 0,
                                     begin * strides[axis]));
    begin += part.shape[axis];
  }
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([copies](const KernelArguments& arguments) {
      for (size_t i = 0; i < copies.size(); ++i)
        copyElements<T>(arguments.queue, copies[i], input<T>(arguments, i), output<T>(arguments, 0));
    });
  });
}

std::unique_ptr<Kernel> expand(const KernelSpec& spec) {
  checkArity(spec, 1, 2);
  const Shape& from = spec.inputs[0].shape;
  const Shape& to = spec.outputs[0].shape;
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  if (broadcastShapes(from, to) != to)
    refuse(spec, "shape {} does not expand to {}", shapeToString(from), shapeToString(to));
  const Shape dense = rowMajorStrides(from);
  Shape strides(to.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1) strides[to.size() - from.size() + i] = dense[i];
  }
  return copyKernel(spec, makeStridedCopy(copyAxes(to, strides, rowMajorStrides(to))));
}

std::unique_ptr<Kernel> tile(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const Shape& from = spec.inputs[0].shape;
  const std::vector<int64_t> repeats = constantIntegers(spec, 1, "repeats");
  if (repeats.size() != from.size())
    refuse(spec, "repeats has {} entries for an input of rank {}", repeats.size(), from.size());
  Shape to;
  for (size_t i = 0; i < from.size(); ++i) {
    if (repeats[i] < 0) refuse(spec, "repeats of axis {} is {}", i, repeats[i]);
    to.push_back(from[i] * repeats[i]);
  }
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, to);
  const Shape in = rowMajorStrides(from);
  const Shape out = rowMajorStrides(to);
  std::vector<CopyAxis> axes;
  for (size_t i = 0; i < from.size(); ++i) {
    axes.push_back({repeats[i], 0, out[i] * from[i]});
    axes.push_back({from[i], in[i], out[i]});
  }
  return copyKernel(spec, makeStridedCopy(axes));
}

}  // namespace

void addCopyKernels(KernelRegistry& registry) {
  registry.add("", "Slice", slice);
  registry.add("", "Split", split);
  registry.add("", "Concat", concat);
  registry.add("", "Expand", expand);
  registry.add("", "Tile", tile);
}

}  // namespace pipeshard::kernels
