// What cuDNN's descriptors say. Internal to the stand-in.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"

#define API extern "C" __attribute__((visibility("default")))

namespace standin::cudnn {

using Axes = std::array<int64_t, 3>;  // with leading ones

// A tensor or filter without gaps.
struct Tensor {
  bool is_set = false;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int rank = 0;
  int64_t outer = 1, channels = 1;  // of a filter: features, channels of a group
  Axes size{1, 1, 1};

  int64_t inner() const { return size[0] * size[1] * size[2]; }
  int64_t count() const { return outer * channels * inner(); }
  size_t elementBytes() const { return type == CUDNN_DATA_FLOAT ? sizeof(float) : sizeof(double); }
  size_t bytes() const { return static_cast<size_t>(count()) * elementBytes(); }
  bool sameSizes(const Tensor& other) const {
    return rank == other.rank && outer == other.outer && channels == other.channels && size == other.size;
  }
};

struct Sliding {
  bool is_set = false;
  int axes = 0;
  Axes kernel{1, 1, 1}, pad{0, 0, 0}, stride{1, 1, 1}, dilation{1, 1, 1};

  // Positions of the window over an axis, as cuDNN counts them.
  int64_t positions(size_t axis, int64_t size) const {
    return (size + 2 * pad[axis] - ((kernel[axis] - 1) * dilation[axis] + 1)) / stride[axis] + 1;
  }
};

// A report, and the status that goes with it.
cudnnStatus_t refuse(const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM);
// All descriptors of a call are there, and say something.
bool areSet(std::initializer_list<const Tensor*> tensors);

// Device memory that a call reads or writes.
struct Place {
  const void* address = nullptr;
  size_t bytes = 0;
  bool write = false;
  const char* what = "";
};

// A call that gives work to the stream of a handle. Refuses, in the call's name: a handle that is none, of
// another GPU, the default stream, addresses that are not the device's or are not
// multiples of 16 bytes, results that overlap with anything else. `work` touches the places, and nothing
// else.
cudnnStatus_t give(cudnnHandle_t handle, const char* call, const std::vector<Place>& places,
                   std::function<void()> work);

// Whether result = 1 * value + 0 * result is asked for: no other is known here.
bool isPlain(const void* alpha, const void* beta, cudnnDataType_t type);

// Of descriptors; what is not destroyed is reported when the process ends.
void noteMade(const void* descriptor, const char* kind);
bool noteDestroyed(const void* descriptor);
bool isMade(const void* descriptor);

// Calls body with a T{} of the type.
template <typename Body>
void withType(cudnnDataType_t type, const Body& body) {
  if (type == CUDNN_DATA_FLOAT)
    body(float{});
  else
    body(double{});
}

}  // namespace standin::cudnn

struct cudnnTensorStruct : standin::cudnn::Tensor {};
struct cudnnFilterStruct : standin::cudnn::Tensor {};
struct cudnnConvolutionStruct : standin::cudnn::Sliding {
  int groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
};
struct cudnnPoolingStruct : standin::cudnn::Sliding {
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
};
