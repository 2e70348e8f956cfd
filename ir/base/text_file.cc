#include "ir/base/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/plain_file.h"

namespace pipeshard {

namespace {

constexpr size_t kBlockBytes = 4096;

}  // namespace

std::optional<std::string> readTextFile(const std::string& path, uint64_t most_bytes, std::string_view what) {
  uint64_t bytes = 0;
  const OpenFile file(openPlainFile(path, bytes));
  if (file.descriptor < 0) return std::nullopt;
  const auto refuseMore = [&](uint64_t found) {
    if (found > most_bytes)
      fail(ErrorCode::kConfiguration, "{} is too large for {} ({} bytes, {} at most)", path, what, found,
           most_bytes);
  };
  refuseMore(bytes);
  // one byte more than it has tells its end; it may grow, and files of /proc have no size
  std::string text(static_cast<size_t>(bytes) + 1, '\0');
  for (size_t have = 0;;) {
    const size_t got = readSome(file, std::span(text).subspan(have), path);
    have += got;
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

namespace {

// Elsewhere "-" is standard output, where these commands print for people.
void refuseDash(const std::string& path) {
  if (path == "-")
    fail(ErrorCode::kUsage, "- as a file to be written: expected a path; /dev/stdout is standard output");
}

// For writing; a named pipe that nobody reads, which would wait for a reader, is refused.
int openForWriting(const std::string& path, int flags) {
  const int opened =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0666);
  if (opened < 0 && errno == ENXIO)
    fail(ErrorCode::kConfiguration, "{} cannot be written: it is a named pipe that nobody reads", path);
  if (opened < 0) failToWrite(path, errno);
  // what waits for its turn later, may
  ::fcntl(opened, F_SETFL, ::fcntl(opened, F_GETFL) & ~O_NONBLOCK);
  return opened;
}

void writeAll(const OpenFile& file, const std::string& text, const std::string& path) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file.descriptor, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) failToWrite(path, errno);
    done += static_cast<size_t>(wrote);
  }
}

// Beside the file, under another name, and in its place only when it is whole: a full disk, or a crash,
// leaves the older one. False where that cannot be done, as in a folder that is not for this user to write.
bool replaceWhole(const std::string& path, const struct stat* older, const std::string& text) {
  std::error_code error;
  const std::filesystem::path target =
      older == nullptr ? std::filesystem::path(path) : std::filesystem::canonical(path, error);
  if (error) return false;
  std::string partial;
  const mode_t mode = older == nullptr ? 0666 : older->st_mode & 0777;
  OpenFile file(createBeside(target.string(), mode, partial));
  if (file.descriptor < 0) return false;
  try {
    writeAll(file, text, path);
    if (older != nullptr) ::fchmod(file.descriptor, mode);
    if (::close(std::exchange(file.descriptor, -1)) != 0) failToWrite(path, errno);
    if (::rename(partial.c_str(), target.c_str()) != 0) failToWrite(path, errno);
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
  return true;
}

}  // namespace

void requireWritable(const std::string& path) {
  refuseDash(path);
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  { const OpenFile file(openForWriting(path, O_APPEND)); }
  if (!was_there) ::unlink(path.c_str());
}

void writeTextFile(const std::string& path, const std::string& text) {
  refuseDash(path);
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  if (!is_there || S_ISREG(status.st_mode)) {
    // A file that this user may not write stays: its folder would let it be replaced.
    const bool may = !is_there || ::access(path.c_str(), W_OK) == 0;
    if (may && replaceWhole(path, is_there ? &status : nullptr, text)) return;
  }
  const OpenFile file(openForWriting(path, O_TRUNC));
  writeAll(file, text, path);
}

}  // namespace pipeshard
