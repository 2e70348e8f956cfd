#include "tests/runtime/kernels/kernel_call.h"

#include <omp.h>

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "tests/runtime/kernels/tested_device.h"

namespace pipeshard::testing {

std::vector<double> numbersOf(const Tensor& tensor) {
  std::vector<double> numbers(elementCount(tensor.shape));
  convertElements(tensor.type, tensor.bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

Tensor convertTensor(const Tensor& tensor, DataType type) {
  const std::vector<double> numbers = numbersOf(tensor);
  if (type == DataType::kFloat64) return makeTensor<double>(tensor.shape, numbers);
  return makeTensor<float>(tensor.shape, {numbers.begin(), numbers.end()});
}

KernelCall makeCall(std::string domain, std::string op_type, int opset,
                    std::vector<std::optional<Tensor>> inputs, std::vector<OutputSpec> outputs,
                    std::map<std::string, Attribute> attributes, std::vector<size_t> constants) {
  KernelCall call;
  call.node.domain = std::move(domain);
  call.node.op_type = std::move(op_type);
  call.node.opset_version = opset;
  call.node.name = "tested";
  call.node.attributes = std::move(attributes);
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  call.constants = std::move(constants);
  return call;
}

CallSpec::CallSpec(const KernelCall& call) : constants_(call.inputs.size()) {
  spec.node = &call.node;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    spec.inputs.push_back(input ? TensorSpec{input->type, input->shape, nullptr} : TensorSpec{});
  }
  for (const size_t i : call.constants) {
    if (!call.inputs[i]) continue;
    constants_[i] = {call.inputs[i]->type, call.inputs[i]->shape, call.inputs[i]->bytes};
    spec.inputs[i].constant = &constants_[i];
  }
  for (const OutputSpec& output : call.outputs) spec.outputs.push_back({output.type, output.shape, nullptr});
}

std::unique_ptr<Kernel> createKernel(const KernelCall& call) {
  return testedKernels().create(CallSpec(call).spec);
}

std::vector<Tensor> runKernel(const KernelCall& call) { return execute(call, *createKernel(call)); }

std::vector<Tensor> runInPlace(const KernelCall& call, Kernel& kernel, size_t input, size_t output) {
  return execute(call, kernel, std::pair(input, output));
}

void expectAddsInPlace(const KernelCall& call, const Tensor& total) {
  const std::unique_ptr<Kernel> kernel = createKernel(call);
  ASSERT_TRUE(kernel->mayAccumulate(0)) << call.node.op_type;
  const std::vector<float> part = elementsOf<float>(runKernel(call)[0]);
  std::vector<float> want = elementsOf<float>(total);
  for (size_t i = 0; i < want.size(); ++i) want[i] += part[i];
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2}) {
    omp_set_num_threads(threads);
    const std::vector<float> got = elementsOf<float>(execute(call, *kernel, std::nullopt, &total)[0]);
    EXPECT_TRUE(got == want) << call.node.op_type << " does not add to the bits of a separate addition on "
                             << threads << " threads";
  }
  omp_set_num_threads(before);
}

std::vector<Tensor> runOnThreads(const KernelCall& call, const std::vector<int>& counts) {
  const int before = omp_get_max_threads();
  std::vector<Tensor> first;
  for (const int threads : counts) {
    omp_set_num_threads(threads);
    std::vector<Tensor> results = runKernel(call);
    if (first.empty()) first = results;
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(first[i].bytes == results[i].bytes)
          << call.node.op_type << " output " << i << " is another on " << threads << " threads";
  }
  omp_set_num_threads(before);
  return first;
}

std::vector<Tensor> runOnOneAndTwoThreads(const KernelCall& call) { return runOnThreads(call, {1, 2}); }

std::vector<double> randomNumbers(size_t count, uint64_t seed, double low, double high) {
  std::vector<double> numbers(count);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& number : numbers) {  // splitmix64
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    number = low + (high - low) * (static_cast<double>(z >> 11) * 0x1.0p-53);
  }
  return numbers;
}

Tensor randomTensor(DataType type, Shape shape, uint64_t seed, double low, double high) {
  const std::vector<double> numbers = randomNumbers(elementCount(shape), seed, low, high);
  if (type == DataType::kFloat64) return makeTensor<double>(std::move(shape), numbers);
  if (type == DataType::kInt64)
    return makeTensor<int64_t>(std::move(shape), {numbers.begin(), numbers.end()});
  return makeTensor<float>(std::move(shape), {numbers.begin(), numbers.end()});
}

std::string refusalOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

}  // namespace pipeshard::testing
