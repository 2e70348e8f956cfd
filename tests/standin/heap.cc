#include "tests/standin/heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/standin/fibers.h"
#include "tests/standin/lines.h"
#include "tests/standin/sharing.h"

namespace standin {
namespace {

constexpr size_t kHeap = size_t{1} << 30;
constexpr size_t kAlignment = 256;
constexpr size_t kPage = 4096;
constexpr int kReportsOfAKind = 3;
constexpr int kKinds = 20;

// Of a byte.
enum Life : uint8_t { kNever = 0, kAlive = 1, kFreed = 2, kWritten = 4 };

// The last accesses of a byte. `who`: the thread of a kernel, see threadCode.
struct Cell {
  OpId write = 0;
  uint32_t write_who = 0;
  OpId read = 0;
  uint32_t read_who = 0;
};

struct Block {
  size_t bytes = 0;
  Memory kind = Memory::kDevice;
  bool freed = false;
};

template <typename T>
T* reserve(size_t count) {
  void* mapped = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<T*>(mapped);
}

// Shared with processes that open it.
int openFile() {
  const int file = ::memfd_create("standin-heap", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, kHeap) != 0) std::abort();
  return file;
}
std::byte* mapFile(int file) {
  void* mapped = ::mmap(nullptr, kHeap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(mapped);
}

// Bytes that were read beside what their cells remember.
struct Reader {
  size_t begin = 0, end = 0;
  OpId op = 0;
};

struct Heap {
  int file = openFile();
  std::byte* begin = mapFile(file);
  Cell* cells = reserve<Cell>(kHeap);
  uint8_t* life = reserve<uint8_t>(kHeap);
  std::map<size_t, Block> blocks;  // by offset
  size_t top = kAlignment;
  std::map<std::string, int> reports;  // by kind
  std::unordered_map<const void*, Cell> shared;
  std::vector<Reader> more_readers;  // of other processes
  bool forgotten = false;            // a reader, by the cell that it was to be in
};

Heap& heap() {
  static Heap* const all = new Heap;
  return *all;
}

size_t offsetOf(const void* address) { return static_cast<const std::byte*>(address) - heap().begin; }

// Of the kernel's thread that runs: block, barriers passed, thread in the block; 0: none, or an atomic
// access.
uint32_t threadCode(bool atomic) {
  const Thread* thread = currentThread();
  if (thread == nullptr || atomic) return 0;
  const uint32_t block =
      thread->block.x + thread->grid_size.x * (thread->block.y + thread->grid_size.y * thread->block.z);
  const uint32_t number =
      thread->thread.x + thread->block_size.x * (thread->thread.y + thread->block_size.y * thread->thread.z);
  return ((block + 1) << 16) | ((currentEpoch() & 63) << 10) | number;
}

// Two threads of one kernel without a barrier between them.
bool isRace(uint32_t a, uint32_t b) {
  if (a == b || a == 0 || b == 0) return false;
  if ((a >> 16) != (b >> 16)) return true;
  return ((a >> 10) & 63) == ((b >> 10) & 63);
}

bool raceWith(OpId other, uint32_t other_who, const Running& me, uint32_t who, const char* kind,
              const std::byte* at) {
  if (other == 0) return false;
  if (other == me.id) {
    if (!onDevice() || !isRace(other_who, who)) return false;
    report(*me.name + ": race between threads of the kernel (" + kind + "), " + describeAddress(at));
    return true;
  }
  if (isOrdered(other, me)) return false;
  report(nameOf(other) + " on stream " + std::to_string(lineOf(other)) + " and " + *me.name + " on stream " +
         std::to_string(me.line) + " are not ordered (" + kind + "), " + describeAddress(at));
  return true;
}

// False: it was reported.
bool accessByte(size_t i, bool write, const Running& me, uint32_t who) {
  Heap& h = heap();
  const std::byte* at = h.begin + i;
  if ((h.life[i] & (kAlive | kFreed)) != kAlive) {
    report(*me.name + (write ? " writes " : " reads ") +
           ((h.life[i] & kFreed) != 0 ? "freed memory: " : "outside: ") + describeAddress(at));
    return false;
  }
  if (!write && (h.life[i] & kWritten) == 0) {
    report(*me.name + " reads what nobody wrote: " + describeAddress(at));
    return false;
  }
  Cell& cell = h.cells[i];
  if (raceWith(cell.write, cell.write_who, me, who, write ? "write-write" : "write-read", at)) return false;
  if (write) {
    if (raceWith(cell.read, cell.read_who, me, who, "read-write", at)) return false;
    cell = {me.id, who, 0, 0};
    h.life[i] |= kWritten;
  } else if (cell.read == 0 || isOrdered(cell.read, me)) {
    cell.read = me.id;
    cell.read_who = who;
  } else {
    h.forgotten = true;
  }
  return true;
}

// False: it was reported.
bool isBehindMoreReaders(const Running& me, size_t begin, size_t end) {
  std::vector<Reader>& readers = heap().more_readers;
  for (size_t r = 0; r < readers.size();) {
    Reader& reader = readers[r];
    if (reader.begin >= end || begin >= reader.end) {
      ++r;
      continue;
    }
    if (raceWith(reader.op, 0, me, 0, "read-write", heap().begin + std::max(begin, reader.begin)))
      return false;
    const Reader behind{end, reader.end, reader.op};
    reader.end = begin;
    const bool is_gone = reader.begin >= reader.end;
    if (is_gone) readers.erase(readers.begin() + static_cast<ptrdiff_t>(r));
    if (behind.begin < behind.end) readers.push_back(behind);
    if (!is_gone) ++r;
  }
  return true;
}

void accessBytes(const Running& me, uint32_t who, size_t begin, size_t bytes, bool write) {
  Heap& h = heap();
  const Cell before = h.cells[begin];
  const uint8_t life = h.life[begin];
  if (!accessByte(begin, write, me, who)) return;
  for (size_t i = begin + 1; i < begin + bytes; ++i) {
    // Nearly always the bytes of an element have one past, and what was found of the first holds for them
    // all.
    if (h.life[i] == life && std::memcmp(&h.cells[i], &before, sizeof before) == 0) {
      h.cells[i] = h.cells[begin];
      h.life[i] = h.life[begin];
    } else if (!accessByte(i, write, me, who)) {
      return;
    }
  }
}

// STANDIN_LOG names a file that reports are appended to, and, at exit, a line that says how much was done:
// of processes whose standard error and exit code nobody sees.
void log(const std::string& text) {
  const char* name = std::getenv("STANDIN_LOG");
  if (name == nullptr) return;
  std::FILE* file = std::fopen(name, "a");
  if (file == nullptr) std::abort();
  std::fprintf(file, "%s\n", text.c_str());
  std::fclose(file);
}

struct AtExit {
  ~AtExit() {
    {
      const std::lock_guard held(lock());
      takeAccesses();
      reportLeftLines();
      reportLeftOpen();
      reportLeaks();
      if (operationsDone() > 0) {
        log("process " + std::to_string(::getpid()) + ": " + std::to_string(operationsDone()) +
            " operations, " + std::to_string(heap().reports.size()) + " kinds of faults");
      }
    }
    if (heap().reports.empty()) return;
    std::fprintf(stderr, "stand-in: faults were reported\n");
    std::fflush(nullptr);
    std::_Exit(99);
  }
} at_exit;

}  // namespace

void report(const std::string& text) {
  int& times = heap().reports[text.substr(0, text.find(", byte"))];
  if (++times > kReportsOfAKind || heap().reports.size() > kKinds) return;
  std::fprintf(stderr, "stand-in: %s\n", text.c_str());
  log("stand-in: " + text);
}

void* allocate(size_t bytes, Memory kind) {
  Heap& h = heap();
  if (kind == Memory::kPinned) h.top = (h.top + kPage - 1) / kPage * kPage;  // host_guard.h protects pages
  const size_t at = h.top;
  const size_t room = (bytes + kAlignment) / kAlignment * kAlignment;  // at least a byte that is nobody's
  if (bytes > kHeap || at + room > kHeap) return nullptr;
  h.top += kind == Memory::kPinned ? (room + kPage - 1) / kPage * kPage : room;
  h.blocks[at] = {bytes, kind, false};
  std::memset(h.life + at, kind == Memory::kPinned ? kAlive | kWritten : kAlive, bytes);
  std::memset(h.begin + at, 0xFB, bytes);
  return h.begin + at;
}

bool release(void* begin) {
  takeAccesses();
  Heap& h = heap();
  const auto found = inHeap(begin) ? h.blocks.find(offsetOf(begin)) : h.blocks.end();
  if (found == h.blocks.end() || found->second.freed) {
    report("cudaFree of what is no block, or freed: " + describeAddress(begin));
    return false;
  }
  found->second.freed = true;
  std::memset(h.life + found->first, kFreed, found->second.bytes);
  std::memset(h.begin + found->first, 0xFD, found->second.bytes);
  return true;
}

bool inHeap(const void* address) { return address >= heap().begin && address < heap().begin + kHeap; }

int heapDescriptor() { return heap().file; }
size_t heapBytes() { return kHeap; }
size_t heapOffset(const void* address) { return offsetOf(address); }

size_t bytesOfBlock(const void* begin) {
  const auto found = inHeap(begin) ? heap().blocks.find(offsetOf(begin)) : heap().blocks.end();
  const bool is_one = found != heap().blocks.end() && !found->second.freed;
  return is_one && found->second.kind == Memory::kDevice ? found->second.bytes : 0;
}

bool isPinned(const void* address) {
  if (!inHeap(address)) return false;
  const auto next = heap().blocks.upper_bound(offsetOf(address));
  return next != heap().blocks.begin() && std::prev(next)->second.kind == Memory::kPinned;
}

std::string describeAddress(const void* address) {
  if (!inHeap(address)) return "an address that is not the device's";
  const size_t at = offsetOf(address);
  const auto next = heap().blocks.upper_bound(at);
  if (next == heap().blocks.begin()) return "before all blocks";
  const auto& [begin, block] = *std::prev(next);
  return "byte " + std::to_string(at - begin) + " of a block of " + std::to_string(block.bytes);
}

void access(const void* address, size_t bytes, bool write, bool atomic) {
  if (bytes == 0) return;
  if (!inHeap(address)) return accessOfAnother(address, bytes, write);
  takeAccesses();
  const Running me = running();
  const size_t begin = offsetOf(address);
  if (write && !heap().more_readers.empty() && !isBehindMoreReaders(me, begin, begin + bytes)) return;
  accessBytes(me, threadCode(atomic), begin, bytes, write);
}

void readFromOutside(const Running& reader, size_t offset, size_t bytes) {
  Heap& h = heap();
  h.forgotten = false;
  accessBytes(reader, 0, offset, bytes, false);
  if (h.forgotten) h.more_readers.push_back({offset, offset + bytes, reader.id});
}

void forget(const void* begin, size_t bytes) {
  uint8_t* life = heap().life + offsetOf(begin);
  for (size_t i = 0; i < bytes; ++i) life[i] &= static_cast<uint8_t>(~kWritten);
}

void accessShared(const void* address, bool write) {
  Cell& cell = heap().shared[address];  // its numbers are blocks here
  const uint32_t who = threadCode(false);
  const OpId block = currentBlock();
  const char* kind = nullptr;
  if (cell.write == block && isRace(cell.write_who, who)) kind = write ? "write-write" : "write-read";
  if (write && cell.read == block && isRace(cell.read_who, who)) kind = "read-write";
  if (kind != nullptr) return report(*running().name + ": race in shared memory (" + kind + ")");
  if (write) {
    cell.write = block;
    cell.write_who = who;
  } else if (cell.read != block || !isRace(cell.read_who, who)) {
    cell.read = block;
    cell.read_who = who;
  }
}

void forgetShared() { heap().shared.clear(); }

void reportLeaks() {
  size_t count = 0, bytes = 0;
  for (const auto& [at, block] : heap().blocks) {
    count += block.freed ? 0 : 1;
    bytes += block.freed ? 0 : block.bytes;
  }
  if (count > 0)
    report(std::to_string(count) + " blocks of " + std::to_string(bytes) + " bytes are left at exit");
}

}  // namespace standin
