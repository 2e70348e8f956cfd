// Plain files by descriptor, with pipeshard errors: positioned reads that do not stop half-way, and
// whole-file writes through a temporary and a rename.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pipeshard {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }
  int release();
  void reset(int descriptor = -1);

 private:
  int descriptor_ = -1;
};

// Opens a regular file for reading. Error(kMissingInput) naming the path and the system's reason.
Descriptor openForReading(const std::string& path);
uint64_t fileBytes(const Descriptor& file, const std::string& path);

// Fills `out` from `offset`. Error(kMissingInput) naming path, offset and bytes when the file ends before or
// cannot be read.
void readExactly(const Descriptor& file, uint64_t offset, std::span<std::byte> out, const std::string& path);

// Who may read what is made: whoever the user's umask lets, or the owner alone (mode 0600; folders 0700).
// Tensors of a training, which nobody has asked to be published, are the owner's.
enum class FileAccess { kByUmask, kOwner };

// A file under construction: written beside it (createBeside in ir/base/plain_file.h), renamed by commit(),
// removed when destroyed before. Every failure is Error(kDiskFull) with the system's reason.
class PendingFile {
 public:
  explicit PendingFile(std::string path, FileAccess access = FileAccess::kByUmask);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  void append(const void* data, size_t bytes);
  void commit(bool durable);

 private:
  [[noreturn]] void failed(const char* action) const;

  std::string path_;
  std::string temporary_;
  Descriptor file_;
  bool committed_ = false;
};

}  // namespace pipeshard
