// A zeroed, page-aligned block of memory from the system, given back when it goes away; in huge pages where
// the system gives them. For constants and for programs in this process: a worker's arena is shared with its
// peers and comes from its communicator (transport/shared/shared_memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipeshard {

// Of tensors in the host's memory, bytes.
inline constexpr int64_t kMemoryAlignment = 64;

class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(size_t bytes);  // Error(kOutOfMemory) naming the bytes
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  ~AlignedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pipeshard
