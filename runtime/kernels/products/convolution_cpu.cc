// By oneDNN where it has code for them (blocked_convolution.h), else as matrix products of weights and of
// what each output position sees of the image. Work is cut by sizes alone into tasks; a fixed number of slots
// share them, each with its own piece of the workspace.
#include <algorithm>
#include <type_traits>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/slots.h"
#include "runtime/kernels/products/blocked_convolution.h"
#include "runtime/kernels/products/convolution.h"
#include "runtime/kernels/products/depthwise_weight.h"
#include "runtime/kernels/products/gemm.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kMostSlots = 32;
constexpr int64_t kTasks = 8;                  // that work is cut into at least, if its sizes allow
constexpr int64_t kColumnElements = 1 << 16;   // of one matrix of columns
constexpr int64_t kLeastWidth = 256;           // columns of a product that is cut for the sake of more tasks
constexpr int64_t kLeastProductChannels = 64;  // rows of such a one

int64_t ceilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Output positions are cut into tiles: those of a pointwise one to have enough tasks, others to keep the
// columns in the cache.
int64_t widthOf(const Convolution& c) {
  const int64_t size = c.window.outSize();
  if (c.window.isPointwise())
    return std::min(size,
                    std::max(kLeastWidth,
                             ceilDivide(size, ceilDivide(kTasks, std::max<int64_t>(1, c.batch * c.groups)))));
  return ceilDivide(size, ceilDivide(size, std::max<int64_t>(64, kColumnElements / c.rows())));
}
int64_t tilesOf(const Convolution& c) { return ceilDivide(c.window.outSize(), widthOf(c)); }
int64_t columnElements(const Convolution& c) { return c.window.isPointwise() ? 0 : c.rows() * widthOf(c); }
// An image is cut into tiles where they are its tasks: all but the sums of columns that overlap in it.
int64_t imageTasksOf(ConvolutionTask task, const Convolution& c) {
  const bool cut = task == ConvolutionTask::kForward || c.window.isPointwise();
  return c.batch * c.groups * (cut ? tilesOf(c) : 1);
}

// Calls body(row, column offset, count, image offset, step) for every run of columns inside the image, and
// outside(row, column offset, count) for the rest.
template <typename Inside, typename Outside>
void forRuns(const Window& w, int64_t channels, int64_t first, int64_t last, const Inside& inside,
             const Outside& outside) {
  int64_t row = 0;
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t kz = 0; kz < w.kernel[0]; ++kz)
      for (int64_t ky = 0; ky < w.kernel[1]; ++ky)
        for (int64_t kx = 0; kx < w.kernel[2]; ++kx, ++row)
          for (int64_t p = first; p < last;) {
            const int64_t ox = p % w.out[2];
            const int64_t oy = p / w.out[2] % w.out[1];
            const int64_t oz = p / w.out[2] / w.out[1];
            const int64_t count = std::min(w.out[2] - ox, last - p);
            const int64_t z = oz * w.stride[0] - w.pad[0] + kz * w.dilation[0];
            const int64_t y = oy * w.stride[1] - w.pad[1] + ky * w.dilation[1];
            const int64_t x = ox * w.stride[2] - w.pad[2] + kx * w.dilation[2];
            int64_t begin = x >= 0 ? 0 : (-x + w.stride[2] - 1) / w.stride[2];
            int64_t end = x >= w.in[2] ? 0 : (w.in[2] - x + w.stride[2] - 1) / w.stride[2];
            if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1]) end = 0;
            begin = std::min(begin, count);
            end = std::max(begin, std::min(end, count));
            const int64_t offset = p - first;
            if (begin > 0) outside(row, offset, begin);
            if (end > begin) {
              inside(row, offset + begin, end - begin,
                     ((c * w.in[0] + z) * w.in[1] + y) * w.in[2] + x + begin * w.stride[2], w.stride[2]);
            }
            if (count > end) outside(row, offset + end, count - end);
            p += count;
          }
}

