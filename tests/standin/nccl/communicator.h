// A rank of a communicator, and the kernels that it has launched. All under the stand-in's lock (lines.h).
//
// A launch is what a group, or a call without one, does on one communicator: one operation of a stream. Its
// turn comes when its stream gets there, no earlier launch of the communicator is unfinished (as with NCCL,
// which runs those of one communicator one after another, on whatever streams), and there is room on the
// device. Then it is *resident*: it has read what it sends, others see its calls, and it stays until each of
// them has met its counterparts: a rendezvous, with no buffering.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/standin/lines.h"
#include "tests/standin/nccl/block.h"

namespace standin::nccl {

using Time = std::chrono::steady_clock::time_point;
struct Communicator;

struct Piece {
  Element element;  // `payload` and `taken` are the shared copy's
  const void* from = nullptr;
  void* to = nullptr;
  size_t from_bytes = 0, to_bytes = 0;
  std::vector<std::vector<std::byte>> given;  // by rank
  std::vector<bool> met;                      // by rank
  std::vector<std::byte> result;
  bool finished = false;
};

struct Launch {
  std::shared_ptr<Communicator> communicator;
  std::vector<Piece> pieces;
  Stream* stream = nullptr;
  Running operation;
  uint64_t number = 0;  // of the communicator's
  bool reached = false, resident = false;
};

struct Communicator {
  Block* block = nullptr;
  int rank = 0, ranks = 0;
  std::string name;
  bool blocking = true;
  ncclResult_t state = ncclInProgress;  // of ncclCommGetAsyncError
  std::string last_error;
  bool entered = false;  // its block knows it
  bool finalizing = false, finalized = false, aborted = false;
  int device = 0;          // as the process counts
  int machine_device = 0;  // as the machine does
  uint64_t created = 0;
  // What is still to do until it can be used, step by step: true when done, or failed. Never blocks.
  std::function<bool()> setup;
  std::function<void()> deferred;  // launches that wait for the caller to ask for the state
  std::shared_ptr<Communicator> split_child;
  ncclComm_t* split_place = nullptr;

  std::deque<std::shared_ptr<Launch>> launches;  // not finished
  uint64_t launched = 0, wanted = 0, collectives = 0, splits = 0;
  std::vector<uint64_t> sends, receives;  // issued, by peer
  std::vector<uint64_t> sends_done, receives_done;
  uint64_t collectives_done = 0;
  std::vector<int> processes;  // of the ranks: pidfds; -1: not opened
  uint64_t moves_seen = 0;     // of all ranks
  Time still_since{}, failed_at{};
  std::vector<bool> connected;

  Communicator() = default;
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Member& self() { return block->members[rank]; }
  bool hasFailed() const { return state != ncclSuccess && state != ncclInProgress; }
};

// "rank 1 of communicator 5f3a"
std::string describe(const Communicator& communicator);
// "ncclSend 3 of 4 float32 to rank 1"
std::string describe(const Element& element);
std::string describe(const Launch& launch);

// It can no longer be used; what it has launched blocks its streams until it is aborted.
void fail(Communicator& communicator, ncclResult_t code, const std::string& why);

// STANDIN_NCCL_RESIDENT=N: kernels that a device has room for at once.
int mostResident();

// Enqueues them on the first stream; the others wait for it, and it for them.
void launch(const std::shared_ptr<Communicator>& communicator, std::vector<Piece> pieces,
            const std::vector<Stream*>& streams);
void abort(Communicator& communicator);
// All that it has launched is done.
bool isQuiet(Communicator& communicator);
// Some rank waits for this one's first unfinished launch.
bool isWanted(Communicator& communicator);

}  // namespace standin::nccl
