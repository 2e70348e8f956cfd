// The memory of the stand-in's device and its pinned host memory, with a shadow: who wrote and who read each
// byte last. Internal to the stand-in; all calls under its lock (lines.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace standin {

struct Running;  // lines.h

// Says it on stderr, each kind of text some times only; the process ends with code 99 then.
void report(const std::string& text);

enum class Memory : uint8_t { kDevice, kPinned };

// nullptr: no room. Content of device memory counts as unwritten.
void* allocate(size_t bytes, Memory kind);
// False, and a report: it is no block, or freed.
bool release(void* begin);
bool inHeap(const void* address);
// Where other processes find it (sharing.h): the file that it lies in, all of it, and an address there.
int heapDescriptor();
size_t heapBytes();
size_t heapOffset(const void* address);
// Of a block of the device that begins there; 0: there is none.
size_t bytesOfBlock(const void* begin);
bool isPinned(const void* address);
// "byte 4 of a block of 256", for reports.
std::string describeAddress(const void* address);

// One access of whoever runs (lines.h). An atomic one races with none of its own kernel.
void access(const void* address, size_t bytes, bool write, bool atomic = false);
// Another process has read memory of this one, as an operation with this clock.
void readFromOutside(const Running& reader, size_t offset, size_t bytes);
// Nobody knows what is there now: it counts as unwritten.
void forget(const void* begin, size_t bytes);
// Of memory that is shared by a block's threads, outside of the heap.
void accessShared(const void* address, bool write);
// A grid begins: what is remembered of shared memory is of no use any more.
void forgetShared();

// Blocks that were not released.
void reportLeaks();

}  // namespace standin
