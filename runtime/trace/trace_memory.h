// The memory that a worker records into (runtime/trace/trace_recorder.h): anonymous, made by who starts the
// worker and inherited by it, so that what a worker recorded is there when it has ended, however that was. It
// has no name, so it outlives no job.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/files/posix_file.h"
#include "transport/shared/mapping.h"

namespace pipeshard {

// Empty; inherited by processes that are started. Error(kOutOfMemory).
Descriptor makeTraceMemory();
// In the worker: sizes and maps it. The descriptor goes no further. Errors: kOutOfMemory; kConfiguration when
// it is not open.
shm::Mapping openTraceMemory(int descriptor, size_t bytes);
// What has been recorded (usedTraceBytes). Empty when the worker has not come that far. Errors: kOutOfMemory;
// as usedTraceBytes.
std::vector<std::byte> readTraceMemory(const Descriptor& memory);

}  // namespace pipeshard
