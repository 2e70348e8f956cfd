#include "runtime/files/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "ir/base/error.h"
#include "ir/base/plain_file.h"

namespace pipeshard {

int Descriptor::release() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor;
}

void Descriptor::reset(int descriptor) {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = descriptor;
}

Descriptor openForReading(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer; it is refused below.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) fail(ErrorCode::kMissingInput, "cannot open {}: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    fail(ErrorCode::kMissingInput, "cannot examine {}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kMissingInput, "{} is not a regular file", path);
  return file;
}

uint64_t fileBytes(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    fail(ErrorCode::kMissingInput, "cannot examine {}: {}", path, std::strerror(errno));
  return status.st_size;
}

void readExactly(const Descriptor& file, uint64_t offset, std::span<std::byte> out, const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(file.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail(ErrorCode::kMissingInput, "cannot read {} at byte {}: {}", path, offset + done,
           std::strerror(errno));
    if (got == 0)
      fail(ErrorCode::kMissingInput, "{} ends at byte {}, but bytes up to {} were expected", path,
           offset + done, offset + out.size());
    done += got;
  }
}

PendingFile::PendingFile(std::string path, FileAccess access) : path_(std::move(path)) {
  file_.reset(createBeside(path_, access == FileAccess::kOwner ? 0600 : 0666, temporary_));
  if (!file_.valid()) failed("create");
}

PendingFile::~PendingFile() {
  if (!committed_ && file_.valid()) ::unlink(temporary_.c_str());
}

void PendingFile::failed(const char* action) const {
  fail(ErrorCode::kDiskFull, "cannot {} {}: {}", action, path_, std::strerror(errno));
}

void PendingFile::append(const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file_.get(), from, std::min(bytes, size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) failed("write");
    from += done;
    bytes -= done;
  }
}

void PendingFile::commit(bool durable) {
  if (durable && ::fsync(file_.get()) != 0) failed("write");
  if (::close(file_.release()) != 0) {
    ::unlink(temporary_.c_str());
    failed("write");
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    errno = reason;
    failed("rename the finished file to");
  }
  committed_ = true;
  if (!durable) return;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const Descriptor directory(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) failed("make durable the folder of");
}

}  // namespace pipeshard
