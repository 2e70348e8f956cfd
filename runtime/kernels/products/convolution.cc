// Convolutions: by oneDNN where it has code for them (blocked_convolution.h), else as matrix products of
// weights and of what each output position sees of the image. Work is cut by sizes alone into tasks; a fixed
// number of slots share them, each with its own piece of the workspace.
#include <algorithm>
#include <type_traits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/slots.h"
#include "runtime/kernels/products/blocked_convolution.h"
#include "runtime/kernels/products/gemm.h"
#include "runtime/kernels/products/window.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kSlots = 32;
constexpr int64_t kTasks = 8;                  // that work is cut into at least, if its sizes allow
constexpr int64_t kColumnElements = 1 << 16;   // of one matrix of columns
constexpr int64_t kLeastWidth = 256;           // columns of a product that is cut for the sake of more tasks
constexpr int64_t kLeastProductChannels = 64;  // rows of such a one

int64_t ceilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Convolution {
  Window window;
  int64_t batch = 0;
  int64_t groups = 1;
  int64_t channels = 0;  // of the image, per group
  int64_t features = 0;  // of the output, per group

  int64_t rows() const { return channels * window.kernelSize(); }
  // Output positions are cut into tiles: those of a pointwise one to have enough tasks, others to keep the
  // columns in the cache.
  int64_t width() const {
    const int64_t size = window.outSize();
    if (window.isPointwise())
      return std::min(
          size,
          std::max(kLeastWidth, ceilDivide(size, ceilDivide(kTasks, std::max<int64_t>(1, batch * groups)))));
    return ceilDivide(size, ceilDivide(size, std::max<int64_t>(64, kColumnElements / rows())));
  }
  int64_t tiles() const { return ceilDivide(window.outSize(), width()); }
  int64_t imageOffset(int64_t item, int64_t group) const {
    return (item * groups + group) * channels * window.inSize();
  }
  int64_t outputOffset(int64_t item, int64_t group) const {
    return (item * groups + group) * features * window.outSize();
  }
  int64_t weightElements() const { return groups * features * rows(); }
  int64_t columnElements() const { return window.isPointwise() ? 0 : rows() * width(); }
};

// The columns [first, last) of a group's image, in `space` or, where the output is the image, in the image
// itself.
template <typename T>
struct Columns {
  const T* data;
  int64_t leading;
};

template <typename T>
Columns<T> columnsOf(const Convolution& c, const T* image, int64_t first, int64_t last, T* space) {
  if (c.window.isPointwise()) return {image + first, c.window.inSize()};
  imageToColumns(c.window, c.channels, image, first, last, space);
  return {space, last - first};
}

