// Tensors between the processes of a job. One interface for all transports: shared memory on a node, an
// encrypted wire or Gloo between nodes, and both joined. GPUs that have NCCL give each other tensors past it
// (runtime/device/device_transfers.h).
//
// Ranks of a communicator are 0..size-1. Operations between an ordered pair of ranks match in the order
// posted. Every wait has a deadline; when it passes, or when a peer dies, the operation throws Error(kHang)
// or Error(kPeerUnavailable) naming the peer and the bytes, and the communicator is broken: only its
// destruction is allowed afterwards. Thread rules: one thread uses a communicator at a time, its handles
// included; interrupt() is for any other. A rank whose second thread communicates, too, has a second
// communicator for it (SharedMemoryCommunicator::openSecond, HostRelay::attach, GlooOptions::channel): the
// second ones of all ranks are a world of their own, where nothing matches, or waits for, what the first ones
// do.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/ids.h"

namespace pipeshard {

enum class Reduction : uint8_t { kSum, kMax, kMin };

// Ranks that take part in a collective, ascending, containing the caller. Collectives of one group must be
// called by all its members in the same order. Sums are taken in rank order: the same bits on every rank and
// in every run.
using Group = std::vector<RankId>;

// A posted send. wait() returns when the peer has the data, so that the buffer may be overwritten. Destroying
// it without waiting is allowed only when the communicator is broken or destroyed.
class SendHandle {
 public:
  virtual ~SendHandle() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};

// A posted receive. wait() returns when the data is there. Destroying it without waiting gives the receive
// up: its memory is not written any more, and the communicator, which must still be there, is broken.
class ReceiveHandle {
 public:
  virtual ~ReceiveHandle() = default;
  virtual void wait() = 0;
  // After wait(): how much of it was spent before the message had begun to come, as Communicator::waited().
  virtual std::chrono::nanoseconds waited() const { return {}; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual RankId rank() const = 0;
  virtual int size() const = 0;
  // Of the last receive or collective: how long it was blocked before each peer that it takes something from
  // had begun its part. The rest of its time was transfer. Precision: that of waking up, some microseconds;
  // over a network a message has come when its first word has.
  virtual std::chrono::nanoseconds waited() const { return {}; }

  // Posts a send and returns at once. `data` must stay unchanged until the handle is done.
  virtual std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) = 0;
  // Waits for the matching send; sizes must agree (Error(kVersionMismatch) names both).
  virtual void receive(RankId peer, std::span<std::byte> data) = 0;
  // Posts a receive and returns at once. `data` belongs to it until wait() has returned. Several may be
  // posted from one peer; they are to be waited for in their order, and before receive() from this peer
  // (Error(kInternal)). The bytes come while the caller computes: between nodes the transport's thread moves
  // them, in shared memory a thread that the first posted receive starts. What is wrong with a message, or
  // its peer, is said by wait(), whose deadline begins with it. The sender may learn that the message has
  // been received before wait() was called, or in wait(). (By default: all happens in wait().)
  virtual std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data);

  // Element counts are per rank; `count` elements of `type` at each pointer unless said otherwise. In place
  // (input == output) is allowed for allReduce and broadcast.
  virtual void allReduce(const Group& group, DataType type, Reduction reduction, const void* input,
                         void* output, size_t count) = 0;
  // output holds group.size() * count elements: the inputs in rank order.
  virtual void allGather(const Group& group, DataType type, const void* input, void* output,
                         size_t count) = 0;
  // input holds group.size() * count elements; rank i of the group gets the reduction of everybody's i-th
  // block.
  virtual void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input,
                             void* output, size_t count) = 0;
  // input and output hold group.size() * count elements: block j goes to rank j of the group.
  virtual void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) = 0;
  // root is an index into the group.
  virtual void broadcast(const Group& group, DataType type, int root, void* data, size_t count) = 0;
  virtual void barrier(const Group& group) = 0;

  // Any thread: the wait that is under way, and every later one, ends with Error(kPeerUnavailable). For a
  // rank that ends because of an error elsewhere while another of its threads is inside this communicator.
  virtual void interrupt() {}

  // For communicators that are used together by one thread. progress() moves posted sends on without waiting;
  // true when some still need calls of this rank to move. whileWaiting() sets what the other one's waits call
  // now and then, so that a wait here does not hold up a send there: `work` returns true to be called again
  // soon.
  virtual bool progress() { return false; }
  virtual void whileWaiting(const std::function<bool()>&) {}
};

}  // namespace pipeshard
