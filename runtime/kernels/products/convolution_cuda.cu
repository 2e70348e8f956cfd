// By cuDNN where it can do them, else as products by cuBLASLt of weights and of what each output position
// sees of the image, an image and a group at a time.
#include <algorithm>

#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cudnn_use.h"
#include "runtime/kernels/products/convolution.h"
#include "runtime/kernels/products/cudnn_convolution.h"
#include "runtime/kernels/products/matmul.h"
#include "runtime/kernels/products/window_positions.h"

namespace pipeshard::kernels {

// The matrix [channels * kernelSize, outSize] of what each output position sees; padding is 0.
template <typename T>
__global__ void imageToColumnsKernel(Window w, int64_t channels, const T* image, T* columns) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = channels * w.kernelSize() * w.outSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t o = i % w.outSize();
    const int64_t k = i / w.outSize() % w.kernelSize();
    const int64_t channel = i / w.outSize() / w.kernelSize();
    const int64_t z =
        o / w.out[2] / w.out[1] * w.stride[0] - w.pad[0] + k / w.kernel[2] / w.kernel[1] * w.dilation[0];
    const int64_t y =
        o / w.out[2] % w.out[1] * w.stride[1] - w.pad[1] + k / w.kernel[2] % w.kernel[1] * w.dilation[1];
    const int64_t x = o % w.out[2] * w.stride[2] - w.pad[2] + k % w.kernel[2] * w.dilation[2];
    const bool inside = z >= 0 && z < w.in[0] && y >= 0 && y < w.in[1] && x >= 0 && x < w.in[2];
    columns[i] = inside ? image[((channel * w.in[0] + z) * w.in[1] + y) * w.in[2] + x] : T(0);
  }
}

// The adjoint: each element of the image has one writer, which adds in the order of output positions.
template <typename T>
__global__ void columnsToImageKernel(Window w, int64_t channels, const T* columns, const T* bias, T* image) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = channels * w.inSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t channel = i / w.inSize();
    T sum = bias == nullptr ? T(0) : bias[channel];
    const T* from = columns + channel * w.kernelSize() * w.outSize();
    forViewers(w, i % w.inSize(), [&](int64_t o, int64_t k) { sum += from[k * w.outSize() + o]; });
    image[i] = sum;
  }
}

// out [.., channels, size] = the channel's bias, 0 without.
template <typename T>
__global__ void fillChannelsKernel(int64_t count, int64_t channels, int64_t size, const T* bias, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = bias == nullptr ? T(0) : bias[i / size % channels];
}

// out [.., channels, size] += the channel's bias
template <typename T>
__global__ void addToChannelsKernel(int64_t count, int64_t channels, int64_t size, const T* bias, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] += bias[i / size % channels];
}

template <typename T>
void fillChannels(DeviceQueue* queue, int64_t batch, int64_t channels, int64_t size, const T* bias, T* out) {
  const int64_t count = batch * channels * size;
  if (count == 0) return;
  launch<fillChannelsKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, channels, size,
                                bias, out);
}

// What a group of an image looks like to the output positions: in `space`, or the image itself where it is
// that already.
template <typename T>
const T* columnsOf(DeviceQueue* queue, const Convolution& c, const T* image, T* space) {
  if (c.window.isPointwise()) return image;
  const int64_t all = c.rows() * c.window.outSize();
  if (all > 0)
    launch<imageToColumnsKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), c.window,
                                    c.channels, image, space);
  return space;
}

template <typename T>
void multiplyOne(DeviceQueue* queue, const GemmShape& shape, const T* a, const T* b, bool add, T* result) {
  constexpr int64_t kNoOffset = 0;
  multiply(queue, shape, 1, 1, a, &kNoOffset, b, &kNoOffset, add ? 1 : 0, result);
}

template <typename T>
void convolve(DeviceQueue* queue, const Convolution& c, const T* x, const T* w, const T* bias, T* y,
              T* space) {
  const int64_t size = c.window.outSize();
  if (bias != nullptr) fillChannels(queue, c.batch, c.groups * c.features, size, bias, y);
  for (int64_t i = 0; i < c.batch * c.groups; ++i) {
    const int64_t group = i % c.groups;
    const T* columns = columnsOf(queue, c, x + c.imageOffset(0, i), space);
    multiplyOne(queue, {false, false, c.features, size, c.rows()}, w + group * c.features * c.rows(), columns,
                bias != nullptr, y + c.outputOffset(0, i));
  }
}

