// Communicator between the processes of one node, over anonymous shared memory (memfd: it has no name, so
// nothing can survive the job).
//
// The launcher creates a SharedSegments before it starts the workers and passes the file descriptors to them
// by inheritance. Each worker then opens its communicator; its own arena (where its tensors live) is a
// segment too, so that a receiver copies straight out of the sender's arena: one copy, at the speed of
// memcpy.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/collectives/communicator.h"

namespace pipeshard {

// File descriptors of a job's segments: one for mailboxes and flags, one arena per rank (size 0 until the
// rank sizes it). Owned: closed on destruction. Not close-on-exec in the children that `inheritable` text is
// handed to.
class SharedSegments {
 public:
  static SharedSegments create(int size);
  // From the text of describe(), in a child that inherited the descriptors.
  static SharedSegments inherit(const std::string& description);
  SharedSegments(SharedSegments&&) noexcept;
  SharedSegments& operator=(SharedSegments&&) noexcept;
  ~SharedSegments();

  std::string describe() const;  // "control=5,arenas=6:7:8"
  int size() const;
  // What mailboxes and flags of so many ranks take: one segment, mapped by all of them. Beside it there are
  // only the arenas.
  static int64_t communicatorBytes(int size);
  // The same, as this segment has it.
  int64_t communicatorBytes() const;
  int controlDescriptor() const;
  int arenaDescriptor(int rank) const;

  // Marks a rank as dead (called by the launcher): every wait for it, in any process, ends with
  // Error(kPeerUnavailable).
  void markDead(int rank);

 private:
  SharedSegments() = default;
  int control_ = -1;
  std::vector<int> arenas_;
};

class SharedMemoryCommunicator : public Communicator {
 public:
  // `timeout` bounds every single wait. All ranks must open, each once per segments (a restarted job makes
  // new ones). A rank that destroys its communicator is not waited for any more: who still waits for it gets
  // Error(kPeerUnavailable). `names`, one per rank, is what error messages call the ranks (their numbers in a
  // larger job); empty: their own numbers.
  static std::unique_ptr<SharedMemoryCommunicator> open(SharedSegments segments, int rank,
                                                        std::chrono::milliseconds timeout,
                                                        std::vector<int> names = {});

  // Sizes this rank's arena and maps it, pre-faulted: call once, before the first operation that uses it.
  // Sends out of the arena are received without a second copy and (up to 128 outstanding per pair) need
  // nothing more from the sender; sends of other memory are staged, and what does not fit at once goes on
  // inside the sender's next waits (or SendHandle::done). Error(kOutOfMemory) names the bytes.
  virtual std::span<std::byte> createArena(size_t bytes) = 0;

  // This rank's second communicator, for another thread; once, after createArena. It knows the arena, and
  // outlives this one if need be. It has the same ranks, names and timeout; of its peers, only those that it
  // exchanges something with must have opened theirs.
  virtual std::unique_ptr<Communicator> openSecond() = 0;
};

}  // namespace pipeshard
