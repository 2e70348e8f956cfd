#include "ir/base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

namespace {

constexpr size_t kBlockBytes = 4096;

// Closes it at the end.
struct OpenFile {
  int descriptor;
  explicit OpenFile(int opened) : descriptor(opened) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

const char* kindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no plain file";
}

[[noreturn]] void failToRead(const std::string& path) {
  fail(ErrorCode::kMissingInput, "{} cannot be read: {}", path, std::strerror(errno));
}

}  // namespace

std::optional<std::string> readTextFile(const std::string& path, uint64_t most_bytes, std::string_view what) {
  // O_NONBLOCK: a named pipe would wait for its writer
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.descriptor < 0) return std::nullopt;
  struct stat status {};
  if (::fstat(file.descriptor, &status) != 0) failToRead(path);
  if (!S_ISREG(status.st_mode))
    fail(ErrorCode::kMissingInput, "{} is {}; expected a file", path, kindName(status.st_mode));
  const auto refuseMore = [&](uint64_t bytes) {
    if (bytes > most_bytes)
      fail(ErrorCode::kConfiguration, "{} is too large for {} ({} bytes, {} at most)", path, what, bytes,
           most_bytes);
  };
  refuseMore(status.st_size);
  // one byte more than it has tells its end; it may grow, and files of /proc have no size
  std::string text(static_cast<size_t>(status.st_size) + 1, '\0');
  for (size_t have = 0;;) {
    const ssize_t got = ::read(file.descriptor, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failToRead(path);
    have += static_cast<size_t>(got);
    refuseMore(have);
    if (got == 0) {
      text.resize(have);
      return text;
    }
    if (have == text.size()) text.resize(2 * text.size() + kBlockBytes);
  }
}

std::string requireTextFile(const std::string& path, uint64_t most_bytes, std::string_view what) {
  errno = 0;
  if (std::optional<std::string> text = readTextFile(path, most_bytes, what)) return *std::move(text);
  failToRead(path);
}

void failToWrite(const std::string& path, int error_number) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    fail(ErrorCode::kMissingInput,
         "{} cannot be written: there is no folder {}; make it, or choose another path", path,
         folder.string());
  }
  if (std::filesystem::is_directory(path, ignored)) {
    fail(ErrorCode::kConfiguration, "{} cannot be written: it is a folder; choose the path of a file", path);
  }
  if (error_number == EACCES || error_number == EPERM || error_number == ENOTDIR) {
    fail(ErrorCode::kConfiguration, "{} cannot be written: {}; choose another path", path,
         std::strerror(error_number));
  }
  fail(ErrorCode::kDiskFull, "{} cannot be written: {}", path,
       error_number == 0 ? "is the disk full?" : std::strerror(error_number));
}

void requireWritable(const std::string& path) {
  errno = 0;
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) failToWrite(path, errno);
}

void writeTextFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) failToWrite(path, errno);
}

}  // namespace pipeshard