template <typename T>
void convolveImageGrad(DeviceQueue* queue, const Convolution& c, const T* dy, const T* w, const T* bias,
                       T* dx, T* space) {
  const int64_t size = c.window.outSize();
  const bool direct = c.window.isPointwise();
  if (direct && bias != nullptr) fillChannels(queue, c.batch, c.groups * c.channels, size, bias, dx);
  for (int64_t i = 0; i < c.batch * c.groups; ++i) {
    const int64_t group = i % c.groups;
    T* image = dx + c.imageOffset(0, i);
    multiplyOne(queue, {true, false, c.rows(), size, c.features}, w + group * c.features * c.rows(),
                dy + c.outputOffset(0, i), direct && bias != nullptr, direct ? image : space);
    const int64_t all = c.channels * c.window.inSize();
    if (direct || all == 0) continue;
    const T* group_bias = bias == nullptr ? nullptr : bias + group * c.channels;
    launch<columnsToImageKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), c.window,
                                    c.channels, space, group_bias, image);
  }
}

template <typename T>
void convolveWeightGrad(DeviceQueue* queue, const Convolution& c, const T* dy, const T* x, T* dw, T* space) {
  if (c.batch == 0) return fillChannels<T>(queue, 1, 1, c.weightElements(), nullptr, dw);
  for (int64_t i = 0; i < c.batch * c.groups; ++i) {
    const T* columns = columnsOf(queue, c, x + c.imageOffset(0, i), space);
    multiplyOne(queue, {false, true, c.features, c.rows(), c.window.outSize()}, dy + c.outputOffset(0, i),
                columns, i >= c.groups, dw + i % c.groups * c.features * c.rows());
  }
}

// As products.
template <typename T>
PreparedConvolution<T> prepareProducts(ConvolutionTask task, const Convolution& c) {
  const int64_t elements = c.window.isPointwise() ? 0 : c.rows() * c.window.outSize();
  return {elements * sizeof(T), [task, c](DeviceQueue* queue, const T* first, const T* second, const T* bias,
                                          T* result, void* workspace) {
            T* space = static_cast<T*>(workspace);
            switch (task) {
              case ConvolutionTask::kForward: return convolve(queue, c, first, second, bias, result, space);
              case ConvolutionTask::kInputGrad:
                return convolveImageGrad(queue, c, first, second, bias, result, space);
              case ConvolutionTask::kWeightGrad:
                return convolveWeightGrad(queue, c, first, second, result, space);
            }
          }};
}

// What cuDNN may use is known without it, so that a plan's memory does not depend on the machine: as much as
// the tensors have, within bounds.
inline constexpr int64_t kLeastWorkspace = int64_t{64} << 10;
inline constexpr int64_t kMostWorkspace = int64_t{64} << 20;

template <typename T>
int64_t workspaceForCudnn(const Convolution& c) {
  const int64_t images = c.batch * c.groups * c.channels * c.window.inSize();
  const int64_t outputs = c.batch * c.groups * c.features * c.window.outSize();
  const auto bytes = static_cast<int64_t>((images + outputs + c.weightElements()) * sizeof(T));
  return std::clamp(bytes, kLeastWorkspace, kMostWorkspace);
}

template <typename T>
PreparedConvolution<T> prepareConvolution(ConvolutionTask task, const Convolution& c) {
  PreparedConvolution<T> prepared = prepareProducts<T>(task, c);
  const size_t bytes = std::max<size_t>(prepared.workspace_bytes, workspaceForCudnn<T>(c));
  prepared.workspace_bytes = bytes;
  const CudnnConvolution<T> by_cudnn = noted(convolutionByCudnn<T>(task, c, bytes));
  if (!by_cudnn) return prepared;
  const bool forward = task == ConvolutionTask::kForward;
  const int64_t channels = c.groups * (forward ? c.features : c.channels);
  const int64_t size = forward ? c.window.outSize() : c.window.inSize();
  const int64_t count = c.batch * channels * size;
  prepared.run = [=](DeviceQueue* queue, const T* first, const T* second, const T* bias, T* result,
                     void* workspace) {
    by_cudnn(queue, first, second, result, workspace);
    if (bias != nullptr)
      launch<addToChannelsKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, channels,
                                     size, bias, result);
  };
  return prepared;
}

template PreparedConvolution<float> prepareConvolution(ConvolutionTask, const Convolution&);
template PreparedConvolution<double> prepareConvolution(ConvolutionTask, const Convolution&);

}  // namespace pipeshard::kernels
