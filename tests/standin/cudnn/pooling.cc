// libcudnn, the part that the module calls: pools.
#include <cmath>
#include <limits>

#include "tests/standin/cudnn/descriptors.h"

using namespace standin;
using namespace standin::cudnn;

namespace {

// The elements of a plane that the window at an output position sees, in order.
template <typename Body>
void forSeen(const Sliding& w, const Axes& in, const Axes& at, const Body& body) {
  for (int64_t z = 0; z < w.kernel[0]; ++z) {
    for (int64_t y = 0; y < w.kernel[1]; ++y) {
      for (int64_t x = 0; x < w.kernel[2]; ++x) {
        const Axes k = {z, y, x};
        Axes i;
        bool inside = true;
        for (size_t a = 0; a < 3; ++a) {
          i[a] = at[a] * w.stride[a] - w.pad[a] + k[a];
          inside = inside && i[a] >= 0 && i[a] < in[a];
        }
        if (inside) body((i[0] * in[1] + i[1]) * in[2] + i[2]);
      }
    }
  }
}

template <typename T>
T pooled(const cudnnPoolingStruct& pool, const Axes& in, const Axes& at, const T* image) {
  double sum = 0, largest = -std::numeric_limits<double>::infinity();
  bool has_nan = false;
  int64_t seen = 0;
  forSeen(pool, in, at, [&](int64_t place) {
    const auto element = static_cast<double>(image[place]);
    sum += element;
    if (element > largest) largest = element;
    has_nan = has_nan || std::isnan(element);
    ++seen;
  });
  if (pool.mode == CUDNN_POOLING_MAX || pool.mode == CUDNN_POOLING_MAX_DETERMINISTIC) {
    const bool shown = has_nan && pool.nan == CUDNN_PROPAGATE_NAN;
    return shown ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(largest);
  }
  const int64_t all = pool.kernel[0] * pool.kernel[1] * pool.kernel[2];
  return static_cast<T>(
      sum / static_cast<double>(pool.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING ? all : seen));
}

}  // namespace

API cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling,
                                      const void* alpha, const cudnnTensorDescriptor_t from, const void* x,
                                      const void* beta, const cudnnTensorDescriptor_t to, void* y) {
  constexpr const char* kCall = "cudnnPoolingForward";
  const auto wrong = [&](const char* why) { return refuse(std::string(kCall) + ": " + why); };
  if (!areSet({from, to}) || !isMade(pooling) || !pooling->is_set)
    return wrong("a descriptor that is none, or says nothing");
  if (from->type != to->type || from->rank != pooling->axes + 2 || to->rank != from->rank ||
      from->outer != to->outer || from->channels != to->channels)
    return wrong("tensors that do not fit each other");
  for (size_t a = 0; a < 3; ++a) {
    if (pooling->positions(a, from->size[a]) != to->size[a]) return wrong("an output of other sizes");
  }
  if (!isPlain(alpha, beta, from->type)) return wrong("factors that are not known here");
  const Tensor in = *from, out = *to;
  const std::vector<Place> places = {{x, in.bytes(), false, "the image"},
                                     {y, out.bytes(), true, "the output"}};
  return give(handle, kCall, places, [in, out, pool = *pooling, x, y] {
    withType(in.type, [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < out.count(); ++i) {
        const int64_t o = i % out.inner();
        const Axes at = {o / out.size[2] / out.size[1], o / out.size[2] % out.size[1], o % out.size[2]};
        const T* image = static_cast<const T*>(x) + i / out.inner() * in.inner();
        static_cast<T*>(y)[i] = pooled(pool, in.size, at, image);
      }
    });
  });
}
