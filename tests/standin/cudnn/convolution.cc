// libcudnn, the part that the module calls: convolutions by plain loops, sums in double.
#include <optional>

#include "tests/standin/cudnn/descriptors.h"

using namespace standin;
using namespace standin::cudnn;

namespace {

struct Convolution {
  Tensor image, weight, output;
  Sliding window;
  int64_t groups = 1;

  int64_t features() const { return output.channels / groups; }  // of a group
  int64_t kernelSize() const { return weight.inner(); }
};

// "": they fit each other.
std::string faultOf(cudnnTensorDescriptor_t image, cudnnFilterDescriptor_t weight,
                    cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t output) {
  if (!areSet({image, weight, output}) || !isMade(convolution) || !convolution->is_set)
    return "a descriptor that is none, or says nothing";
  const int64_t groups = convolution->groups;
  if (image->rank != convolution->axes + 2 || weight->rank != image->rank || output->rank != image->rank)
    return "tensors and convolution of different axes";
  if (image->channels != groups * weight->channels || output->channels != weight->outer ||
      weight->outer % groups != 0 || image->outer != output->outer)
    return "channels or batches that do not fit each other";
  Sliding window = *convolution;
  window.kernel = weight->size;
  for (size_t a = 0; a < 3; ++a) {
    if (window.positions(a, image->size[a]) != output->size[a]) return "an output of other sizes";
  }
  if (image->type != weight->type || image->type != output->type || image->type != convolution->compute)
    return "different types";
  if (convolution->math != CUDNN_FMA_MATH) return "a math type that lets float32 be TF32";
  return "";
}

Convolution describe(cudnnTensorDescriptor_t image, cudnnFilterDescriptor_t weight,
                     cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t output) {
  Convolution c{*image, *weight, *output, *convolution, convolution->groups};
  c.window.kernel = weight->size;
  return c;
}

// Of the algorithms that form sums of products, some bytes by what they look up; nothing: not supported, as
// for three axes with dilations.
std::optional<size_t> workspaceOf(const Convolution& c, bool looks_up) {
  const bool dilated = c.window.dilation != Axes{1, 1, 1};
  if (looks_up && c.image.rank == 5 && dilated) return {};
  return looks_up ? 4 * (c.kernelSize() * c.weight.channels + c.output.inner()) : 0;
}

// body(place in the image, place in the output, place in the weight) for every product, and of a batch item.
template <typename Body>
void forProducts(const Convolution& c, int64_t item, int64_t feature, const Body& body) {
  const Axes &in = c.image.size, &out = c.output.size, &kernel = c.weight.size;
  const int64_t group = feature / c.features();
  const int64_t output = (item * c.output.channels + feature) * c.output.inner();
  for (int64_t channel = 0; channel < c.weight.channels; ++channel) {
    const int64_t image = (item * c.image.channels + group * c.weight.channels + channel) * c.image.inner();
    const int64_t weight = (feature * c.weight.channels + channel) * c.kernelSize();
    for (int64_t k = 0; k < c.kernelSize(); ++k) {
      const Axes at = {k / kernel[2] / kernel[1], k / kernel[2] % kernel[1], k % kernel[2]};
      Axes from;
      for (size_t a = 0; a < 3; ++a) from[a] = at[a] * c.window.dilation[a] - c.window.pad[a];
      for (int64_t z = 0; z < out[0]; ++z) {
        const int64_t iz = z * c.window.stride[0] + from[0];
        if (iz < 0 || iz >= in[0]) continue;
        for (int64_t y = 0; y < out[1]; ++y) {
          const int64_t iy = y * c.window.stride[1] + from[1];
          if (iy < 0 || iy >= in[1]) continue;
          for (int64_t x = 0; x < out[2]; ++x) {
            const int64_t ix = x * c.window.stride[2] + from[2];
            if (ix < 0 || ix >= in[2]) continue;
            body(image + (iz * in[1] + iy) * in[2] + ix, output + (z * out[1] + y) * out[2] + x, weight + k);
          }
        }
      }
    }
  }
}

// result[where(places)] += first * second for every product of the convolution.
template <typename T, typename Term>
void compute(const Convolution& c, const Tensor& result, T* to, const Term& term) {
  std::vector<double> sums(result.count(), 0);
  for (int64_t item = 0; item < c.image.outer; ++item) {
    for (int64_t feature = 0; feature < c.output.channels; ++feature)
      forProducts(c, item, feature,
                  [&](int64_t image, int64_t output, int64_t weight) { term(sums, image, output, weight); });
  }
  for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(sums[i]);
}

struct Call {
  const char* name;
  cudnnHandle_t handle;
  const void *alpha, *beta;
  void* workspace;
  size_t workspace_bytes;
  std::optional<size_t> needed;  // nothing: the algorithm is not supported
};

cudnnStatus_t run(const Call& call, cudnnDataType_t type, Place first, Place second, Place result,
                  std::function<void()> work) {
  const std::string name = call.name;
  if (!call.needed) return refuse(name + ": an algorithm that cannot do this", CUDNN_STATUS_NOT_SUPPORTED);
  if (!isPlain(call.alpha, call.beta, type)) return refuse(name + ": factors that are not known here");
  if (call.workspace_bytes < *call.needed)
    return refuse(name + ": a workspace of " + std::to_string(call.workspace_bytes) + " bytes, where " +
                  std::to_string(*call.needed) + " are needed");
  if (reinterpret_cast<uintptr_t>(call.workspace) % 256 != 0)
    return refuse(name + ": the workspace is at no multiple of 256 bytes");
  const Place workspace{call.workspace, *call.needed, true, "the workspace"};
  return give(call.handle, call.name, {first, second, workspace, result}, std::move(work));
}

cudnnStatus_t answer(const std::string& fault, const char* call, std::optional<size_t> needed,
                     size_t* bytes) {
  if (!fault.empty()) return refuse(std::string(call) + ": " + fault);
  if (!needed) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = *needed;
  return CUDNN_STATUS_SUCCESS;
}

std::optional<size_t> needed(const Convolution& c, cudnnConvolutionFwdAlgo_t algorithm) {
  if (algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM) return workspaceOf(c, false);
  if (algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) return workspaceOf(c, true);
  return {};
}
std::optional<size_t> needed(const Convolution& c, cudnnConvolutionBwdDataAlgo_t algorithm) {
  if (algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1) return workspaceOf(c, true);
  return {};  // 0 is not deterministic
}
std::optional<size_t> needed(const Convolution& c, cudnnConvolutionBwdFilterAlgo_t algorithm) {
  if (algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1) return workspaceOf(c, true);
  return {};  // 0 and 3 are not deterministic
}

}  // namespace

API cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t image,
                                                          const cudnnFilterDescriptor_t weight,
                                                          const cudnnConvolutionDescriptor_t convolution,
                                                          const cudnnTensorDescriptor_t output,
                                                          cudnnConvolutionFwdAlgo_t algorithm,
                                                          size_t* bytes) {
  const std::string fault = faultOf(image, weight, convolution, output);
  return answer(
      fault, "cudnnGetConvolutionForwardWorkspaceSize",
      fault.empty() ? needed(describe(image, weight, convolution, output), algorithm) : std::nullopt, bytes);
}
API cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                          const cudnnTensorDescriptor_t image, const void* x,
                                          const cudnnFilterDescriptor_t weight, const void* w,
                                          const cudnnConvolutionDescriptor_t convolution,
                                          cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes,
                                          const void* beta, const cudnnTensorDescriptor_t output, void* y) {
  constexpr const char* kCall = "cudnnConvolutionForward";
  if (const std::string fault = faultOf(image, weight, convolution, output); !fault.empty())
    return refuse(kCall + (": " + fault));
  const Convolution c = describe(image, weight, convolution, output);
  return run({kCall, handle, alpha, beta, workspace, bytes, needed(c, algorithm)}, image->type,
             {x, image->bytes(), false, "the image"}, {w, weight->bytes(), false, "the weight"},
             {y, output->bytes(), true, "the output"}, [=] {
               withType(c.image.type, [&](auto zero) {
                 using T = decltype(zero);
                 const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(w);
                 compute(c, c.output, static_cast<T*>(y), [&](auto& sums, int64_t i, int64_t o, int64_t k) {
                   sums[o] += static_cast<double>(a[i]) * static_cast<double>(b[k]);
                 });
               });
             });
}

API cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t weight, const cudnnTensorDescriptor_t output,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t image,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  const std::string fault = faultOf(image, weight, convolution, output);
  return answer(
      fault, "cudnnGetConvolutionBackwardDataWorkspaceSize",
      fault.empty() ? needed(describe(image, weight, convolution, output), algorithm) : std::nullopt, bytes);
}
API cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                               const cudnnFilterDescriptor_t weight, const void* w,
                                               const cudnnTensorDescriptor_t output, const void* dy,
                                               const cudnnConvolutionDescriptor_t convolution,
                                               cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                               size_t bytes, const void* beta,
                                               const cudnnTensorDescriptor_t image, void* dx) {
  constexpr const char* kCall = "cudnnConvolutionBackwardData";
  if (const std::string fault = faultOf(image, weight, convolution, output); !fault.empty())
    return refuse(kCall + (": " + fault));
  const Convolution c = describe(image, weight, convolution, output);
  return run({kCall, handle, alpha, beta, workspace, bytes, needed(c, algorithm)}, image->type,
             {w, weight->bytes(), false, "the weight"}, {dy, output->bytes(), false, "the output's gradient"},
             {dx, image->bytes(), true, "the image's gradient"}, [=] {
               withType(c.image.type, [&](auto zero) {
                 using T = decltype(zero);
                 const auto *a = static_cast<const T*>(dy), *b = static_cast<const T*>(w);
                 compute(c, c.image, static_cast<T*>(dx), [&](auto& sums, int64_t i, int64_t o, int64_t k) {
                   sums[i] += static_cast<double>(a[o]) * static_cast<double>(b[k]);
                 });
               });
             });
}

API cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t image, const cudnnTensorDescriptor_t output,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t weight,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  const std::string fault = faultOf(image, weight, convolution, output);
  return answer(
      fault, "cudnnGetConvolutionBackwardFilterWorkspaceSize",
      fault.empty() ? needed(describe(image, weight, convolution, output), algorithm) : std::nullopt, bytes);
}
API cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                                 const cudnnTensorDescriptor_t image, const void* x,
                                                 const cudnnTensorDescriptor_t output, const void* dy,
                                                 const cudnnConvolutionDescriptor_t convolution,
                                                 cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                                 size_t bytes, const void* beta,
                                                 const cudnnFilterDescriptor_t weight, void* dw) {
  constexpr const char* kCall = "cudnnConvolutionBackwardFilter";
  if (const std::string fault = faultOf(image, weight, convolution, output); !fault.empty())
    return refuse(kCall + (": " + fault));
  const Convolution c = describe(image, weight, convolution, output);
  return run({kCall, handle, alpha, beta, workspace, bytes, needed(c, algorithm)}, image->type,
             {x, image->bytes(), false, "the image"}, {dy, output->bytes(), false, "the output's gradient"},
             {dw, weight->bytes(), true, "the weight's gradient"}, [=] {
               withType(c.image.type, [&](auto zero) {
                 using T = decltype(zero);
                 const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(dy);
                 compute(c, c.weight, static_cast<T*>(dw), [&](auto& sums, int64_t i, int64_t o, int64_t k) {
                   sums[k] += static_cast<double>(a[i]) * static_cast<double>(b[o]);
                 });
               });
             });
}
