// One rank's end of the messages between hosts: what all transports of that kind have in common. A transport
// derives from it and moves the bytes; point-to-point operations (mesh_communicator.h) and collectives
// (mesh_collectives.h) are both built on it.
//
// Messages of a channel between an ordered pair of ranks match in the order posted. Small ones travel by
// themselves; large ones are announced, and flow once the receiver has found their size to be right and has
// given memory for them. Of a receive that is posted before its message (expect), whoever comes second starts
// the flow: the thread that posts the receive, or the one that hears the announcement.
//
// Thread rules: one thread at a time calls, but interrupt(). Errors: every failure breaks the mesh; later
// calls repeat the first error.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "transport/collectives/operation.h"

namespace pipeshard::mesh {

using pipeshard::Channel;
using pipeshard::kChannels;

constexpr size_t kEagerBytes = 16 << 10;
// Of messages on their way to one peer that have not been received; what is more waits at the sender.
constexpr size_t kEagerWindow = 1 << 20;

struct Ticket {
  Channel channel;
  RankId peer;
  uint64_t number;
  bool copied;  // the bytes may be overwritten at once
};

// A large message on its way into memory: what a transport keeps of it. Destroyed when it is there, or given
// up: then the memory is not touched any more.
class Flow {
 public:
  virtual ~Flow() = default;
};

// A message that is being received: its bytes are there once finish() has returned.
struct Incoming {
  Channel channel;
  Waiting waiting;
  std::unique_ptr<Flow> flow;  // null when everything is there
};

// A message that the peer has announced or sent.
struct Arrival {
  Operation operation;
  uint64_t bytes;
  bool eager;
  std::vector<std::byte> payload;
  uint64_t number = 0;  // of the channel from this peer, where the transport counts them
};

// What has come from one peer and was not taken, and what is expected from it.
struct Inbox {
  struct Expected {
    std::span<std::byte> to;
    bool begun = false;  // the message has come, and its bytes are there or on their way
    std::unique_ptr<Flow> flow;
  };
  std::array<std::deque<Arrival>, kChannels> arrived;
  std::deque<Expected> expected;  // of the next point-to-point messages
};

enum class Contact { kConnecting, kOpen, kEnded, kLost };

class MessageMesh {
 public:
  // Error(kConfiguration) for a rank that is not below `size`, or a timeout that is not positive.
  MessageMesh(RankId rank, int size, std::chrono::milliseconds timeout);
  virtual ~MessageMesh() = default;
  MessageMesh(const MessageMesh&) = delete;
  MessageMesh& operator=(const MessageMesh&) = delete;

  RankId rank() const { return rank_; }
  int size() const { return size_; }

  // Hands a message over. `data` must stay unchanged until it is completed, unless Ticket::copied.
  virtual Ticket post(Channel channel, RankId peer, Operation operation, std::span<const std::byte> data) = 0;
  // The receiver has all of it.
  virtual bool completed(const Ticket& ticket) = 0;
  virtual void awaitCompleted(const Ticket& ticket, const Waiting& waiting) = 0;

  // Waits until the next message of the channel is announced, checks that it is what the caller expects, and
  // lets it flow into `to`. waiting.bytes is to.size(). At most one message per channel and peer at a time.
  Incoming take(Channel channel, std::span<std::byte> to, const Waiting& waiting);
  // Waits until all of it is there, and tells the sender.
  virtual void finish(Incoming& incoming) = 0;
  // Lets the next point-to-point message from `peer` that is not expected yet flow into `to` as soon as it is
  // announced. take() with the same memory, in the same order, finds what is wrong with the message.
  void expect(RankId peer, std::span<std::byte> to);
  // What was expected from the peer is not taken: its memory is not touched any more, and the mesh is broken.
  void giveUp(RankId peer);

  // Throws the first error again, if there was one; and when `peer` is out of range, this rank, or one that
  // it is not connected to.
  void checkUsable() const;
  void checkPeer(RankId peer) const;
  // Any thread: ends this and all later waits.
  virtual void interrupt();
  void whileWaiting(std::function<bool()> work) { work_ = std::move(work); }
  WaitedTime& waitedTime() { return waited_; }
  const WaitedTime& waitedTime() const { return waited_; }

 protected:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  // How often a wait serves the communicator that this one is used with.
  static constexpr std::chrono::microseconds kWorkSlice{200};

  virtual bool speaksTo(RankId peer) const = 0;

  // All below with the mutex held.
  virtual Contact contactOf(RankId peer) const = 0;  // of one that it speaks to
  virtual const std::string& lossReason(RankId peer) const = 0;
  virtual Inbox& inboxOf(RankId peer) = 0;
  // The message flows into `to`. Throws when the connection is broken.
  virtual std::unique_ptr<Flow> startFlow(Channel channel, RankId peer, const Arrival& arrival,
                                          std::span<std::byte> to) = 0;
  virtual void noteLost(RankId peer, const std::string& reason) = 0;
  // The mesh is broken: memory of the caller is not touched any more, and peers are told.
  virtual void letGo() = 0;

  // Starts flows into what is expected from the peer, as far as messages have come.
  void beginExpected(RankId peer);
  template <typename Ready>
  void await(Lock& lock, const Waiting& waiting, Ready&& ready);
  void checkWait(const Waiting& waiting, Clock::time_point deadline);
  bool isLost(std::span<const RankId> members) const;
  std::string describeWait(const Waiting& waiting) const;
  [[noreturn]] void breakLost(const Waiting& waiting, RankId lost);
  [[noreturn]] void breakWith(ErrorCode code, std::string message);

  RankId rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::function<bool()> work_;
  std::optional<Error> broken_;
  WaitedTime waited_;
  mutable std::mutex mutex_;         // guards what comes from peers, and the flag below
  std::condition_variable changed_;  // a peer's state
  bool interrupted_ = false;

 private:
  bool begin(RankId peer, const Arrival& arrival, Inbox::Expected& expected);
  void checkArrival(const Arrival& arrival, const Waiting& waiting);
};

template <typename Ready>
void MessageMesh::await(Lock& lock, const Waiting& waiting, Ready&& ready) {
  const auto deadline = Clock::now() + timeout_;
  while (!ready()) {
    bool again = false;
    if (work_) {
      lock.unlock();
      again = work_();
      lock.lock();
      if (ready()) return;
    }
    checkWait(waiting, deadline);
    changed_.wait_until(lock, again ? std::min(deadline, Clock::now() + kWorkSlice) : deadline);
  }
}

}  // namespace pipeshard::mesh
