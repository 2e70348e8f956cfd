// How much memory this process could still touch without waking the out-of-memory killer.
#pragma once

#include <cstddef>

namespace pipeshard {

// The smaller of the machine's available memory (/proc/meminfo) and what this process's control groups (v2)
// still allow, in bytes. The largest size_t where nothing can be read.
size_t availableMemory();

}  // namespace pipeshard
