#include "transport/shared/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "transport/shared/memory_available.h"

namespace pipeshard::shm {
namespace {

constexpr size_t kStep = size_t{64} << 20;
constexpr size_t kReserve = size_t{64} << 20;  // for everything else on the machine

// This rank's promise to touch memory, visible to the other ranks, which may be making their arenas at the
// same time.
class Promise {
 public:
  Promise(ControlView view, RankId rank, size_t bytes) : mine_(view.rank(rank).unpopulated) {
    mine_.store(bytes, std::memory_order_seq_cst);
  }
  ~Promise() { mine_.store(0, std::memory_order_seq_cst); }
  void kept(size_t bytes) { mine_.fetch_sub(bytes, std::memory_order_seq_cst); }

 private:
  std::atomic<uint64_t>& mine_;
};

// The promises of the living ranks together; those that overflow count as all memory.
uint64_t promisedBytes(ControlView view) {
  uint64_t total = 0;
  for (RankId rank : idsBelow<RankId>(view.size())) {
    if (view.rank(rank).dead.load(std::memory_order_relaxed) != 0) continue;
    if (__builtin_add_overflow(total, view.rank(rank).unpopulated.load(std::memory_order_seq_cst), &total))
      return UINT64_MAX;
  }
  return total;
}

void populateStep(std::byte* begin, size_t bytes, RankId rank, size_t total) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return;
  // Older kernels do not know the request: there, the pages are touched.
  if (errno != EINVAL) {
    fail(ErrorCode::kOutOfMemory, "rank {}: an arena of {} bytes does not fit into memory: {}", rank, total,
         std::strerror(errno));
  }
#else
  (void)rank, (void)total;
#endif
  for (size_t offset = 0; offset < bytes; offset += kPage)
    *reinterpret_cast<volatile std::byte*>(begin + offset) = std::byte{0};
}

}  // namespace

Mapping populateArena(int descriptor, size_t bytes, ControlView view, RankId rank) {
  Promise promise(view, rank, bytes);
  const uint64_t promised = promisedBytes(view);
  const size_t available = availableMemory();
  if (promised > available || available - promised < kReserve) {
    fail(ErrorCode::kOutOfMemory,
         "rank {}: an arena of {} bytes does not fit: the workers of this node still need {} bytes, {} are "
         "available; use more devices, smaller microbatches or recomputation",
         rank, bytes, promised, available);
  }
  sizeSegment(descriptor, bytes, fmt::format("the arena of rank {}", rank));
  // So that no process can pull pages from under the readers.
  ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  Mapping mapping = Mapping::map(descriptor, bytes, true, fmt::format("the arena of rank {}", rank));
  // a wish: ignored where the kernel does not do it
  if (bytes > 0) ::madvise(mapping.data(), bytes, MADV_HUGEPAGE);
  for (size_t begin = 0; begin < bytes; begin += kStep) {
    const size_t step = std::min(kStep, bytes - begin);
    populateStep(mapping.data() + begin, step, rank, bytes);
    promise.kept(step);
  }
  return mapping;
}

}  // namespace pipeshard::shm
