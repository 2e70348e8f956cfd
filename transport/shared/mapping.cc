#include "transport/shared/mapping.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/base/amounts.h"
#include "ir/base/error.h"

namespace pipeshard::shm {

Mapping Mapping::map(int descriptor, size_t bytes, bool writable, std::string_view purpose) {
  Mapping result;
  if (bytes == 0) return result;
  void* address =
      ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory, "cannot map {} bytes of shared memory for {}: {}; check `ulimit -v`", bytes,
         purpose, std::strerror(errno));
  }
  result.data_ = static_cast<std::byte*>(address);
  result.bytes_ = bytes;
  return result;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void sizeSegment(int descriptor, size_t bytes, std::string_view purpose) {
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) return;
  const int reason = errno;
  rlimit limit{};
  if (reason == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    fail(ErrorCode::kConfiguration,
         "size of files: {} are allowed, {} needs {} (shared memory counts as a file); `ulimit -f {}`",
         formatBytes(static_cast<int64_t>(limit.rlim_cur)), purpose, formatBytes(static_cast<int64_t>(bytes)),
         (bytes >> 10) + 1);
  }
  fail(ErrorCode::kOutOfMemory, "cannot size {} to {} bytes: {}", purpose, bytes, std::strerror(reason));
}

}  // namespace pipeshard::shm
