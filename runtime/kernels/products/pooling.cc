#include <algorithm>
#include <limits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/products/window.h"

namespace pipeshard::kernels {
namespace {

// The part of the window at output position `o` that lies inside the image, as kernel positions [begin, end)
// per axis.
struct Visible {
  Triple origin;
  Triple begin;
  Triple end;

  Visible(const Window& w, int64_t position)
      : origin{position / w.out[2] / w.out[1], position / w.out[2] % w.out[1], position % w.out[2]},
        begin{},
        end{} {
    for (size_t a = 0; a < 3; ++a) {
      origin[a] = origin[a] * w.stride[a] - w.pad[a];
      begin[a] = origin[a] >= 0 ? 0 : (-origin[a] + w.dilation[a] - 1) / w.dilation[a];
      end[a] = origin[a] >= w.in[a]
                   ? 0
                   : std::min(w.kernel[a], (w.in[a] - origin[a] + w.dilation[a] - 1) / w.dilation[a]);
    }
  }

  // body(offset in the image) in row-major order.
  template <typename Body>
  void forEach(const Window& w, const Body& body) const {
    for (int64_t z = begin[0]; z < end[0]; ++z)
      for (int64_t y = begin[1]; y < end[1]; ++y)
        for (int64_t x = begin[2]; x < end[2]; ++x)
          body(((origin[0] + z * w.dilation[0]) * w.in[1] + origin[1] + y * w.dilation[1]) * w.in[2] +
               origin[2] + x * w.dilation[2]);
  }
};

constexpr int64_t kRowPart = 256;  // output positions of a row that are looked at together

// Of output positions [first, first + count) of the row (oz, oy): the first largest element in sight and its
// offset in the image, -1 when nothing is in sight.
template <typename T>
struct LargestOfRow {
  PIPESHARD_INLINE static void run(const Window* window, const T* image, int64_t oz, int64_t oy,
                                   int64_t first, int64_t count, T* best, int32_t* place) {
    const Window& w = *window;
    for (int64_t i = 0; i < count; ++i) {
      best[i] = std::numeric_limits<T>::lowest();
      place[i] = -1;
    }
    const int64_t stride = w.stride[2];
    for (int64_t kz = 0; kz < w.kernel[0]; ++kz) {
      const int64_t z = oz * w.stride[0] - w.pad[0] + kz * w.dilation[0];
      if (z < 0 || z >= w.in[0]) continue;
      for (int64_t ky = 0; ky < w.kernel[1]; ++ky) {
        const int64_t y = oy * w.stride[1] - w.pad[1] + ky * w.dilation[1];
        if (y < 0 || y >= w.in[1]) continue;
        for (int64_t kx = 0; kx < w.kernel[2]; ++kx) {
          const int64_t x = first * stride - w.pad[2] + kx * w.dilation[2];
          const int64_t begin = x >= 0 ? 0 : (-x + stride - 1) / stride;
          const int32_t end = x >= w.in[2] ? 0 : std::min(count, (w.in[2] - x + stride - 1) / stride);
          const int32_t row = (z * w.in[1] + y) * w.in[2] + x;
          const int32_t step = stride;
#pragma omp simd
          for (int32_t i = begin; i < end; ++i) {
            const int32_t offset = row + i * step;
            const T element = image[offset];
            const bool larger = place[i] < 0 || element > best[i];
            best[i] = larger ? element : best[i];
            place[i] = larger ? offset : place[i];
          }
        }
      }
    }
  }
};

// body(output position, largest element, its offset or -1) for every output position of a plane, in order.
template <typename T, typename Body>
void forLargest(const Window& w, const T* image, const Body& body) {
  T best[kRowPart];
  int32_t place[kRowPart];
  for (int64_t row = 0; row < w.out[0] * w.out[1]; ++row) {
    for (int64_t first = 0; first < w.out[2]; first += kRowPart) {
      const int64_t count = std::min(kRowPart, w.out[2] - first);
      runVectorised<LargestOfRow<T>>(&w, image, row / w.out[1], row % w.out[1], first, count, best, place);
      for (int64_t i = 0; i < count; ++i) body(row * w.out[2] + first + i, best[i], place[i]);
    }
  }
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
  if (pool.window.inSize() + pool.window.out[2] * pool.window.stride[2] > std::numeric_limits<int32_t>::max())
    refuse(spec, "an image of {} has more elements than the CPU kernel can number in 32 bits",
           shapeToString(image));
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
        forLargest(w, image, [&](int64_t o, T best, int64_t place) {
          y[plane * w.outSize() + o] = best;
          if (indices == nullptr) return;
          indices[plane * w.outSize() + o] =
              place < 0 ? -1 : plane * w.inSize() + (column_major ? columnMajor(w, place) : place);
        });
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
        forLargest(w, x + plane * w.inSize(), [&](int64_t o, T, int64_t place) {
          if (place >= 0) image[place] += dy[plane * w.outSize() + o];
        });
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
  return withType<float, double>(spec, type, "dY",
                                 [&](auto zero) { return makeMaxPoolGrad<decltype(zero)>(pool); });
}

// By how many an average over the window at `position` divides: the elements in sight, or with those of the
// padding.
int64_t averageCount(const Window& w, int64_t position, bool with_padding) {
  const Visible visible(w, position);
  int64_t count = 1;
  for (size_t a = 0; a < 3; ++a) {
    int64_t size = visible.end[a] - visible.begin[a];
    if (with_padding)
      size = std::min(w.kernel[a],
                      (w.in[a] + w.pad_end[a] - visible.origin[a] + w.dilation[a] - 1) / w.dilation[a]);
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
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    return makeAveragePool<decltype(zero)>(pool, with_padding);
  });
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
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) {
    return makeAveragePoolGrad<decltype(zero)>(pool, with_padding);
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
    return makeKernel([planes, size](const KernelArguments& arguments) {
      const T* x = input<T>(arguments, 0);
      T* y = output<T>(arguments, 0);
      forRows(planes, size, [&](int64_t first, int64_t last) {
        for (int64_t plane = first; plane < last; ++plane) {
          const T* begin = x + plane * size;
          double sum = 0;
          for (int64_t i = 0; !kMaximum && i < size; ++i) sum += static_cast<double>(begin[i]);
          y[plane] = kMaximum ? *std::max_element(begin, begin + size)
                              : static_cast<T>(sum / static_cast<double>(size));
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