// Columns [first, last) of the matrix [channels * kernelSize, outSize] of what each output position sees of
// `channels` images. Row-major, last - first elements in a row; padding is 0.
template <typename T>
void imageToColumns(const Window& window, int64_t channels, const T* image, int64_t first, int64_t last,
                    T* columns) {
  const int64_t width = last - first;
  forRuns(
      window, channels, first, last,
      [&](int64_t row, int64_t offset, int64_t count, int64_t from, int64_t step) {
        T* to = columns + row * width + offset;
        const T* source = image + from;
        for (int64_t i = 0; i < count; ++i) to[i] = source[i * step];
      },
      [&](int64_t row, int64_t offset, int64_t count) {
        std::fill_n(columns + row * width + offset, count, T(0));
      });
}

// The adjoint: adds the columns to the images.
template <typename T>
void addColumnsToImage(const Window& window, int64_t channels, const T* columns, int64_t first, int64_t last,
                       T* image) {
  const int64_t width = last - first;
  forRuns(
      window, channels, first, last,
      [&](int64_t row, int64_t offset, int64_t count, int64_t to, int64_t step) {
        const T* from = columns + row * width + offset;
        T* target = image + to;
        for (int64_t i = 0; i < count; ++i) target[i * step] += from[i];
      },
      [](int64_t, int64_t, int64_t) {});
}

// The columns [first, last) of so many channels of an image, in `space` or, where the output is the image, in
// the image itself.
template <typename T>
struct Columns {
  const T* data;
  int64_t leading;
};

template <typename T>
Columns<T> columnsOf(const Convolution& c, int64_t channels, const T* image, int64_t first, int64_t last,
                     T* space) {
  if (c.window.isPointwise()) return {image + first, c.window.inSize()};
  imageToColumns(c.window, channels, image, first, last, space);
  return {space, last - first};
}

template <typename T>
void forward(const Convolution& c, const T* x, const T* w, const T* bias, T* y, T* space) {
  const int64_t size = c.window.outSize();
  forSlots(kMostSlots, imageTasksOf(ConvolutionTask::kForward, c), [&](int64_t slot, int64_t task) {
    const int64_t item = task / tilesOf(c) / c.groups;
    const int64_t group = task / tilesOf(c) % c.groups;
    const int64_t first = task % tilesOf(c) * widthOf(c);
    const int64_t last = std::min(size, first + widthOf(c));
    const Columns<T> columns = columnsOf(c, c.channels, x + c.imageOffset(item, group), first, last,
                                         space + slot * columnElements(c));
    T* out = y + c.outputOffset(item, group) + first;
    gemmOnThisThread<T>({false, false, c.features, last - first, c.rows()}, w + group * c.features * c.rows(),
                        c.rows(), columns.data, columns.leading, 0, out, size);
    for (int64_t f = 0; bias != nullptr && f < c.features; ++f) {
      for (int64_t i = 0; i < last - first; ++i) out[f * size + i] += bias[group * c.features + f];
    }
  });
}

// Image := what the outputs, multiplied by the weights, add to each of its elements. Tiles of a pointwise one
// are tasks.
template <typename T>
void backwardImage(const Convolution& c, const T* dy, const T* w, const T* bias, T* dx, T* space) {
  const int64_t size = c.window.outSize();
  const int64_t image_size = c.window.inSize();
  const bool direct = c.window.isPointwise();
  const int64_t parts = direct ? tilesOf(c) : 1;  // as imageTasksOf
  const int64_t part = direct ? widthOf(c) : size;
  forSlots(kMostSlots, imageTasksOf(ConvolutionTask::kInputGrad, c), [&](int64_t slot, int64_t task) {
    const int64_t image_index = task / parts;
    const int64_t group = image_index % c.groups;
    T* image = dx + image_index * c.channels * image_size;
    T* columns = space + slot * columnElements(c);
    const int64_t begin = task % parts * part;
    const int64_t end = std::min(size, begin + part);
    for (int64_t i = 0; i < c.channels && (!direct || bias != nullptr); ++i) {
      T* plane = image + i * image_size;
      std::fill(direct ? plane + begin : plane, direct ? plane + end : plane + image_size,
                bias == nullptr ? T(0) : bias[group * c.channels + i]);
    }
    for (int64_t first = begin; first < end; first += widthOf(c)) {
      const int64_t last = std::min(end, first + widthOf(c));
      gemmOnThisThread<T>(
          {true, false, c.rows(), last - first, c.features}, w + group * c.features * c.rows(), c.rows(),
          dy + image_index * c.features * size + first, size, direct && bias != nullptr ? 1 : 0,
          direct ? image + first : columns, direct ? image_size : last - first);
      if (!direct) addColumnsToImage(c.window, c.channels, columns, first, last, image);
    }
  });
}

