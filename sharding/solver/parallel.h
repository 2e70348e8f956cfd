// A loop over threads.
#pragma once

#include <cstdint>
#include <functional>

namespace pipeshard::solver {

// Calls body(0), ..., body(count - 1), on up to `threads` threads, the caller's among them. The first error
// by index is thrown at the end.
void parallelFor(int threads, int32_t count, const std::function<void(int32_t)>& body);

}  // namespace pipeshard::solver
