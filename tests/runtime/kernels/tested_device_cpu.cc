// The CPU, with guard bytes around every output.
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/kernels/base/cpu_kernels.h"
#include "tests/runtime/kernels/tested_device.h"

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

// Types that every call must run with.
bool isCoreType(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kInt64 ||
         type == DataType::kInt32 || type == DataType::kBool || type == DataType::kUndefined;
}

}  // namespace

const KernelRegistry& testedKernels() { return cpuKernels(); }

bool mustRun(const KernelCall& call) {
  bool core = true;
  for (const auto& tensor : call.inputs) core = core && (!tensor || isCoreType(tensor->type));
  for (const OutputSpec& output : call.outputs) core = core && isCoreType(output.type);
  return core;
}

std::vector<Tensor> execute(const KernelCall& call, Kernel& kernel,
                            std::optional<std::pair<size_t, size_t>> in_place, const Tensor* total) {
  const int shared_input = in_place ? static_cast<int>(in_place->first) : -1;
  const int shared_output = in_place ? static_cast<int>(in_place->second) : -1;
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

}  // namespace pipeshard::testing
