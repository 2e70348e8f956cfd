#include "runtime/device/aligned_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

AlignedMemory::AlignedMemory(size_t bytes) {
  if (bytes == 0) return;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    fail(ErrorCode::kOutOfMemory, "cannot get {} bytes of memory: {}", bytes, std::strerror(errno));
  // A hint: fewer page faults and address look-ups. Only whole huge pages, so that small ones take no more
  // memory than asked for.
  constexpr size_t kHugePage = size_t{1} << 21;
  if (bytes >= kHugePage) ::madvise(mapped, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
  size_ = bytes;
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace pipeshard
