// Shared memory: the size of what a file descriptor stands for, and one mmap of it, unmapped on destruction.
// Errors: kOutOfMemory names the bytes and what they were for.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace pipeshard::shm {

class Mapping {
 public:
  Mapping() = default;
  // Maps bytes [0, bytes) shared. The descriptor may be closed afterwards. 0 bytes give an empty mapping.
  static Mapping map(int descriptor, size_t bytes, bool writable, std::string_view purpose);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Gives a memory file its size. It counts as a file: Error(kConfiguration) where `ulimit -f` is below, with
// the value that is needed; else kOutOfMemory.
void sizeSegment(int descriptor, size_t bytes, std::string_view purpose);

}  // namespace pipeshard::shm
