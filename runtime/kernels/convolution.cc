// Convolutions as matrix products of weights and of what each output position sees of the image. Work is cut by sizes alone
// into tasks; a fixed number of slots share them, each with its own piece of the workspace.
#include <algorithm>

#include "runtime/kernels/families.h"
#include "runtime/kernels/gemm.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/window.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kSlots = 32;
constexpr int64_t kImageChunks = 8;           // partial sums of a weight's gradient
constexpr int64_t kColumnElements = 1 << 16;  // of one matrix of columns

struct Convolution {
  Window window;
  int64_t batch = 0;
  int64_t groups = 1;
  int64_t channels = 0;  // of the image, per group
  int64_t features = 0;  // of the output, per group

  int64_t rows() const { return channels * window.kernelSize(); }
  int64_t width() const { return std::min(window.outSize(), std::max<int64_t>(64, kColumnElements / rows())); }
  int64_t tiles() const { return (window.outSize() + width() - 1) / width(); }
  int64_t imageOffset(int64_t item, int64_t group) const { return (item * groups + group) * channels * window.inSize(); }
  int64_t outputOffset(int64_t item, int64_t group) const { return (item * groups + group) * features * window.outSize(); }
  int64_t weightElements() const { return groups * features * rows(); }
  int64_t columnElements() const { return window.isPointwise() ? 0 : rows() * width(); }
};

// body(slot, task): the tasks of a slot run one after the other.
template <typename Body>
void forSlots(int64_t tasks, const Body& body) {
  const int64_t slots = std::min(tasks, kSlots);
  // At least two, so that a product never spreads over threads by itself, which could change its bits.
  forEachBlock(std::max<int64_t>(2, slots), true, [&](int64_t slot) {
    if (slot >= slots) return;
    for (int64_t task = slot * tasks / slots; task < (slot + 1) * tasks / slots; ++task) body(slot, task);
  });
}

// The columns [first, last) of a group's image, in `space` or, where the output is the image, in the image itself.
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
  forSlots(c.batch * c.groups * c.tiles(), [&](int64_t slot, int64_t task) {
    const int64_t item = task / c.tiles() / c.groups;
    const int64_t group = task / c.tiles() % c.groups;
    const int64_t first = task % c.tiles() * c.width();
    const int64_t last = std::min(size, first + c.width());
    const Columns<T> columns = columnsOf(c, x + c.imageOffset(item, group), first, last, space + slot * c.columnElements());
    T* out = y + c.outputOffset(item, group) + first;
    gemmOnThisThread<T>({false, false, c.features, last - first, c.rows()}, w + group * c.features * c.rows(), c.rows(), columns.data,
                        columns.leading, 0, out, size);
    for (int64_t f = 0; bias != nullptr && f < c.features; ++f) {
      for (int64_t i = 0; i < last - first; ++i) out[f * size + i] += bias[group * c.features + f];
    }
  });
}

// Image := what the outputs, multiplied by the weights, add to each of its elements.
template <typename T>
void backwardImage(const Convolution& c, const T* dy, const T* w, const T* bias, T* dx, T* space) {
  const int64_t size = c.window.outSize();
  const int64_t image_size = c.window.inSize();
  forSlots(c.batch * c.groups, [&](int64_t slot, int64_t task) {
    const int64_t group = task % c.groups;
    T* image = dx + task * c.channels * image_size;
    T* columns = space + slot * c.columnElements();
    for (int64_t i = 0; i < c.channels; ++i) {
      std::fill_n(image + i * image_size, image_size, bias == nullptr ? T(0) : bias[group * c.channels + i]);
    }
    for (int64_t first = 0; first < size; first += c.width()) {
      const int64_t last = std::min(size, first + c.width());
      const bool direct = c.window.isPointwise();
      gemmOnThisThread<T>({true, false, c.rows(), last - first, c.features}, w + group * c.features * c.rows(), c.rows(),
                          dy + task * c.features * size + first, size, direct ? 1 : 0, direct ? image + first : columns,
                          direct ? image_size : last - first);
      if (!direct) addColumnsToImage(c.window, c.channels, columns, first, last, image);
    }
  });
}

// The batch in fixed chunks; the sums of the chunks are added in order.
template <typename T>
void backwardWeight(const Convolution& c, const T* dy, const T* x, T* dw, T* space) {
  const int64_t size = c.window.outSize();
  const int64_t chunks = std::min(c.batch, kImageChunks);
  T* partial = space;
  T* column_space = space + chunks * c.weightElements();
  forSlots(chunks * c.groups, [&](int64_t slot, int64_t task) {
    const int64_t chunk = task / c.groups;
    const int64_t group = task % c.groups;
    T* sum = partial + chunk * c.weightElements() + group * c.features * c.rows();
    bool started = false;
    for (int64_t item = chunk * c.batch / chunks; item < (chunk + 1) * c.batch / chunks; ++item) {
      for (int64_t first = 0; first < size; first += c.width()) {
        const int64_t last = std::min(size, first + c.width());
        const Columns<T> columns = columnsOf(c, x + c.imageOffset(item, group), first, last, column_space + slot * c.columnElements());
        gemmOnThisThread<T>({false, true, c.features, c.rows(), last - first}, dy + c.outputOffset(item, group) + first, size, columns.data,
                            columns.leading, started ? 1 : 0, sum, c.rows());
        started = true;
      }
    }
  });
  forRows(c.weightElements(), chunks, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      T total = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) total += partial[chunk * c.weightElements() + i];
      dw[i] = total;
    }
  });
}

// Channels of image, output and weight [features, channels / group, kernel..] fit together.
Convolution planConvolution(const KernelSpec& spec, const Window& window, const Shape& image, const Shape& output, const Shape& weight) {
  Convolution c;
  c.window = window;
  c.batch = image[0];
  c.groups = spec.node->intAttribute("group", 1);
  if (c.groups < 1 || image[1] % c.groups != 0 || output[1] % c.groups != 0)
    refuse(spec, "{} groups do not divide {} and {} channels", c.groups, image[1], output[1]);
  c.channels = image[1] / c.groups;
  c.features = output[1] / c.groups;
  if (output[0] != image[0] || weight[0] != output[1] || weight[1] != c.channels)
    refuse(spec, "shapes {}, {} and weight {} do not fit with {} groups", shapeToString(image), shapeToString(output),
           shapeToString(weight), c.groups);
  return c;
}

size_t slotBytes(const Convolution& c, size_t element) { return static_cast<size_t>(kSlots * c.columnElements()) * element; }

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
  const Convolution c = planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  if (hasInput(spec, 2)) checkInputShape(spec, 2, {output[1]});
  return withType<float, double>(spec, spec.inputs[0].data_type, "X", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [c](const KernelArguments& a) {
          forward(c, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), kernels::output<T>(a, 0), static_cast<T*>(a.workspace));
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
    return makeKernel(
        [c](const KernelArguments& a) {
          backwardImage(c, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), kernels::output<T>(a, 0), static_cast<T*>(a.workspace));
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
  const Convolution c = planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) {
    using T = decltype(zero);
    const int64_t sums = std::min(c.batch, kImageChunks) * c.weightElements();
    return makeKernel(
        [c](const KernelArguments& a) {
          backwardWeight(c, input<T>(a, 0), input<T>(a, 1), kernels::output<T>(a, 0), static_cast<T*>(a.workspace));
        },
        {.in_place = {}, .workspace_bytes = slotBytes(c, sizeof(T)) + static_cast<size_t>(sums) * sizeof(T)});
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
