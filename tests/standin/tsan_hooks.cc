// What code compiled with -fsanitize=thread calls for every access: the stand-in's checks in place of
// libtsan.
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "tests/standin/fibers.h"
#include "tests/standin/heap.h"
#include "tests/standin/lines.h"
#include "tests/standin/sharing.h"

namespace standin {
namespace {

void check(const void* address, size_t bytes, bool write, bool aligned) {
  std::unique_lock held(lock(), std::defer_lock);
  if (!onDevice()) held.lock();  // operations run under it
  const bool device = onDevice() && currentThread() != nullptr;
  if (device && aligned && reinterpret_cast<uintptr_t>(address) % bytes != 0)
    report(*running().name + ": misaligned access of " + std::to_string(bytes) + " bytes");
  if (inHeap(address) || (device && isOfAnother(address))) return access(address, bytes, write);
  if (device && !isThreadsOwn(address)) accessShared(address, write);
}

}  // namespace
}  // namespace standin

#define PIPESHARD_HOOKS(bytes)                                                                      \
  extern "C" void __tsan_read##bytes(void* p) { standin::check(p, bytes, false, true); }            \
  extern "C" void __tsan_write##bytes(void* p) { standin::check(p, bytes, true, true); }            \
  extern "C" void __tsan_unaligned_read##bytes(void* p) { standin::check(p, bytes, false, false); } \
  extern "C" void __tsan_unaligned_write##bytes(void* p) { standin::check(p, bytes, true, false); }
PIPESHARD_HOOKS(1)
PIPESHARD_HOOKS(2)
PIPESHARD_HOOKS(4)
PIPESHARD_HOOKS(8)
PIPESHARD_HOOKS(16)
#undef PIPESHARD_HOOKS

extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_read_range(void* p, size_t bytes) { standin::check(p, bytes, false, false); }
extern "C" void __tsan_write_range(void* p, size_t bytes) { standin::check(p, bytes, true, false); }
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}