template <typename T>
void forward(const Convolution& c, const T* x, const T* w, const T* bias, T* y, T* space) {
  const int64_t size = c.window.outSize();
  forSlots(kSlots, c.batch * c.groups * c.tiles(), [&](int64_t slot, int64_t task) {
    const int64_t item = task / c.tiles() / c.groups;
    const int64_t group = task / c.tiles() % c.groups;
    const int64_t first = task % c.tiles() * c.width();
    const int64_t last = std::min(size, first + c.width());
    const Columns<T> columns =
        columnsOf(c, x + c.imageOffset(item, group), first, last, space + slot * c.columnElements());
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
  const int64_t parts = direct ? c.tiles() : 1;
  const int64_t part = direct ? c.width() : size;
  forSlots(kSlots, c.batch * c.groups * parts, [&](int64_t slot, int64_t task) {
    const int64_t image_index = task / parts;
    const int64_t group = image_index % c.groups;
    T* image = dx + image_index * c.channels * image_size;
    T* columns = space + slot * c.columnElements();
    const int64_t begin = task % parts * part;
    const int64_t end = std::min(size, begin + part);
    for (int64_t i = 0; i < c.channels && (!direct || bias != nullptr); ++i) {
      T* plane = image + i * image_size;
      std::fill(direct ? plane + begin : plane, direct ? plane + end : plane + image_size,
                bias == nullptr ? T(0) : bias[group * c.channels + i]);
    }
    for (int64_t first = begin; first < end; first += c.width()) {
      const int64_t last = std::min(end, first + c.width());
      gemmOnThisThread<T>(
          {true, false, c.rows(), last - first, c.features}, w + group * c.features * c.rows(), c.rows(),
          dy + image_index * c.features * size + first, size, direct && bias != nullptr ? 1 : 0,
          direct ? image + first : columns, direct ? image_size : last - first);
      if (!direct) addColumnsToImage(c.window, c.channels, columns, first, last, image);
    }
  });
}

// How the gradient of a weight is cut: a pointwise one into pieces of the larger of its two sizes, and, where
// that gives too few tasks, the batch into chunks, whose sums are added in order.
struct WeightCut {
  bool by_features = true;
  int64_t pieces = 1;
  int64_t chunks = 1;
};

WeightCut cutWeight(const Convolution& c) {
  WeightCut cut;
  cut.by_features = c.features >= c.channels;
  if (c.window.isPointwise())
    cut.pieces = std::clamp<int64_t>(std::max(c.features, c.channels) / kLeastProductChannels, 1, kTasks);
  cut.chunks = std::min(c.batch, ceilDivide(kTasks, cut.pieces * c.groups));
  return cut;
}

template <typename T>
void backwardWeight(const Convolution& c, const T* dy, const T* x, T* dw, T* space) {
  const int64_t size = c.window.outSize();
  const WeightCut cut = cutWeight(c);
  T* partial = cut.chunks > 1 ? space : dw;
  T* column_space = space + (cut.chunks > 1 ? cut.chunks * c.weightElements() : 0);
  forSlots(kSlots, cut.chunks * c.groups * cut.pieces, [&](int64_t slot, int64_t task) {
    const int64_t chunk = task / (c.groups * cut.pieces);
    const int64_t group = task / cut.pieces % c.groups;
    const int64_t piece = task % cut.pieces;
    const int64_t whole = cut.by_features ? c.features : c.channels;
    const int64_t begin = piece * whole / cut.pieces;
    const int64_t count = (piece + 1) * whole / cut.pieces - begin;
    const int64_t feature = cut.by_features ? begin : 0;
    // only of a pointwise one, whose rows are its channels
    const int64_t channel = cut.by_features ? 0 : begin;
    T* sum = partial + chunk * c.weightElements() + (group * c.features + feature) * c.rows() + channel;
    const int64_t columns_wanted = cut.by_features ? c.rows() : count * c.window.kernelSize();
    bool started = false;
    for (int64_t item = chunk * c.batch / cut.chunks; item < (chunk + 1) * c.batch / cut.chunks; ++item) {
      const int64_t width = c.window.isPointwise() ? size : c.width();
      for (int64_t first = 0; first < size; first += width) {
        const int64_t last = std::min(size, first + width);
        const T* image = x + c.imageOffset(item, group) + channel * size;
        const Columns<T> columns = columnsOf(c, image, first, last, column_space + slot * c.columnElements());
        gemmOnThisThread<T>({false, true, cut.by_features ? count : c.features, columns_wanted, last - first},
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
      for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) total += partial[chunk * c.weightElements() + i];
      dw[i] = total;
    }
  });
}

// Channels of image, output and weight [features, channels / group, kernel..] fit together.
Convolution planConvolution(const KernelSpec& spec, const Window& window, const Shape& image,
                            const Shape& output, const Shape& weight) {
  Convolution c;
  c.window = window;
  c.batch = image[0];
  c.groups = spec.node->intAttribute("group", 1);
  if (c.groups < 1 || image[1] % c.groups != 0 || output[1] % c.groups != 0)
    refuse(spec, "{} groups do not divide {} and {} channels", c.groups, image[1], output[1]);
  c.channels = image[1] / c.groups;
  c.features = output[1] / c.groups;
  if (output[0] != image[0] || weight[0] != output[1] || weight[1] != c.channels)
    refuse(spec, "shapes {}, {} and weight {} do not fit with {} groups", shapeToString(image),
           shapeToString(output), shapeToString(weight), c.groups);
  return c;
}

// oneDNN's code for a task, where it is faster than products: not for pointwise convolutions of large images
// and for their weights, since a product needs no other layout.
std::shared_ptr<const BlockedConvolution> blockedFor(ConvolutionTask task, const Convolution& c) {
  if (c.groups != 1) return nullptr;
  if (c.window.isPointwise() && (task == ConvolutionTask::kWeightGrad || c.window.outSize() >= kLeastWidth))
    return nullptr;
  return BlockedConvolution::create(task, c.window, c.batch, c.channels, c.features);
}

void addBias(float* y, const float* bias, int64_t batch, int64_t channels, int64_t size) {
  if (bias == nullptr) return;
  forRows(batch * channels, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t i = 0; i < size; ++i) y[row * size + i] += bias[row % channels];
  });
}

std::unique_ptr<Kernel> blockedKernel(ConvolutionTask task, std::shared_ptr<const BlockedConvolution> blocked,
                                      const Convolution& c) {
  const size_t bytes = blocked->workspaceBytes();
  const auto read = [](const KernelArguments& a, size_t i) { return const_cast<float*>(input<float>(a, i)); };
  return makeKernel(
      [task, c, read, blocked = std::move(blocked)](const KernelArguments& a) {
        float* result = kernels::output<float>(a, 0);
        switch (task) {
          case ConvolutionTask::kForward:
            blocked->run(read(a, 0), read(a, 1), result, a.workspace);
            return addBias(result, input<float>(a, 2), c.batch, c.features, c.window.outSize());
          case ConvolutionTask::kInputGrad:
            blocked->run(result, read(a, 1), read(a, 0), a.workspace);
            return addBias(result, input<float>(a, 2), c.batch, c.channels, c.window.inSize());
          case ConvolutionTask::kWeightGrad: return blocked->run(read(a, 1), result, read(a, 0), a.workspace);
        }
      },
      {.in_place = {}, .workspace_bytes = bytes});
}

size_t slotBytes(const Convolution& c, size_t element) { return kSlots * c.columnElements() * element; }

void checkTypes(const KernelSpec& spec, DataType type) {
  for (size_t i = 1; i < spec.inputs.size(); ++i) checkInputType(spec, i, type);
  checkOutputType(spec, 0, type);
}

std::unique_ptr<Kernel> conv(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& image = spec.inputs[0].shape;
  const Shape& weight = spec.inputs[1].shape;
  const Shape& output = spec.outputs[0].shape;
  const Convolution c =
      planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  if (hasInput(spec, 2)) checkInputShape(spec, 2, {output[1]});
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float>) {
      if (auto blocked = blockedFor(ConvolutionTask::kForward, c))
        return blockedKernel(ConvolutionTask::kForward, std::move(blocked), c);
    }
    return makeKernel(
        [c](const KernelArguments& a) {
          forward(c, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), kernels::output<T>(a, 0),
                  static_cast<T*>(a.workspace));
        },
        {.in_place = {}, .workspace_bytes = slotBytes(c, sizeof(T))});
  });
}

