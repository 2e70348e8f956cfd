#include "tests/standin/nccl/block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <random>

namespace standin::nccl {
namespace {

int openFileOf(pid_t process, int file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

Block* mapBlock(int file) {
  void* mapped = ::mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<Block*>(mapped);
}

int makeFile(size_t bytes) {
  const int file = ::memfd_create("standin-nccl", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  return file;
}

}  // namespace

Held::Held(Block& block) : block_(block) {
  if (::pthread_mutex_lock(&block_.lock) == EOWNERDEAD) ::pthread_mutex_consistent(&block_.lock);
}
Held::~Held() { ::pthread_mutex_unlock(&block_.lock); }

Place makeBlock() {
  const int file = makeFile(sizeof(Block));
  Block* block = mapBlock(file);
  if (block == nullptr) std::abort();
  new (block) Block;
  std::random_device random;
  block->id = (uint64_t{random()} << 32) | random();
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&block->lock, &attributes);
  const Place place{::getpid(), file, block->id};
  closeBlock(block);
  return place;
}

Block* openBlock(const Place& place) {
  const int file = openFileOf(place.process, place.file);
  if (file < 0) return nullptr;
  Block* block = mapBlock(file);
  ::close(file);
  if (block != nullptr && block->id != place.id) {
    closeBlock(block);
    block = nullptr;
  }
  return block;
}

void closeBlock(Block* block) { ::munmap(block, sizeof(Block)); }

int makePayload(const void* bytes, size_t count) {
  const int file = makeFile(count);
  const auto* from = static_cast<const std::byte*>(bytes);
  for (size_t at = 0; at < count;) {
    const ssize_t written = ::pwrite(file, from + at, count - at, static_cast<off_t>(at));
    if (written <= 0) std::abort();
    at += static_cast<size_t>(written);
  }
  return file;
}

std::vector<std::byte> readPayload(pid_t process, int file, size_t count) {
  std::vector<std::byte> bytes(count);
  const int opened = openFileOf(process, file);
  if (opened < 0) return {};
  for (size_t at = 0; at < count;) {
    const ssize_t got = ::pread(opened, bytes.data() + at, count - at, static_cast<off_t>(at));
    if (got <= 0) break;
    at += static_cast<size_t>(got);
  }
  ::close(opened);
  return bytes;
}

}  // namespace standin::nccl
