// libcudnn, the part that the module calls: batch normalisation of all but the channels.
#include <cmath>

#include "tests/standin/cudnn/descriptors.h"

using namespace standin;
using namespace standin::cudnn;

namespace {

struct Moments {
  double mean = 0, variance = 0;
};

// body(place) for all elements of a channel.
template <typename Body>
void forChannel(const Tensor& x, int64_t channel, const Body& body) {
  for (int64_t item = 0; item < x.outer; ++item) {
    const int64_t begin = (item * x.channels + channel) * x.inner();
    for (int64_t i = 0; i < x.inner(); ++i) body(begin + i);
  }
}

template <typename T>
Moments momentsOf(const Tensor& tensor, int64_t channel, const T* x) {
  const auto count = static_cast<double>(tensor.outer * tensor.inner());
  Moments moments;
  forChannel(tensor, channel, [&](int64_t at) { moments.mean += static_cast<double>(x[at]) / count; });
  forChannel(tensor, channel, [&](int64_t at) {
    const double off = static_cast<double>(x[at]) - moments.mean;
    moments.variance += off * off / count;
  });
  return moments;
}

// "": as it must be.
std::string faultOf(cudnnBatchNormMode_t mode, std::initializer_list<const Tensor*> images,
                    const Tensor* channels, double epsilon, const void* alpha, const void* beta) {
  if (!areSet(images) || !areSet({channels})) return "a descriptor that is none, or says nothing";
  if (mode != CUDNN_BATCHNORM_SPATIAL) return "a mode that is not known here";
  const Tensor& first = **images.begin();
  for (const Tensor* image : images) {
    if (!image->sameSizes(first) || image->type != first.type) return "images that differ";
  }
  if (channels->outer != 1 || channels->inner() != 1 || channels->channels != first.channels ||
      channels->rank != first.rank || channels->type != first.type)
    return "channels that are not the images'";
  if (epsilon < CUDNN_BN_MIN_EPSILON) return "an epsilon that is too small";
  if (!isPlain(alpha, beta, first.type)) return "factors that are not known here";
  return "";
}

template <typename T>
void normalize(const Tensor& tensor, int64_t channel, const Moments& moments, double epsilon, T scale, T bias,
               const T* x, T* y) {
  const double inverse = 1 / std::sqrt(moments.variance + epsilon);
  forChannel(tensor, channel, [&](int64_t at) {
    y[at] =
        static_cast<T>((static_cast<double>(x[at]) - moments.mean) * inverse * static_cast<double>(scale) +
                       static_cast<double>(bias));
  });
}

}  // namespace

API cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const cudnnTensorDescriptor_t x_tensor, const void* x, const cudnnTensorDescriptor_t y_tensor, void* y,
    const cudnnTensorDescriptor_t channels, const void* scale, const void* bias, double, void* running_mean,
    void* running_variance, double epsilon, void* saved_mean, void* saved_inverse) {
  constexpr const char* kCall = "cudnnBatchNormalizationForwardTraining";
  if (const std::string fault = faultOf(mode, {x_tensor, y_tensor}, channels, epsilon, alpha, beta);
      !fault.empty())
    return refuse(kCall + (": " + fault));
  if (running_mean != nullptr || running_variance != nullptr)
    return refuse(std::string(kCall) + ": running moments, which are not ONNX's: variances of count - 1");
  if ((saved_mean == nullptr) != (saved_inverse == nullptr))
    return refuse(std::string(kCall) + ": one of the saved moments without the other");
  const Tensor tensor = *x_tensor;
  const size_t kept = saved_mean == nullptr ? 0 : channels->bytes();
  return give(handle, kCall,
              {{x, tensor.bytes(), false, "x"},
               {scale, channels->bytes(), false, "the scale"},
               {bias, channels->bytes(), false, "the bias"},
               {saved_mean, kept, true, "the saved mean"},
               {saved_inverse, kept, true, "the saved inverse"},
               {y, tensor.bytes(), true, "y"}},
              [=] {
                withType(tensor.type, [&](auto zero) {
                  using T = decltype(zero);
                  for (int64_t c = 0; c < tensor.channels; ++c) {
                    const Moments moments = momentsOf(tensor, c, static_cast<const T*>(x));
                    normalize(tensor, c, moments, epsilon, static_cast<const T*>(scale)[c],
                              static_cast<const T*>(bias)[c], static_cast<const T*>(x), static_cast<T*>(y));
                    if (saved_mean == nullptr) continue;
                    static_cast<T*>(saved_mean)[c] = static_cast<T>(moments.mean);
                    static_cast<T*>(saved_inverse)[c] =
                        static_cast<T>(1 / std::sqrt(moments.variance + epsilon));
                  }
                });
              });
}

API cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const cudnnTensorDescriptor_t x_tensor, const void* x, const cudnnTensorDescriptor_t y_tensor, void* y,
    const cudnnTensorDescriptor_t channels, const void* scale, const void* bias, const void* mean,
    const void* variance, double epsilon) {
  constexpr const char* kCall = "cudnnBatchNormalizationForwardInference";
  if (const std::string fault = faultOf(mode, {x_tensor, y_tensor}, channels, epsilon, alpha, beta);
      !fault.empty())
    return refuse(kCall + (": " + fault));
  const Tensor tensor = *x_tensor;
  return give(handle, kCall,
              {{x, tensor.bytes(), false, "x"},
               {scale, channels->bytes(), false, "the scale"},
               {bias, channels->bytes(), false, "the bias"},
               {mean, channels->bytes(), false, "the mean"},
               {variance, channels->bytes(), false, "the variance"},
               {y, tensor.bytes(), true, "y"}},
              [=] {
                withType(tensor.type, [&](auto zero) {
                  using T = decltype(zero);
                  for (int64_t c = 0; c < tensor.channels; ++c) {
                    const Moments moments = {static_cast<double>(static_cast<const T*>(mean)[c]),
                                             static_cast<double>(static_cast<const T*>(variance)[c])};
                    normalize(tensor, c, moments, epsilon, static_cast<const T*>(scale)[c],
                              static_cast<const T*>(bias)[c], static_cast<const T*>(x), static_cast<T*>(y));
                  }
                });
              });
}

API cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                  const void* alpha, const void* beta,
                                                  const void* channels_alpha, const void* channels_beta,
                                                  const cudnnTensorDescriptor_t x_tensor, const void* x,
                                                  const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                                  const cudnnTensorDescriptor_t dx_tensor, void* dx,
                                                  const cudnnTensorDescriptor_t channels, const void* scale,
                                                  void* dscale, void* dbias, double epsilon,
                                                  const void* saved_mean, const void* saved_inverse) {
  constexpr const char* kCall = "cudnnBatchNormalizationBackward";
  std::string fault = faultOf(mode, {x_tensor, dy_tensor, dx_tensor}, channels, epsilon, alpha, beta);
  if (fault.empty() && !isPlain(channels_alpha, channels_beta, channels->type))
    fault = "factors that are not known here";
  if (fault.empty() && (saved_mean != nullptr || saved_inverse != nullptr))
    fault = "saved moments, which are not known here";
  if (!fault.empty()) return refuse(kCall + (": " + fault));
  const Tensor tensor = *x_tensor;
  return give(handle, kCall,
              {{x, tensor.bytes(), false, "x"},
               {dy, tensor.bytes(), false, "y's gradient"},
               {scale, channels->bytes(), false, "the scale"},
               {dscale, channels->bytes(), true, "the scale's gradient"},
               {dbias, channels->bytes(), true, "the bias's gradient"},
               {dx, tensor.bytes(), true, "x's gradient"}},
              [=] {
                withType(tensor.type, [&](auto zero) {
                  using T = decltype(zero);
                  const auto *from = static_cast<const T*>(x), *given = static_cast<const T*>(dy);
                  const auto count = static_cast<double>(tensor.outer * tensor.inner());
                  for (int64_t c = 0; c < tensor.channels; ++c) {
                    const Moments moments = momentsOf(tensor, c, from);
                    const double inverse = 1 / std::sqrt(moments.variance + epsilon);
                    double sum = 0, dot = 0;  // of dy, and of dy * normalised x
                    forChannel(tensor, c, [&](int64_t at) {
                      sum += static_cast<double>(given[at]);
                      dot += static_cast<double>(given[at]) * (static_cast<double>(from[at]) - moments.mean) *
                             inverse;
                    });
                    static_cast<T*>(dscale)[c] = static_cast<T>(dot);
                    static_cast<T*>(dbias)[c] = static_cast<T>(sum);
                    const double factor = static_cast<double>(static_cast<const T*>(scale)[c]) * inverse;
                    forChannel(tensor, c, [&](int64_t at) {
                      const double normal = (static_cast<double>(from[at]) - moments.mean) * inverse;
                      static_cast<T*>(dx)[at] = static_cast<T>(
                          factor * (static_cast<double>(given[at]) - (sum + normal * dot) / count));
                    });
                  }
                });
              });
}