// ConvTranspose (X, W, B) and ConvInputGrad (dY, W): the image is the output.
std::unique_ptr<Kernel> convTranspose(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& output = spec.inputs[0].shape;
  const Shape& weight = spec.inputs[1].shape;
  const Shape& image = spec.outputs[0].shape;
  const Window window = transposedWindowOf(spec, image, output, kernelSizes(spec, &weight));
  const Convolution c = planConvolution(spec, window, image, output, weight);
  if (hasInput(spec, 2)) checkInputShape(spec, 2, {image[1]});
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float>) {
      if (auto blocked = blockedFor(ConvolutionTask::kInputGrad, c))
        return blockedKernel(ConvolutionTask::kInputGrad, std::move(blocked), c);
    }
    return makeKernel(
        [c](const KernelArguments& a) {
          backwardImage(c, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), kernels::output<T>(a, 0),
                        static_cast<T*>(a.workspace));
        },
        {.in_place = {}, .workspace_bytes = slotBytes(c, sizeof(T))});
  });
}

// dY, X -> dW
std::unique_ptr<Kernel> convWeightGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& output = spec.inputs[0].shape;
  const Shape& image = spec.inputs[1].shape;
  const Shape& weight = spec.outputs[0].shape;
  const Convolution c =
      planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float>) {
      if (auto blocked = blockedFor(ConvolutionTask::kWeightGrad, c))
        return blockedKernel(ConvolutionTask::kWeightGrad, std::move(blocked), c);
    }
    const int64_t chunks = cutWeight(c).chunks;
    const int64_t sums = chunks > 1 ? chunks * c.weightElements() : 0;
    return makeKernel(
        [c](const KernelArguments& a) {
          backwardWeight(c, input<T>(a, 0), input<T>(a, 1), kernels::output<T>(a, 0),
                         static_cast<T*>(a.workspace));
        },
        {.in_place = {}, .workspace_bytes = slotBytes(c, sizeof(T)) + sums * sizeof(T)});
  });
}

}  // namespace

void addConvolutionKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "Conv", conv);
  registry.add("", "ConvTranspose", convTranspose);
  registry.add(ours, "ConvInputGrad", convTranspose);
  registry.add(ours, "ConvWeightGrad", convWeightGrad);
}

}  // namespace pipeshard::kernels
