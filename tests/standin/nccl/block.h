// What the processes of a communicator share: a block of memory without a name in the file system, so that
// nothing is left when they are killed. Others find it through the process that made it.
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace standin::nccl {

constexpr int kMostRanks = 64;
constexpr int kMostElements = 256;  // calls of a group on one communicator
constexpr int kSplitSlots = 4;

enum class Call : int32_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kSend, kRecv };

// One call of a rank, while its kernel is resident.
struct Element {
  Call call = Call::kSend;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int32_t peer = 0;      // of a send or receive; else the root
  uint64_t count = 0;    // as the call has it
  uint64_t index = 0;    // among the collectives of this rank, or its sends or receives with this peer
  int32_t payload = -1;  // a file of the rank's process with what it sends; -1: nothing
  int32_t taken = 0;     // by how many ranks
};

enum class Phase : int32_t { kAbsent, kJoined, kFinalized, kLeft, kAborted };

// Where a block is found.
struct Place {
  pid_t process = 0;
  int32_t file = -1;
  uint64_t id = 0;
};

struct Split {
  uint64_t number = 0;  // of those of this rank, from 1 on
  int32_t color = 0, key = 0;
  Place child;  // of the first rank with this color
};

struct Member {
  pid_t process = 0;
  int32_t device = -1;  // as the machine counts them
  Phase phase = Phase::kAbsent;
  uint64_t created = 0;  // among the communicators of its process
  uint64_t moves = 0;    // whatever its process does on its streams
  Split splits[kSplitSlots];
  int32_t elements = 0;
  Element element[kMostElements];
};

struct Block {
  uint64_t id = 0;
  pthread_mutex_t lock;
  int32_t ranks = 0;       // 0: nobody has joined
  int32_t deadlocked = 0;  // a rank has said so: the others do, too
  Member members[kMostRanks];
};

// Its lock; a process that was killed with it leaves it usable.
class Held {
 public:
  explicit Held(Block& block);
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Block& block_;
};

Place makeBlock();
// nullptr: its process is gone.
Block* openBlock(const Place& place);
void closeBlock(Block* block);

// A file of this process with a copy of the bytes; close it when they are taken.
int makePayload(const void* bytes, size_t count);
// Empty: its process is gone.
std::vector<std::byte> readPayload(pid_t process, int file, size_t count);

}  // namespace standin::nccl
