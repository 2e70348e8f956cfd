#include <algorithm>
#include <limits>

#include "runtime/kernels/families.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/window.h"

namespace pipeshard::kernels {
namespace {

// The part of the window at output position `o` that lies inside the image, as kernel positions [begin, end) per axis.
struct Visible {
  Triple origin;
  Triple begin;
  Triple end;

  Visible(const Window& w, int64_t position)
      : origin{position / w.out[2] / w.out[1], position / w.out[2] % w.out[1], position % w.out[2]}, begin{}, end{} {
    for (size_t a = 0; a < 3; ++a) {
      origin[a] = origin[a] * w.stride[a] - w.pad[a];
      begin[a] = origin[a] >= 0 ? 0 : (-origin[a] + w.dilation[a] - 1) / w.dilation[a];
      end[a] = origin[a] >= w.in[a] ? 0 : std::min(w.kernel[a], (w.in[a] - origin[a] + w.dilation[a] - 1) / w.dilation[a]);
    }
  }

  // body(offset in the image) in row-major order.
  template <typename Body>
  void forEach(const Window& w, const Body& body) const {
    for (int64_t z = begin[0]; z < end[0]; ++z)
      for (int64_t y = begin[1]; y < end[1]; ++y)
        for (int64_t x = begin[2]; x < end[2]; ++x)
          body(((origin[0] + z * w.dilation[0]) * w.in[1] + origin[1] + y * w.dilation[1]) * w.in[2] + origin[2] + x * w.dilation[2]);
  }
};

// The offset of the first largest element in sight, -1 when there is none.
template <typename T>
int64_t largest(const Window& w, const T* image, int64_t position) {
  int64_t best = -1;
  Visible(w, position).forEach(w, [&](int64_t offset) {
    if (best < 0 || image[offset] > image[best]) best = offset;
  });
  return best;
}

struct Pool {
  Window window;
  int64_t planes = 0;  // batch * channels
};

Pool planPool(const KernelSpec& spec, const Shape& image, const Shape& output) {
  const std::vector<int64_t> kernel = kernelSizes(spec, nullptr);
  if (kernel.empty()) refuse(spec, "attribute kernel_shape is missing");
  Pool pool{windowOf(spec, image, output, kernel), image[0] * image[1]};
  if (image[0] != output[0] || image[1] != output[1])
    refuse(spec, "{} and {} differ in batch or channels", shapeToString(image), shapeToString(output));
  return pool;
}

// Row-major offset as an offset in column-major order (the last axis outermost).
int64_t columnMajor(const Window& w, int64_t offset) {
  const int64_t x = offset % w.in[2];
  const int64_t y = offset / w.in[2] % w.in[1];
  const int64_t z = offset / w.in[2] / w.in[1];
  return (x * w.in[1] + y) * w.in[0] + z;
}

template <typename T>
std::unique_ptr<Kernel> makeMaxPool(const Pool& pool, bool column_major) {
  return makeKernel([pool, column_major](const KernelArguments& arguments) {
    const Window& w = pool.window;
    const T* x = input<T>(arguments, 0);
    T* y = output<T>(arguments, 0);
    auto* indices = output<int64_t>(arguments, 1);
    forRows(pool.planes, w.outSize() * w.kernelSize(), [&](int64_t first, int64_t last) {
      for (int64_t plane = first; plane < last; ++plane) {
        const T* image = x + plane * w.inSize();
        for (int64_t o = 0; o < w.outSize(); ++o) {
          const int64_t best = largest(w, image, o);
          const int64_t place = plane * w.outSize() + o;
          y[place] = best < 0 ? std::numeric_limits<T>::lowest() : image[best];
          if (indices == nullptr) continue;
          indices[place] = best < 0 ? -1 : plane * w.inSize() + (column_major ? columnMajor(w, best) : best);
        }
      }
    });
  });
}

std::unique_ptr<Kernel> maxPool(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.inputs[0].shape, spec.outputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputType(spec, 1, DataType::kInt64);
  checkOutputShape(spec, 1, spec.outputs[0].shape);
  const bool column_major = spec.node->intAttribute("storage_order", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "X",
                                 [&](auto zero) { return makeMaxPool<decltype(zero)>(pool, column_major); });
}

// dY, X -> dX
template <typename T>
std::unique_ptr<Kernel> makeMaxPoolGrad(const Pool& pool) {
  return makeKernel([pool](const KernelArguments& arguments) {
    const Window& w = pool.window;
    const T* dy = input<T>(arguments, 0);
    const T* x = input<T>(arguments, 1);
    T* dx = output<T>(arguments, 0);
    forRows(pool.planes, w.outSize() * w.kernelSize(), [&](int64_t first, int64_t last) {
      for (int64_t plane = first; plane < last; ++plane) {
        T* image = dx + plane * w.inSize();
        std::fill_n(image, w.inSize(), T(0));
        for (int64_t o = 0; o < w.outSize(); ++o) {
          const int64_t best = largest(w, x + plane * w.inSize(), o);
          if (best >= 0) image[best] += dy[plane * w.outSize() + o];
        }
      }
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
  return withType<float, double>(spec, type, "dY", [&](auto zero) { return makeMaxPoolGrad<decltype(zero)>(pool); });
}

// By how many an average over the window at `position` divides: the elements in sight, or with those of the padding.
int64_t averageCount(const Window& w, int64_t position, bool with_padding) {
  const Visible visible(w, position);
  int64_t count = 1;
  for (size_t a = 0; a < 3; ++a) {
    int64_t size = visible.end[a] - visible.begin[a];
    if (with_padding) size = std::min(w.kernel[a], (w.in[a] + w.pad_end[a] - visible.origin[a] + w.dilation[a] - 1) / w.dilation[a]);
    count *= std::max<int64_t>(0, size);
  }
  return std::max<int64_t>(1, count);
}

template <typename T>
std::unique_ptr<Kernel> makeAveragePool(const Pool& pool, bool with_padding) {
  return makeKernel([pool, with_padding](const KernelArguments& arguments) {
    const Window& w = pool.window;
    const T* x = input<T>(arguments, 0);
    T* y = output<T>(arguments, 0);
    forRows(pool.planes, w.outSize() * w.kernelSize(), [&](int64_t first, int64_t last) {
      for (int64_t plane = first; plane < last; ++plane) {
        const T* image = x + plane * w.inSize();
        for (int64_t o = 0; o < w.outSize(); ++o) {
          T sum = 0;
          Visible(w, o).forEach(w, [&](int64_t offset) { sum += image[offset]; });
          y[plane * w.outSize() + o] = sum / static_cast<T>(averageCount(w, o, with_padding));
        }
      }
    });
  });
}

std::unique_ptr<Kernel> averagePool(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.inputs[0].shape, spec.outputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const bool with_padding = spec.node->intAttribute("count_include_pad", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "X",
                                 [&](auto zero) { return makeAveragePool<decltype(zero)>(pool, with_padding); });
}

// dY -> dX: every element in sight gets its share.
template <typename T>
std::unique_ptr<Kernel> makeAveragePoolGrad(const Pool& pool, bool with_padding) {
  return makeKernel([pool, with_padding](const KernelArguments& arguments) {
    const Window& w = pool.window;
    const T* dy = input<T>(arguments, 0);
    T* dx = output<T>(arguments, 0);
    forRows(pool.planes, w.outSize() * w.kernelSize(), [&](int64_t first, int64_t last) {
      for (int64_t plane = first; plane < last; ++plane) {
        T* image = dx + plane * w.inSize();
        std::fill_n(image, w.inSize(), T(0));
        for (int64_t o = 0; o < w.outSize(); ++o) {
          const T share = dy[plane * w.outSize() + o] / static_cast<T>(averageCount(w, o, with_padding));
          Visible(w, o).forEach(w, [&](int64_t offset) { image[offset] += share; });
        }
      }
    });
  });
}

std::unique_ptr<Kernel> averagePoolGrad(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Pool pool = planPool(spec, spec.outputs[0].shape, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const bool with_padding = spec.node->intAttribute("count_include_pad", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY",
                                 [&](auto zero) { return makeAveragePoolGrad<decltype(zero)>(pool, with_padding); });
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
  if (size == 0 && planes > 0) refuse(spec, "X has shape {} without any element to pool", shapeToString(image));
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([planes, size](const KernelArguments& arguments) {
      const T* x = input<T>(arguments, 0);
      T* y = output<T>(arguments, 0);
      forRows(planes, size, [&](int64_t first, int64_t last) {
        for (int64_t plane = first; plane < last; ++plane) {
          const T* begin = x + plane * size;
          double sum = 0;
          for (int64_t i = 0; !kMaximum && i < size; ++i) sum += static_cast<double>(begin[i]);
          y[plane] = kMaximum ? *std::max_element(begin, begin + size) : static_cast<T>(sum / static_cast<double>(size));
        }
      });
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
