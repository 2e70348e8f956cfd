// Digests of whole files: XXH3, 64 bits, of every byte. Against files that are not what they should be, not
// against an adversary.
//
// A file of at least kRememberedBytes is read once per host: its digest is kept in
// ~/.cache/pipeshard/digests, by device, inode, size and times of change, so that a file that was written
// again is read again. Several processes that want one file at the same time read it once. Where the folder
// cannot be used, files are read each time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace pipeshard {

inline constexpr uint64_t kRememberedBytes = uint64_t{4} << 20;

// Of reading that is under way, for those who watch it from another thread, and to end it.
struct ReadingProgress {
  std::atomic<uint64_t> bytes_done{0};
  std::atomic<uint64_t> bytes_in_all{0};
  std::atomic<bool> stop{false};  // set by the watcher: digestOfFile throws Error(kRequeue) soon
};

// Error(kMissingInput) when it cannot be read. `progress` may be null.
uint64_t digestOfFile(const std::string& path, ReadingProgress* progress = nullptr);

// A file of data, which may be as large as a disk: all of it up to 64 MiB, else its size and 1024 blocks
// spread over it. Errors likewise.
uint64_t sampledDigestOfFile(const std::string& path);

}  // namespace pipeshard