// How the gradient of a weight is cut: into pieces of one of its two sizes, of a pointwise one the larger,
// and, where that gives too few tasks, the batch into chunks, whose sums are added in order. Each sum but the
// first, which is where the result will be, takes as much workspace as the weight. So where all of them would
// be larger than images and outputs together, there are pieces instead: of the channels, if they are enough.
struct WeightCut {
  bool by_features = true;
  int64_t pieces = 1;
  int64_t chunks = 1;

  int64_t tasks(const Convolution& c) const { return chunks * c.groups * pieces; }
  int64_t sumElements(const Convolution& c) const {
    return std::max<int64_t>(0, chunks - 1) * c.weightElements();
  }
  // of the matrix of columns that a task makes
  int64_t columnElements(const Convolution& c) const {
    const int64_t channels = by_features ? c.channels : ceilDivide(c.channels, pieces);
    return c.window.isPointwise() ? 0 : channels * c.window.kernelSize() * widthOf(c);
  }
};

WeightCut cutWeight(const Convolution& c) {
  WeightCut cut;
  const int64_t wanted = std::max<int64_t>(1, ceilDivide(kTasks, std::max<int64_t>(1, c.groups)));
  const int64_t tensors = c.imageOffset(c.batch, 0) + c.outputOffset(c.batch, 0);
  cut.by_features = c.features >= c.channels;
  if (c.window.isPointwise()) {
    cut.pieces = std::clamp<int64_t>(std::max(c.features, c.channels) / kLeastProductChannels, 1, kTasks);
  } else if (std::min(c.batch, wanted) * c.weightElements() > tensors) {
    cut.by_features = c.channels < wanted;
    cut.pieces = std::clamp<int64_t>(cut.by_features ? c.features : c.channels, 1, wanted);
  }
  cut.chunks = std::min(c.batch, ceilDivide(kTasks, cut.pieces * c.groups));
  return cut;
}

template <typename T>
void backwardWeight(const Convolution& c, const T* dy, const T* x, T* dw, T* space) {
  const int64_t size = c.window.outSize();
  const WeightCut cut = cutWeight(c);
  T* column_space = space + cut.sumElements(c);
  forSlots(kMostSlots, cut.tasks(c), [&](int64_t slot, int64_t task) {
    const int64_t chunk = task / (c.groups * cut.pieces);
    const int64_t group = task / cut.pieces % c.groups;
    const int64_t piece = task % cut.pieces;
    const int64_t whole = cut.by_features ? c.features : c.channels;
    const int64_t begin = piece * whole / cut.pieces;
    const int64_t count = (piece + 1) * whole / cut.pieces - begin;
    const int64_t feature = cut.by_features ? begin : 0;
    const int64_t channel = cut.by_features ? 0 : begin;
    const int64_t channels = cut.by_features ? c.channels : count;
    T* sum = (chunk == 0 ? dw : space + (chunk - 1) * c.weightElements()) +
             (group * c.features + feature) * c.rows() + channel * c.window.kernelSize();
    bool started = false;
    for (int64_t item = chunk * c.batch / cut.chunks; item < (chunk + 1) * c.batch / cut.chunks; ++item) {
      const int64_t width = c.window.isPointwise() ? size : widthOf(c);
      for (int64_t first = 0; first < size; first += width) {
        const int64_t last = std::min(size, first + width);
        const T* image = x + c.imageOffset(item, group) + channel * c.window.inSize();
        const Columns<T> columns =
            columnsOf(c, channels, image, first, last, column_space + slot * cut.columnElements(c));
        gemmOnThisThread<T>({false, true, cut.by_features ? count : c.features,
                             channels * c.window.kernelSize(), last - first},
                            dy + c.outputOffset(item, group) + feature * size + first, size, columns.data,
                            columns.leading, started ? 1 : 0, sum, c.rows());
        started = true;
      }
    }
  });
  if (cut.chunks == 1) return;
  forRows(c.weightElements(), cut.chunks, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      T total = 0;
      for (int64_t chunk = 0; chunk < cut.chunks; ++chunk)
        total += chunk == 0 ? dw[i] : space[(chunk - 1) * c.weightElements() + i];
      dw[i] = total;
    }
  });
}

// Of the workspace of products: a matrix of columns for each slot, and sums.
int64_t productElements(ConvolutionTask task, const Convolution& c) {
  if (task != ConvolutionTask::kWeightGrad)
    return std::min(kMostSlots, imageTasksOf(task, c)) * columnElements(c);
  const WeightCut cut = cutWeight(c);
  return std::min(kMostSlots, cut.tasks(c)) * cut.columnElements(c) + cut.sumElements(c);
}

// oneDNN's code for a task, where it is faster than products: not for pointwise convolutions of large images
// and for their weights, since a product needs no other layout.
std::shared_ptr<const BlockedConvolution> blockedFor(ConvolutionTask task, const Convolution& c) {
  if (c.groups == 1 && c.window.isPointwise() &&
      (task == ConvolutionTask::kWeightGrad || c.window.outSize() >= kLeastWidth))
    return nullptr;
  return BlockedConvolution::create(task, c);
}

void addBias(float* y, const float* bias, int64_t batch, int64_t channels, int64_t size) {
  if (bias == nullptr) return;
  forRows(batch * channels, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t i = 0; i < size; ++i) y[row * size + i] += bias[row % channels];
  });
}

PreparedConvolution<float> prepareBlocked(ConvolutionTask task,
                                          std::shared_ptr<const BlockedConvolution> blocked,
                                          const Convolution& c) {
  const size_t bytes = blocked->workspaceBytes();
  return {bytes,
          [task, c, blocked = std::move(blocked)](DeviceQueue*, const float* first, const float* second,
                                                  const float* bias, float* result, void* workspace) {
            const auto read = [](const float* tensor) { return const_cast<float*>(tensor); };
            switch (task) {
              case ConvolutionTask::kForward:
                blocked->run(read(first), read(second), result, workspace);
                return addBias(result, bias, c.batch, c.groups * c.features, c.window.outSize());
              case ConvolutionTask::kInputGrad:
                blocked->run(result, read(second), read(first), workspace);
                return addBias(result, bias, c.batch, c.groups * c.channels, c.window.inSize());
              case ConvolutionTask::kWeightGrad:
                return blocked->run(read(second), result, read(first), workspace);
            }
          }};
}

}  // namespace

template <typename T>
PreparedConvolution<T> prepareConvolution(ConvolutionTask task, const Convolution& c) {
  if constexpr (std::is_same_v<T, float>) {
    if (auto blocked = blockedFor(task, c)) return prepareBlocked(task, std::move(blocked), c);
    if (task == ConvolutionTask::kWeightGrad && isDepthwise(c)) {
      return {depthwiseWeightBytes(c),
              [c](DeviceQueue*, const T* dy, const T* x, const T*, T* dw, void* workspace) {
                depthwiseWeightGrad(c, dy, x, dw, workspace);
              }};
    }
  }
  return {productElements(task, c) * sizeof(T), [task, c](DeviceQueue*, const T* first, const T* second,
                                                          const T* bias, T* result, void* workspace) {
            T* space = static_cast<T*>(workspace);
            switch (task) {
              case ConvolutionTask::kForward: return forward(c, first, second, bias, result, space);
              case ConvolutionTask::kInputGrad: return backwardImage(c, first, second, bias, result, space);
              case ConvolutionTask::kWeightGrad: return backwardWeight(c, first, second, result, space);
            }
          }};
}

template PreparedConvolution<float> prepareConvolution(ConvolutionTask, const Convolution&);
template PreparedConvolution<double> prepareConvolution(ConvolutionTask, const Convolution&);

}  // namespace pipeshard::kernels
