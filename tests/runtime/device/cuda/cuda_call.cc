#include "tests/runtime/device/cuda/cuda_call.h"

#include <memory>

#include <gtest/gtest.h>

#include "runtime/device/cuda_loader.h"

namespace pipeshard::testing {
namespace {

MemoryBlock uploaded(DeviceQueue& queue, const Tensor& tensor) {
  MemoryBlock block = cuda().allocate(std::max<size_t>(1, tensor.bytes.size()));
  queue.upload(tensor.bytes.data(), block.bytes.data(), tensor.bytes.size());
  return block;
}

std::vector<std::byte> downloaded(DeviceQueue& queue, const MemoryBlock& block, size_t bytes) {
  std::vector<std::byte> content(bytes);
  readMemory(queue, block.bytes.first(bytes), content);
  return content;
}

std::unique_ptr<Device>& openedDevice() {
  static std::unique_ptr<Device> device;
  return device;
}

// Nothing of CUDA may be called when the process ends.
class EndOfDevice : public ::testing::Environment {
 public:
  void TearDown() override { openedDevice().reset(); }
};
[[maybe_unused]] const ::testing::Environment* const kEndOfDevice =
    ::testing::AddGlobalTestEnvironment(new EndOfDevice);

}  // namespace

Device& cuda() {
  std::unique_ptr<Device>& device = openedDevice();
  if (!device) device = openCudaDevice(0);
  return *device;
}

std::vector<Tensor> runOnCuda(const KernelCall& call, Kernel& kernel,
                              std::optional<std::pair<size_t, size_t>> shared, const Tensor* total) {
  const auto queue = cuda().makeQueue();
  std::vector<MemoryBlock> inputs, outputs;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const auto& input : call.inputs) {
    inputs.push_back(input ? uploaded(*queue, *input) : MemoryBlock{});
    from.push_back(input ? inputs.back().bytes.data() : nullptr);
  }
  for (size_t o = 0; o < call.outputs.size(); ++o) {
    const OutputSpec& output = call.outputs[o];
    const bool present = output.type != DataType::kUndefined;
    if (o == 0 && total != nullptr)
      outputs.push_back(uploaded(*queue, *total));
    else if (shared && shared->second == o)
      outputs.push_back(inputs[shared->first]);
    else
      outputs.push_back(
          cuda().allocate(present ? std::max<int64_t>(1, byteCount(output.type, output.shape)) : 0));
    to.push_back(present ? outputs.back().bytes.data() : nullptr);
  }
  const MemoryBlock workspace = cuda().allocate(kernel.workspaceBytes());
  const MemoryBlock fault = cuda().allocate(sizeof(DataFault));
  kernel.run({from, to, workspace.bytes.data(), nullptr, total == nullptr ? 0U : 1U, queue.get(),
              reinterpret_cast<DataFault*>(fault.bytes.data())});
  DataFault found;
  readMemory(*queue, fault.bytes, std::as_writable_bytes(std::span(&found, 1)));
  if (found.found != 0) kernel.throwFault(found);
  std::vector<Tensor> results;
  for (size_t o = 0; o < call.outputs.size(); ++o) {
    const OutputSpec& output = call.outputs[o];
    const size_t bytes = to[o] == nullptr ? 0 : byteCount(output.type, output.shape);
    results.push_back({output.type, output.shape, downloaded(*queue, outputs[o], bytes)});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!call.inputs[i] || (shared && shared->first == i)) continue;
    EXPECT_TRUE(downloaded(*queue, inputs[i], call.inputs[i]->bytes.size()) == call.inputs[i]->bytes)
        << "input " << i << " was changed";
  }
  return results;
}

}  // namespace pipeshard::testing
