// Device memory and events that other processes of the machine open (cudaIpc*): who comes before whom across
// processes. Whoever has made memory is told of each access that another process makes to it, with the clock
// of that operation, and checks it in the shadow that it has anyway (heap.h); an event that was recorded
// carries the clock of its process along. Internal to the stand-in; all calls under its lock (lines.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace standin {

// An operation of any process; one of `line` that is not reached later than it.
struct Stamp {
  int32_t process = 0;
  uint32_t line = 0;
  uint32_t id = 0;
};

// What handles hold.
struct SharedHandle {
  uint64_t magic = 0, secret = 0;
  int32_t process = 0, board = -1, heap = -1;  // and its descriptors
  uint64_t number = 0;                         // of an event; of memory: where in the heap
  uint64_t bytes = 0;                          // of memory
};

struct Board;

// Of one process that has recorded it; others wait.
class SharedEvent {
 public:
  SharedEvent(Board* board, size_t slot, bool own) : board_(board), slot_(slot), own_(own) {}
  bool isOwn() const { return own_; }
  size_t number() const { return slot_; }  // of those that its process shares
  // What is recorded from now on has this clock, and has happened with operation `id` of `line`: a ticket.
  uint64_t record(const std::vector<Stamp>& clock, uint32_t line, uint32_t id);
  void happen(uint64_t ticket);
  // Whoever asks wants it to happen (lazy).
  bool hasHappened(uint64_t ticket) const;
  // The last record; ticket 0: none.
  std::pair<uint64_t, std::vector<Stamp>> last() const;

 private:
  Board* board_;
  size_t slot_;
  bool own_;
};

// Of this process; what it gives may be opened by others.
SharedHandle handleOfMemory(size_t offset, size_t bytes);
std::pair<SharedHandle, std::shared_ptr<SharedEvent>> shareEvent();
// Of others. nullptr: there is no such process, or it is this one, or the handle is none; `why` says it.
void* openMemory(const SharedHandle& handle, std::string& why);
std::shared_ptr<SharedEvent> openEvent(const SharedHandle& handle, std::string& why);
// False: it is not open.
bool closeMemory(const void* begin);

// In memory that another process made, open or not.
bool isOfAnother(const void* address);
// Whoever runs (lines.h) accesses it.
void accessOfAnother(const void* address, size_t bytes, bool write);
// Others have accessed memory of this process: checks it.
void takeAccesses();
void reportLeftOpen();

}  // namespace standin
