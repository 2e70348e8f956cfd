#include "tests/standin/sharing.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"

namespace standin {
namespace {

constexpr uint64_t kMagic = 0x7374616e64696e31;
constexpr size_t kSlots = 1024, kStamps = 1024, kAccesses = 2048, kLines = 512, kName = 96;
constexpr std::chrono::microseconds kPause{200};
constexpr std::chrono::seconds kLongestWait{30};  // for another process to take what is said to it

// An event that others may wait for.
struct Slot {
  std::atomic<uint64_t> happened, wanted;  // tickets
  uint64_t recorded;
  uint32_t line, id;  // of the last record
  uint32_t count;
  Stamp clock[kStamps];
};

// Another process has read memory of this one.
struct Access {
  Stamp op;
  uint64_t offset, bytes;
  uint32_t count;
  Stamp clock[kLines];  // of this process alone
  char name[kName];
};

}  // namespace

// What a process shows to others; in shared memory, at first all zero.
struct Board {
  uint64_t secret;
  pthread_mutex_t mutex;  // of all but atomics
  uint32_t slots;
  Slot slot[kSlots];
  std::atomic<uint32_t> accesses;
  Access access[kAccesses];
};

namespace {

class Held {
 public:
  explicit Held(Board& board) : board_(board) {
    if (::pthread_mutex_lock(&board_.mutex) == EOWNERDEAD) ::pthread_mutex_consistent(&board_.mutex);
  }
  ~Held() { ::pthread_mutex_unlock(&board_.mutex); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Board& board_;
};

// Another process, as it is seen from here.
struct Other {
  Board* board = nullptr;
  std::byte* heap = nullptr;
  struct Open {
    size_t bytes = 0;
    int times = 0;
  };
  std::map<size_t, Open> open;  // by offset
};

struct Sharing {
  int descriptor = -1;
  Board* own = nullptr;
  std::map<int32_t, Other> others;  // by process
};

Sharing& sharing() {
  static Sharing* const all = new Sharing;
  return *all;
}

template <typename T>
T* mapped(int descriptor, size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  return at == MAP_FAILED ? nullptr : static_cast<T*>(at);
}

// Does what others want to have happened, and takes what they have read, while this process is elsewhere.
void serve(Board* board) {
  while (true) {
    std::this_thread::sleep_for(kPause);
    const std::lock_guard held(lock());
    takeAccesses();
    for (size_t s = 0; s < board->slots; ++s) {
      Slot& slot = board->slot[s];
      if (slot.wanted > slot.happened) advanceLine(slot.line, slot.id);
    }
  }
}

Board& ownBoard() {
  Sharing& all = sharing();
  if (all.own != nullptr) return *all.own;
  all.descriptor = ::memfd_create("standin-board", MFD_CLOEXEC);
  if (all.descriptor < 0 || ::ftruncate(all.descriptor, sizeof(Board)) != 0) std::abort();
  all.own = mapped<Board>(all.descriptor, sizeof(Board));
  if (all.own == nullptr) std::abort();
  std::random_device random;
  all.own->secret = uint64_t{random()} << 32 | random();
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&all.own->mutex, &attributes);
  std::thread(serve, all.own).detach();
  return *all.own;
}

SharedHandle handle() {
  SharedHandle made;
  made.magic = kMagic;
  made.secret = ownBoard().secret;
  made.process = ::getpid();
  made.board = sharing().descriptor;
  made.heap = heapDescriptor();
  return made;
}

int openOf(int32_t process, int descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

Other* otherOf(const SharedHandle& handle, std::string& why) {
  why = handle.magic != kMagic         ? "no handle"
        : handle.process == ::getpid() ? "a handle is opened by the process that made it"
                                       : "";
  if (!why.empty()) return nullptr;
  Other& other = sharing().others[handle.process];
  if (other.board == nullptr) {
    const int board = openOf(handle.process, handle.board), heap = openOf(handle.process, handle.heap);
    if (board >= 0 && heap >= 0) {
      other.board = mapped<Board>(board, sizeof(Board));
      other.heap = mapped<std::byte>(heap, heapBytes());
    }
    ::close(board);
    ::close(heap);
  }
  if (other.board != nullptr && other.heap != nullptr && other.board->secret == handle.secret) return &other;
  why = "a handle of a process that is gone";
  return nullptr;
}

std::pair<const int32_t, Other>* findOther(const void* address) {
  for (auto& one : sharing().others) {
    const std::byte* heap = one.second.heap;
    if (heap != nullptr && address >= heap && address < heap + heapBytes()) return &one;
  }
  return nullptr;
}

bool goesOn(const Access& before, const Access& next) {
  return before.op.process == next.op.process && before.op.id == next.op.id &&
         before.offset + before.bytes == next.offset;
}

void append(Board& board, const Access& access) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (true) {
    {
      const Held held(board);
      const uint32_t count = board.accesses;
      for (uint32_t k = count; k > 0 && k + 8 > count; --k) {  // one that goes on where the operation was
        if (!goesOn(board.access[k - 1], access)) continue;
        board.access[k - 1].bytes += access.bytes;
        return;
      }
      if (count < kAccesses) {
        board.access[count] = access;
        board.accesses = count + 1;
        return;
      }
    }
    if (std::chrono::steady_clock::now() > end)
      return report(std::string(access.name) +
                    ": the memory's process does not take what has been read of it");
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

uint64_t SharedEvent::record(const std::vector<Stamp>& clock, uint32_t line, uint32_t id) {
  if (clock.size() > kStamps) std::abort();
  const Held held(*board_);
  Slot& slot = board_->slot[slot_];
  slot.line = line;
  slot.id = id;
  slot.count = static_cast<uint32_t>(clock.size());
  std::copy(clock.begin(), clock.end(), slot.clock);
  return ++slot.recorded;
}

void SharedEvent::happen(uint64_t ticket) { board_->slot[slot_].happened = ticket; }

bool SharedEvent::hasHappened(uint64_t ticket) const {
  Slot& slot = board_->slot[slot_];
  if (slot.happened >= ticket) return true;
  uint64_t wanted = slot.wanted;
  while (wanted < ticket && !slot.wanted.compare_exchange_weak(wanted, ticket)) {
  }
  return false;
}

std::pair<uint64_t, std::vector<Stamp>> SharedEvent::last() const {
  const Held held(*board_);
  const Slot& slot = board_->slot[slot_];
  return {slot.recorded, std::vector<Stamp>(slot.clock, slot.clock + slot.count)};
}

SharedHandle handleOfMemory(size_t offset, size_t bytes) {
  SharedHandle made = handle();
  made.number = offset;
  made.bytes = bytes;
  return made;
}

std::pair<SharedHandle, std::shared_ptr<SharedEvent>> shareEvent() {
  SharedHandle made = handle();
  Board& board = ownBoard();
  if (board.slots == kSlots) std::abort();
  made.number = board.slots++;
  return {made, std::make_shared<SharedEvent>(&board, made.number, true)};
}

void* openMemory(const SharedHandle& handle, std::string& why) {
  Other* other = otherOf(handle, why);
  if (other == nullptr) return nullptr;
  Other::Open& open = other->open[handle.number];
  open.bytes = handle.bytes;
  ++open.times;
  return other->heap + handle.number;
}

std::shared_ptr<SharedEvent> openEvent(const SharedHandle& handle, std::string& why) {
  Other* other = otherOf(handle, why);
  return other == nullptr ? nullptr : std::make_shared<SharedEvent>(other->board, handle.number, false);
}

bool closeMemory(const void* begin) {
  auto* other = findOther(begin);
  if (other == nullptr) return false;
  auto& open = other->second.open;
  const auto found = open.find(static_cast<const std::byte*>(begin) - other->second.heap);
  if (found == open.end()) return false;
  if (--found->second.times == 0) open.erase(found);
  return true;
}

bool isOfAnother(const void* address) { return findOther(address) != nullptr; }

void accessOfAnother(const void* address, size_t bytes, bool write) {
  auto* const found = findOther(address);
  const Running me = running();
  if (found == nullptr) return report(*me.name + ": an address that is not the device's");
  auto& [process, other] = *found;
  const size_t at = static_cast<const std::byte*>(address) - other.heap;
  const auto next = other.open.upper_bound(at);
  if (next == other.open.begin() || at + bytes > std::prev(next)->first + std::prev(next)->second.bytes)
    return report(*me.name + ": memory of another process that is not open");
  if (write) return report(*me.name + " writes memory of another process, which the stand-in does not have");
  Access access{};
  access.op = {::getpid(), me.line, me.id};
  access.offset = at;
  access.bytes = bytes;
  for (const Stamp& stamp : stampsOf(*me.clock)) {
    if (stamp.process != process) continue;
    if (access.count == kLines) std::abort();
    access.clock[access.count++] = stamp;
  }
  const std::string name = *me.name + " of process " + std::to_string(::getpid());
  std::strncpy(access.name, name.c_str(), kName - 1);
  append(*other.board, access);
}

void takeAccesses() {
  Board* board = sharing().own;
  if (board == nullptr || board->accesses == 0) return;
  std::vector<Access> taken;
  {
    const Held held(*board);
    taken.assign(board->access, board->access + board->accesses);
    board->accesses = 0;
  }
  for (const Access& access : taken) {
    const Clock clock = clockOf({access.clock, access.clock + access.count});
    const std::string name = access.name;
    const OpId op = operationOf(access.op, name);
    readFromOutside({op, lineOf(op), &clock, &name}, access.offset, access.bytes);
  }
}

void reportLeftOpen() {
  size_t count = 0;
  for (const auto& [process, other] : sharing().others) count += other.open.size();
  if (count > 0) report(std::to_string(count) + " blocks of other processes are left open at exit");
}

}  // namespace standin
