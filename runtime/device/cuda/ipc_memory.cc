#include "runtime/device/cuda/ipc_memory.h"

#include "ir/base/error.h"
#include "runtime/device/cuda/cuda_error.h"

namespace pipeshard {

IpcPlace IpcMemory::placeOf(const void* address) {
  const CudaDevice::Allocation block = device_.allocationOf(address);
  if (block.number == 0) fail(ErrorCode::kInternal, "CUDA IPC: a tensor that is not in the device's memory");
  const auto [found, is_new] = handles_.try_emplace(block.number);
  if (is_new) {
    device_.use();
    const cudaError_t code = cudaIpcGetMemHandle(&found->second, block.begin);
    if (code != cudaSuccess) handles_.erase(found);
    checkCuda(code, "a handle of memory");
  }
  IpcPlace place;
  place.block = block.number;
  place.offset = static_cast<uint64_t>(static_cast<const std::byte*>(address) - block.begin);
  place.handle = found->second;
  return place;
}

std::byte* IpcMemory::addressOf(RankId owner, const IpcPlace& place) {
  const auto [found, is_new] = opened_.try_emplace({static_cast<uint32_t>(owner.index()), place.block});
  if (is_new) {
    device_.use();
    void* begin = nullptr;
    const cudaError_t code = cudaIpcOpenMemHandle(&begin, place.handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) opened_.erase(found);
    checkCuda(code, "to open another rank's memory");
    found->second = static_cast<std::byte*>(begin);
  }
  return found->second + place.offset;
}

void IpcMemory::close() noexcept {
  for (const auto& [key, begin] : opened_) cudaIpcCloseMemHandle(begin);
  opened_.clear();
}

}  // namespace pipeshard
