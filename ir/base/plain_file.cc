#include "ir/base/plain_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

const char* kindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no plain file";
}

}  // namespace

OpenFile::~OpenFile() {
  if (descriptor >= 0) ::close(descriptor);
}

void failToRead(const std::string& path) {
  fail(ErrorCode::kMissingInput, "{} cannot be read: {}", path, std::strerror(errno));
}

int openPlainFile(const std::string& path, uint64_t& bytes) {
  // O_NONBLOCK: a named pipe would wait for its writer
  OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.descriptor < 0) return -1;
  struct stat status {};
  if (::fstat(file.descriptor, &status) != 0) failToRead(path);
  if (!S_ISREG(status.st_mode))
    fail(ErrorCode::kMissingInput, "{} is {}; expected a file", path, kindName(status.st_mode));
  bytes = static_cast<uint64_t>(status.st_size);
  const int opened = file.descriptor;
  file.descriptor = -1;
  return opened;
}

int createBeside(const std::string& path, mode_t mode, std::string& name) {
  constexpr int kMostNames = 100;  // left by dead processes that had this one's number
  int made = -1;
  for (int i = 0; i < kMostNames && made < 0; ++i) {
    name = fmt::format("{}.tmp.{}{}", path, ::getpid(), i == 0 ? "" : fmt::format("-{}", i));
    made = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (made < 0 && errno != EEXIST) break;
  }
  return made;
}

size_t readSome(const OpenFile& file, std::span<char> room, const std::string& path) {
  for (;;) {
    const ssize_t got = ::read(file.descriptor, room.data(), room.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) failToRead(path);
  }
}

}  // namespace pipeshard
