#include "tests/transport/shared_store.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "ir/base/error.h"

namespace pipeshard::testing {

namespace {

// Ranks' first communicators, and one other.
constexpr size_t kChannels = 2;

}  // namespace

struct SharedStore::Entry {
  std::atomic<size_t> bytes;  // 0: not there
  char data[16 << 10];
};

SharedStore::SharedStore(int size) : size_(size) {
  const size_t bytes = kChannels * sizeof(Entry) * static_cast<size_t>(size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  entries_ = static_cast<Entry*>(memory);
}

SharedStore::~SharedStore() { ::munmap(entries_, kChannels * sizeof(Entry) * static_cast<size_t>(size_)); }

SharedStore::Entry& SharedStore::entryOf(const std::string& key) {
  const int rank = std::stoi(key.substr(key.rfind('/') + 1));
  if (rank < 0 || rank >= size_) throw std::runtime_error("a key of rank " + std::to_string(rank));
  return entries_[key.starts_with("gloo/rank/") ? rank : size_ + rank];
}

void SharedStore::set(const std::string& key, const std::string& bytes) {
  Entry& entry = entryOf(key);
  if (bytes.empty() || bytes.size() > sizeof(entry.data)) throw std::runtime_error("a value of another size");
  std::memcpy(entry.data, bytes.data(), bytes.size());
  entry.bytes.store(bytes.size(), std::memory_order_release);
}

std::string SharedStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  Entry& entry = entryOf(key);
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const size_t bytes = entry.bytes.load(std::memory_order_acquire);
    if (bytes > 0) return {entry.data, bytes};
    if (std::chrono::steady_clock::now() > end) {
      fail(ErrorCode::kPeerUnavailable, "no '{}' within {} ms: did it start?", key, timeout.count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace pipeshard::testing
