#include "transport/shared/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace pipeshard::shm {

void ring(RankState& state) {
  state.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (state.sleeping.load(std::memory_order_seq_cst) != 0) {
    // Not FUTEX_PRIVATE_FLAG: the waiter is another process.
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
              0);
  }
}

void sleepOn(RankState& state, uint32_t value, std::chrono::nanoseconds limit) {
  const auto nanoseconds = std::max<int64_t>(limit.count(), 0);
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
  relative.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  // Every outcome (woken, value changed, interrupted, time over) is answered by looking again.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state.doorbell), FUTEX_WAIT, value, &relative, nullptr,
            0);
}

}  // namespace pipeshard::shm
