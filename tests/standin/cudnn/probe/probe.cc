// A convolution, its gradient and a pool by the stand-in's cuDNN. `cudnn_probe MISTAKE` makes one;
// `cudnn_probe none` is right: exit code 0, and no report.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kImage[] = {2, 4, 9, 9}, kWeight[] = {6, 2, 3, 3}, kOutput[] = {2, 6, 5, 5},
              kPooled[] = {2, 6, 2, 2};
constexpr int kImages = 2 * 4 * 81, kWeights = 6 * 2 * 9, kOutputs = 2 * 6 * 25, kPools = 2 * 6 * 4;
constexpr size_t kWorkspace = 4096;

std::string mistake;
bool isMistake(const char* name) { return mistake == name; }

void require(cudaError_t code) {
  if (code != cudaSuccess) std::exit(3);
}
void require(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::fprintf(stderr, "probe: %s\n", cudnnGetErrorString(status));
  std::exit(3);
}

float* onDevice(size_t bytes, cudaStream_t filled) {
  void* place = nullptr;
  require(cudaMalloc(&place, bytes));
  if (filled != nullptr) require(cudaMemsetAsync(place, 0, bytes, filled));
  return static_cast<float*>(place);
}

cudnnTensorDescriptor_t tensor(const int* sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT, int gap = 0) {
  cudnnTensorDescriptor_t made{};
  require(cudnnCreateTensorDescriptor(&made));
  const int strides[] = {sizes[1] * sizes[2] * sizes[3] + gap, sizes[2] * sizes[3], sizes[3], 1};
  require(cudnnSetTensorNdDescriptor(made, type, 4, sizes, strides));
  return made;
}

struct Probe {
  cudaStream_t stream{}, other{};
  cudnnHandle_t handle{};
  cudnnTensorDescriptor_t image{}, output{}, pooled{}, channels{};
  cudnnFilterDescriptor_t weight{};
  cudnnConvolutionDescriptor_t convolution{};
  cudnnPoolingDescriptor_t pool{};
  float *x{}, *w{}, *y{}, *dx{}, *z{}, *workspace{}, *kept{};
  const float one = 1, none = 0;

  void open() {
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    require(cudnnCreate(&handle));
    require(cudnnSetStream(handle, isMistake("default") ? nullptr : stream));
    image =
        tensor(kImage, isMistake("types") ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, isMistake("gap") ? 1 : 0);
    const int wrong[] = {2, 6, 5, 4}, by_channel[] = {1, 4, 1, 1};
    output = tensor(isMistake("sizes") ? wrong : kOutput);
    pooled = tensor(kPooled);
    channels = tensor(by_channel);
    require(cudnnCreateFilterDescriptor(&weight));
    require(cudnnSetFilterNdDescriptor(weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 4, kWeight));
    require(cudnnCreateConvolutionDescriptor(&convolution));
    const int pads[] = {1, 1}, strides[] = {2, 2}, ones[] = {1, 1}, threes[] = {3, 3}, zeros[] = {0, 0};
    require(cudnnSetConvolutionNdDescriptor(convolution, 2, pads, strides, ones, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT));
    require(cudnnSetConvolutionGroupCount(convolution, 2));
    if (!isMistake("tf32")) require(cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));
    require(cudnnCreatePoolingDescriptor(&pool));
    require(cudnnSetPoolingNdDescriptor(pool, CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_PROPAGATE_NAN, 2, threes,
                                        isMistake("pad") ? threes : zeros, strides));
    x = onDevice(kImages * sizeof(float), isMistake("unwritten") ? nullptr : stream);
    w = onDevice(kWeights * sizeof(float), stream);
    y = onDevice(kOutputs * sizeof(float), nullptr);
    dx = onDevice(kImages * sizeof(float), nullptr);
    z = onDevice(kPools * sizeof(float), nullptr);
    workspace = onDevice(kWorkspace, nullptr);
    kept = onDevice(1024, stream);
  }

  void run() {
    size_t needed = 0;
    require(cudnnGetConvolutionForwardWorkspaceSize(handle, image, weight, convolution, output,
                                                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                    &needed));
    void* host = nullptr;
    if (isMistake("host")) require(cudaMallocHost(&host, kImages * sizeof(float)));
    const float* from = isMistake("host") ? static_cast<float*>(host) : isMistake("misaligned") ? x + 1 : x;
    require(cudnnConvolutionForward(
        handle, &one, image, from, weight, w, convolution, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        workspace, isMistake("workspace") ? needed - 1 : kWorkspace, isMistake("factors") ? &one : &none,
        output, isMistake("overlap") ? x : y));
    if (isMistake("unordered")) require(cudnnSetStream(handle, other));
    require(cudnnConvolutionBackwardData(
        handle, &one, weight, w, output, y, convolution,
        isMistake("algorithm") ? CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 : CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        workspace, kWorkspace, &none, image, dx));
    require(cudnnPoolingForward(handle, pool, &one, output, y, &none, pooled, z));
    require(cudnnBatchNormalizationForwardTraining(
        handle, CUDNN_BATCHNORM_SPATIAL, &one, &none, image, x, image, dx, channels, kept, kept + 16, 1,
        isMistake("running") ? kept + 64 : nullptr, isMistake("running") ? kept + 80 : nullptr, 1e-5,
        isMistake("half") ? nullptr : kept + 32, kept + 48));
    require(cudaStreamSynchronize(stream));
    require(cudaStreamSynchronize(other));
  }

  void close() {
    for (float* place : {x, w, y, dx, z, workspace, kept}) require(cudaFree(place));
    for (cudnnTensorDescriptor_t one_of : {image, output, pooled, channels}) {
      if (!isMistake("leak") || one_of != pooled) require(cudnnDestroyTensorDescriptor(one_of));
    }
    require(cudnnDestroyFilterDescriptor(weight));
    require(cudnnDestroyConvolutionDescriptor(convolution));
    require(cudnnDestroyPoolingDescriptor(pool));
    if (isMistake("twice")) require(cudnnDestroyPoolingDescriptor(pool));
    require(cudaStreamDestroy(stream));
    require(cudaStreamDestroy(other));
  }
};

}  // namespace

int main(int, char** arguments) {
  mistake = arguments[1];
  Probe probe;
  probe.open();
  probe.run();
  probe.close();
  return 0;
}
