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
#include <vector>

#include "transport/collectives/communicator.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {

class SharedMemoryCommunicator : public Communicator {
 public:
  // `timeout` bounds every single wait. All ranks must open, each once per segments (a restarted job makes
  // new ones). A rank that destroys its communicator is not waited for any more: who still waits for it gets
  // Error(kPeerUnavailable). `names`, one per rank, is what error messages call the ranks (their numbers in a
  // larger job); empty: their own numbers.
  static std::unique_ptr<SharedMemoryCommunicator> open(SharedSegments segments, RankId rank,
                                                        std::chrono::milliseconds timeout,
                                                        std::vector<RankId> names = {});

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
