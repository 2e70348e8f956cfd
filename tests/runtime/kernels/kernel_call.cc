#include "tests/runtime/kernels/kernel_call.h"

#include <omp.h>

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard::testing {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0x5c};
constexpr std::byte kGarbage{0xee};

// Bytes between two guards, 64-byte aligned.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t size) : size_(size), memory_(size + 3 * kGuard, kGuardByte) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    begin_ = memory_.data() + ((address + 63) / 64 * 64 - reinterpret_cast<uintptr_t>(memory_.data()));
    std::fill(begin_, begin_ + size_, kGarbage);
  }
  std::byte* data() { return begin_; }
  std::vector<std::byte> content() const { return {begin_, begin_ + size_}; }
  bool intact() const {
    for (const std::byte* at = memory_.data(); at < memory_.data() + memory_.size(); ++at) {
      if ((at < begin_ || at >= begin_ + size_) && *at != kGuardByte) return false;
    }
    return true;
  }

 private:
  size_t size_;
  std::vector<std::byte> memory_;
  std::byte* begin_ = nullptr;
};

// `total`: content of output 0 that the kernel adds to.
std::vector<Tensor> execute(const KernelCall& call, Kernel& kernel, int shared_input, int shared_output,
                            const Tensor* total = nullptr) {
  std::vector<GuardedBuffer> inputs, outputs;
  for (const auto& tensor : call.inputs) {
    inputs.emplace_back(tensor ? tensor->bytes.size() : 0);
    if (tensor && !tensor->bytes.empty())
      std::memcpy(inputs.back().data(), tensor->bytes.data(), tensor->bytes.size());
  }
  for (const OutputSpec& spec : call.outputs) {
    outputs.emplace_back(
        spec.type == DataType::kUndefined ? 0 : static_cast<size_t>(byteCount(spec.type, spec.shape)));
  }
  std::vector<const void*> input_pointers;
  std::vector<void*> output_pointers;
  for (size_t i = 0; i < inputs.size(); ++i)
    input_pointers.push_back(call.inputs[i] ? inputs[i].data() : nullptr);
  for (size_t i = 0; i < outputs.size(); ++i) {
    output_pointers.push_back(call.outputs[i].type == DataType::kUndefined ? nullptr : outputs[i].data());
  }
  if (shared_input >= 0) output_pointers[shared_output] = inputs[shared_input].data();
  GuardedBuffer workspace(kernel.workspaceBytes());
  if (total != nullptr) std::memcpy(outputs[0].data(), total->bytes.data(), total->bytes.size());
  kernel.run({input_pointers, output_pointers, workspace.data(), nullptr, total == nullptr ? 0U : 1U});
  std::vector<Tensor> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool shared = shared_input >= 0 && static_cast<int>(i) == shared_output;
    results.push_back({call.outputs[i].type, call.outputs[i].shape,
                       shared ? inputs[shared_input].content() : outputs[i].content()});
    EXPECT_TRUE(outputs[i].intact()) << "written outside of output " << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(inputs[i].intact()) << "written outside of input " << i;
    if (call.inputs[i] && static_cast<int>(i) != shared_input) {
      EXPECT_TRUE(inputs[i].content() == call.inputs[i]->bytes) << "input " << i << " was changed";
    }
  }
  EXPECT_TRUE(workspace.intact()) << "written outside of the workspace";
  return results;
}

}  // namespace

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

std::unique_ptr<Kernel> createKernel(const KernelCall& call) {
  std::vector<Constant> constants(call.inputs.size());
  KernelSpec spec;
  spec.node = &call.node;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    TensorSpec input;
    if (call.inputs[i]) {
      input.data_type = call.inputs[i]->type;
      input.shape = call.inputs[i]->shape;
      constants[i] = {input.data_type, input.shape, call.inputs[i]->bytes};
    }
    for (size_t known : call.constants) {
      if (known == i && call.inputs[i]) input.constant = &constants[i];
    }
    spec.inputs.push_back(input);
  }
  for (const OutputSpec& output : call.outputs) {
    TensorSpec tensor;
    tensor.data_type = output.type;
    tensor.shape = output.shape;
    spec.outputs.push_back(tensor);
  }
  return cpuKernels().create(spec);
}

std::vector<Tensor> runKernel(const KernelCall& call) { return execute(call, *createKernel(call), -1, -1); }

std::vector<Tensor> runInPlace(const KernelCall& call, Kernel& kernel, size_t input, size_t output) {
  return execute(call, kernel, input, output);
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
    const std::vector<float> got = elementsOf<float>(execute(call, *kernel, -1, -1, &total)[0]);
    EXPECT_TRUE(got == want) << call.node.op_type << " does not add to the bits of a separate addition on "
                             << threads << " threads";
  }
  omp_set_num_threads(before);
}

std::vector<Tensor> runOnOneAndTwoThreads(const KernelCall& call) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  std::vector<Tensor> one = runKernel(call);
  omp_set_num_threads(2);
  const std::vector<Tensor> two = runKernel(call);
  omp_set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(one[i].bytes == two[i].bytes)
        << call.node.op_type << " output " << i << " depends on the threads";
  return one;
}

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
