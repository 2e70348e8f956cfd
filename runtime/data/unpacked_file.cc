#include "runtime/data/unpacked_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr uint64_t kPage = 4096;
constexpr char kDone = 1;

uint64_t wholePages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

[[noreturn]] void failFile(const char* action, int reason) {
  fail(ErrorCode::kDiskFull, "cannot {} the file for unpacked arrays (in TMPDIR or /tmp): {}", action,
       std::strerror(reason));
}

// While it lives no other process has byte `at` of the file. Of the open file, not of the process, so that
// those who inherited one descriptor and opened it anew exclude each other.
class ByteLock {
 public:
  ByteLock(const Descriptor& file, off_t at) : file_(file), at_(at) { set(F_WRLCK); }
  ByteLock(const ByteLock&) = delete;
  ByteLock& operator=(const ByteLock&) = delete;
  ~ByteLock() {
    struct flock lock = describe(F_UNLCK);
    ::fcntl(file_.get(), F_OFD_SETLK, &lock);
  }

 private:
  struct flock describe(short type) const {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = at_;
    lock.l_len = 1;
    return lock;
  }
  void set(short type) {
    struct flock lock = describe(type);
    while (::fcntl(file_.get(), F_OFD_SETLKW, &lock) != 0) {
      if (errno != EINTR) failFile("lock", errno);
    }
  }

  const Descriptor& file_;
  off_t at_;
};

// Part of the file as memory. The file has no name, so nobody cuts it short.
class MappedPart {
 public:
  MappedPart(const Descriptor& file, uint64_t offset, uint64_t bytes) : bytes_(bytes) {
    memory_ =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), static_cast<off_t>(offset));
    if (memory_ == MAP_FAILED) failFile("map", errno);
  }
  MappedPart(const MappedPart&) = delete;
  MappedPart& operator=(const MappedPart&) = delete;
  ~MappedPart() { ::munmap(memory_, bytes_); }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_;
  uint64_t bytes_;
};

}  // namespace

Descriptor makeUnpackedFile() {
  const char* folder = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/pipeshard-unpacked-XXXXXX", folder == nullptr ? "/tmp" : folder);
  Descriptor file(::mkostemp(path.data(), 0));
  if (!file.valid()) failFile("make", errno);
  ::unlink(path.c_str());
  return file;
}

Descriptor makeUnpackedFileFor(const DataDescription& data) {
  return data.path.ends_with(".npz") ? makeUnpackedFile() : Descriptor();
}

UnpackedFile::UnpackedFile(int descriptor, const std::vector<uint64_t>& places) {
  Descriptor own;
  if (descriptor < 0) {
    own = makeUnpackedFile();
    descriptor = own.get();
  }
  Descriptor opened(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.valid()) failFile("open", errno);
  file_ = std::make_shared<Descriptor>(std::move(opened));
  uint64_t end = wholePages(places.size());  // a byte per place says whether it is done
  for (const uint64_t bytes : places) {
    offsets_.push_back(end);
    end += wholePages(bytes);
  }
}

void UnpackedFile::ensure(size_t place, uint64_t bytes, const std::string& what,
                          const std::function<void(std::span<std::byte>)>& unpack) {
  const ByteLock lock(*file_, static_cast<off_t>(place));
  char state = 0;
  if (::pread(file_->get(), &state, 1, static_cast<off_t>(place)) == 1 && state == kDone) return;
  const uint64_t begin = offset(place);
  if (bytes > 0) {
    // space is taken before it is written, or a full disk would be a signal
    const int reason = ::posix_fallocate(file_->get(), static_cast<off_t>(begin), static_cast<off_t>(bytes));
    if (reason != 0) {
      fail(ErrorCode::kDiskFull,
           "{}: there is no space to unpack its {} bytes in TMPDIR or /tmp ({}); save it without compression "
           "(numpy.savez), then it is read in place",
           what, bytes, std::strerror(reason));
    }
    const MappedPart part(*file_, begin, bytes);
    unpack(part.span());
  }
  if (::pwrite(file_->get(), &kDone, 1, static_cast<off_t>(place)) != 1) failFile("write", errno);
}

}  // namespace pipeshard
