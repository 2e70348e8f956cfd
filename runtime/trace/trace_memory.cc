#include "runtime/trace/trace_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ir/base/error.h"
#include "runtime/trace/trace_recorder.h"

namespace pipeshard {

Descriptor makeTraceMemory() {
  Descriptor memory(::memfd_create("pipeshard-trace", 0));
  if (!memory.valid())
    fail(ErrorCode::kOutOfMemory, "cannot make the memory for a trace: {}; check `ulimit -n`",
         std::strerror(errno));
  return memory;
}

shm::Mapping openTraceMemory(int descriptor, size_t bytes) {
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags < 0 || ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC) < 0) {
    fail(ErrorCode::kConfiguration, "descriptor {} for the trace is not open in this process", descriptor);
  }
  shm::sizeSegment(descriptor, bytes, "the memory for a trace");
  return shm::Mapping::map(descriptor, bytes, true, "the trace");
}

std::vector<std::byte> readTraceMemory(const Descriptor& memory) {
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0 || status.st_size == 0) return {};
  const shm::Mapping mapping = shm::Mapping::map(memory.get(), status.st_size, false, "a rank's trace");
  const size_t used = usedTraceBytes(mapping.span());
  return {mapping.data(), mapping.data() + used};
}

}  // namespace pipeshard
