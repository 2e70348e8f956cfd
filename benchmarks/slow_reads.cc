// A disk that answers late, for one file: loaded before other libraries (LD_PRELOAD), reads of the file that
// SLOW_READS_FILE names wait SLOW_READS_US microseconds first. For slow_disk.py.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

namespace {

bool isSlow(int descriptor) {
  const char* slow = std::getenv("SLOW_READS_FILE");
  if (slow == nullptr) return false;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return length > 0 && std::string_view(path.data(), length) == slow;
}

void waitBefore(int descriptor) {
  if (!isSlow(descriptor)) return;
  const char* text = std::getenv("SLOW_READS_US");
  const long microseconds = text == nullptr ? 0 : std::atol(text);
  const timespec delay{microseconds / 1'000'000, microseconds % 1'000'000 * 1'000};
  ::nanosleep(&delay, nullptr);
}

template <typename Offset>
using Read = ssize_t (*)(int, void*, size_t, Offset);

}  // namespace

extern "C" ssize_t pread(int descriptor, void* out, size_t bytes, off_t offset) {
  static const auto next = reinterpret_cast<Read<off_t>>(::dlsym(RTLD_NEXT, "pread"));
  waitBefore(descriptor);
  return next(descriptor, out, bytes, offset);
}

extern "C" ssize_t pread64(int descriptor, void* out, size_t bytes, off64_t offset) {
  static const auto next = reinterpret_cast<Read<off64_t>>(::dlsym(RTLD_NEXT, "pread64"));
  waitBefore(descriptor);
  return next(descriptor, out, bytes, offset);
}
