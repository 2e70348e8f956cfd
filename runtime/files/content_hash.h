// A fast hash of contents, to notice that a disk or somebody has changed them: XXH3, 64 bits. Not against an
// adversary.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pipeshard {

uint64_t contentHash(std::string_view bytes);
// Error(kMissingInput) as for any file that cannot be read; kRequeue soon after another thread has set
// `stop`, where there is one.
uint64_t contentHashOfFile(const std::string& path, const std::atomic<bool>* stop = nullptr);

// 16 hexadecimal digits, and back; nothing for any other text.
std::string hashText(uint64_t hash);
std::optional<uint64_t> hashFromText(std::string_view text);

// Of bytes that come one after the other.
class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeshard
