// One execution of one kernel on small tensors, on the device that the test program is linked for
// (tested_device.h).
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::testing {

struct Tensor {
  DataType type = DataType::kUndefined;
  Shape shape;
  std::vector<std::byte> bytes;
};

template <typename T>
Tensor makeTensor(Shape shape, const std::vector<T>& elements) {
  Tensor tensor{dataTypeOf<T>(), std::move(shape), std::vector<std::byte>(elements.size() * sizeof(T))};
  for (size_t i = 0; i < elements.size(); ++i) {
    const T element = elements[i];
    std::memcpy(tensor.bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return tensor;
}

template <typename T>
std::vector<T> elementsOf(const Tensor& tensor) {
  std::vector<T> elements(tensor.bytes.size() / sizeof(T));
  if (!elements.empty()) std::memcpy(elements.data(), tensor.bytes.data(), tensor.bytes.size());
  return elements;
}

// Any numeric or bool tensor as doubles.
std::vector<double> numbersOf(const Tensor& tensor);
// The same numbers in another floating-point type.
Tensor convertTensor(const Tensor& tensor, DataType type);

struct OutputSpec {
  DataType type = DataType::kUndefined;  // kUndefined: absent
  Shape shape;
};

struct KernelCall {
  Node node;
  std::vector<std::optional<Tensor>> inputs;  // nullopt: absent
  std::vector<OutputSpec> outputs;
  std::vector<size_t> constants;  // inputs whose content is known when the kernel is created
};

// Fluent enough for tests: makeCall("", "Add", 18, {a, b}, {{DataType::kFloat32, {2}}}).
KernelCall makeCall(std::string domain, std::string op_type, int opset,
                    std::vector<std::optional<Tensor>> inputs, std::vector<OutputSpec> outputs,
                    std::map<std::string, Attribute> attributes = {}, std::vector<size_t> constants = {});

// What a kernel is told of a call, which outlives it.
class CallSpec {
 public:
  explicit CallSpec(const KernelCall& call);
  CallSpec(const CallSpec&) = delete;
  CallSpec& operator=(const CallSpec&) = delete;
  KernelSpec spec;

 private:
  std::vector<Constant> constants_;
};

// The kernel of a call. Throws what the registry throws.
std::unique_ptr<Kernel> createKernel(const KernelCall& call);

// Creates and runs. Fails the test when a kernel writes outside of its outputs. Throws what the kernel
// throws.
std::vector<Tensor> runKernel(const KernelCall& call);

// As runKernel, with output `output` in the memory of input `input`.
std::vector<Tensor> runInPlace(const KernelCall& call, Kernel& kernel, size_t input, size_t output);

// Output 0 (float32) added to `total` by the kernel must be what a separate addition makes of it, on 1 and on
// 2 threads.
void expectAddsInPlace(const KernelCall& call, const Tensor& total);

// runKernel on 1 and on 2 threads must give the same bits; returns the result.
std::vector<Tensor> runOnOneAndTwoThreads(const KernelCall& call);
std::vector<Tensor> runOnThreads(const KernelCall& call, const std::vector<int>& counts);

// Evenly distributed numbers in [low, high), the same on every machine.
std::vector<double> randomNumbers(size_t count, uint64_t seed, double low = -1, double high = 1);
Tensor randomTensor(DataType type, Shape shape, uint64_t seed, double low = -1, double high = 1);

// The message of the Error(kBadModel) that `body` must throw, or a failure.
std::string refusalOf(const std::function<void()>& body);

}  // namespace pipeshard::testing
