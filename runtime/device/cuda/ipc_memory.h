// Memory of a GPU that several processes of a machine read: handles by which one opens another's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "ir/base/ids.h"
#include "runtime/device/cuda/cuda_device.h"

namespace pipeshard {

// An address for another process: bytes that a message may hold.
struct IpcPlace {
  uint64_t block = 0;  // CudaDevice::Allocation::number
  uint64_t offset = 0;
  cudaIpcMemHandle_t handle{};  // of the block
};

// Of one rank: what it lets others read, and what it has opened of theirs. One thread at a time.
class IpcMemory {
 public:
  explicit IpcMemory(CudaDevice& device) : device_(device) {}
  ~IpcMemory() { close(); }
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  // Of memory that CudaDevice::allocate gave, which must outlive what others have open of it.
  // Error(kInternal) for other memory, or where the GPU has no handles.
  IpcPlace placeOf(const void* address);
  // Opened when a block is met first, and open until close(). Errors as checkCuda.
  std::byte* addressOf(RankId owner, const IpcPlace& place);
  // No work that reads the others' memory is under way.
  void close() noexcept;

 private:
  CudaDevice& device_;
  std::map<uint64_t, cudaIpcMemHandle_t> handles_;              // by block
  std::map<std::pair<uint32_t, uint64_t>, std::byte*> opened_;  // by owner and block
};

}  // namespace pipeshard
