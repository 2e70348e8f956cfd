// Tasks that need workspace: a fixed number of slots share them, each with its own piece.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/kernels/base/parallel.h"

namespace pipeshard::kernels {

// body(slot, task) for every task; the tasks of a slot run one after the other, slots at the same time. Which
// slot a task falls to may depend on the threads, so its result must not depend on that. oneDNN runs on the
// calling thread within a body.
template <typename Body>
void forSlots(int64_t most_slots, int64_t tasks, const Body& body) {
  const int64_t slots = std::min(tasks, most_slots);
  // At least two, so that a product never spreads over threads by itself, which could change its bits.
  forEachBlock(std::max<int64_t>(2, slots), true, [&](int64_t slot) {
    if (slot >= slots) return;
    for (int64_t task = slot * tasks / slots; task < (slot + 1) * tasks / slots; ++task) body(slot, task);
  });
}

}  // namespace pipeshard::kernels
