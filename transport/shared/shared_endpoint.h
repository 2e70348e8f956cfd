// One rank's end of the shared memory transport: posting messages, taking them, waiting. Point-to-point
// operations and collectives are both built from it; the memory it works on is described in
// transport/shared/shared_layout.h.
//
// Posting never blocks. What does not fit at once (mailbox or slots full) stays in a local queue that moves
// on inside every later wait of this rank, whomever that wait is for. So a rank that waits never holds up a
// rank that waits for it, and no order of asynchronous sends can deadlock by itself.
//
// Thread rules: one thread at a time, but interrupt(); beside it the thread of an EarlyReceiver
// (transport/shared/early_receiver.h). Errors: every failure breaks the endpoint; later calls repeat the
// first error.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "transport/collectives/operation.h"
#include "transport/shared/doorbell.h"
#include "transport/shared/mapping.h"
#include "transport/shared/shared_layout.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard::shm {

using pipeshard::Waiting;

// A posted message. Under kStaged the bytes may be overwritten once they have left the local queue, under
// kArena once the receiver has completed the message.
struct Ticket {
  Channel channel;
  RankId peer;
  uint64_t sequence;
  Route route;
};

class Endpoint {
 public:
  // `control` is a mapping of the segments' control segment; shared so that tests can run several ranks in
  // one process. `names`: what messages call the ranks; empty for their own numbers.
  Endpoint(SharedSegments segments, std::shared_ptr<Mapping> control, RankId rank,
           std::chrono::milliseconds timeout, std::vector<RankId> names = {});
  // The same rank's end on another lane than `first`, for another thread. It knows the arena that `first` has
  // made before.
  Endpoint(const Endpoint& first, Lane lane);
  Endpoint(const Endpoint&) = delete;
  ~Endpoint();
  Endpoint& operator=(const Endpoint&) = delete;

  RankId rank() const { return rank_; }
  int size() const { return view_.size(); }

  std::span<std::byte> createArena(size_t bytes);

  // Queues a message and pushes what fits. `data` must stay unchanged as Ticket says. `staged` forbids the
  // arena route.
  Ticket post(Channel channel, RankId peer, Operation operation, std::span<const std::byte> data,
              bool staged = false);
  // The receiver has all of it.
  bool completed(const Ticket& ticket) const;
  // The bytes may be overwritten.
  bool settled(const Ticket& ticket) const;

  // Moves queued messages on, as far as mailboxes and slots allow. True when some remain.
  bool progress();

  // Returns once ready() is true. Throws kPeerUnavailable or kHang, and breaks the endpoint.
  template <typename Ready>
  void await(const Waiting& waiting, Ready&& ready);

  // Any thread: ends this and all later waits.
  void interrupt();

  // A posted receive from `peer` is given up: nothing can be received in order any more, so the endpoint is
  // broken.
  void giveUp(RankId peer);

  WaitedTime& waitedTime() { return waited_; }
  const WaitedTime& waitedTime() const { return waited_; }

  // Throws the first error again, if there was one; and when `peer` is out of range.
  void checkUsable(RankId peer) const;
  [[noreturn]] void breakWith(ErrorCode code, std::string message);

 private:
  friend class IncomingMessage;
  friend class EarlyReceiver;

  struct Outgoing {
    const std::byte* data;
    size_t bytes;
    Operation operation;
    Route route;
    uint64_t offset;  // in the arena
    size_t staged;    // bytes that are in slots
    bool posted;      // the descriptor is in the mailbox
  };
  struct OutBox {
    std::deque<Outgoing> queue;
    uint64_t next_sequence = 0;  // of the next message to be queued
    uint64_t left = 0;           // messages that have left the queue
  };
  using Clock = std::chrono::steady_clock;

  OutBox& outBox(Channel channel, RankId peer) { return out_[static_cast<size_t>(channel)][peer]; }
  const OutBox& outBox(Channel channel, RankId peer) const {
    return out_[static_cast<size_t>(channel)][peer];
  }
  void pump(Channel channel, RankId peer);
  bool pushFront(Channel channel, RankId peer, Outgoing& message);
  std::optional<uint64_t> arenaOffset(std::span<const std::byte> data) const;
  // nullptr when the arena ends before these bytes do. Any thread.
  const std::byte* findPeerArena(RankId peer, uint64_t offset, size_t bytes);
  const std::byte* peerArena(RankId peer, uint64_t offset, size_t bytes);
  // A member that is dead, or the peer when it has closed its communicator: nothing comes from it that is not
  // there now.
  std::optional<RankId> findLost(const Waiting& waiting) const;
  [[noreturn]] void breakLost(const Waiting& waiting, RankId lost);
  [[noreturn]] void breakInterrupted(const Waiting& waiting);
  // Throws when the deadline has passed; returns how long to sleep.
  std::chrono::nanoseconds checkDeadline(const Waiting& waiting, Clock::time_point start);
  std::string describeWait(const Waiting& waiting) const;
  // What messages call a rank.
  RankId name(RankId rank) const { return names_.empty() ? rank : names_[rank.index()]; }

  void open();

  std::shared_ptr<SharedSegments> segments_;  // shared by both lanes, like the arena
  std::shared_ptr<Mapping> control_;
  ControlView view_;
  RankId rank_;
  std::chrono::milliseconds timeout_;
  std::chrono::nanoseconds spin_;
  std::shared_ptr<Mapping> arena_;  // null until it is made
  std::mutex peer_arenas_mutex_;
  IdVector<RankId, Mapping> peer_arenas_;  // guarded; mapped when first needed
  IdVector<RankId, OutBox> out_[kChannels];
  std::vector<std::pair<Channel, RankId>> active_;  // boxes with a queue
  std::vector<RankId> names_;
  std::optional<Error> broken_;
  WaitedTime waited_;
  std::atomic<bool> interrupted_{false};
};

// The next message of a channel from one source, taken block by block. All blocks but the last have
// kSlotBytes bytes, on either route, so that several messages can be walked side by side.
class IncomingMessage {
 public:
  // Waits until the message is posted and checks that it is what the caller expects.
  IncomingMessage(Endpoint& endpoint, Channel channel, RankId source, Operation operation, size_t bytes,
                  std::span<const RankId> members);

  size_t bytes() const { return waiting_.bytes; }
  // The bytes that can be read in one go from here: everything (arena) or one slot. Waits for a slot.
  std::span<const std::byte> view();
  // The first `bytes` of the view are done with: the whole view, or whole blocks of it.
  void advance(size_t bytes);
  // All is read: tells the sender.
  void finish();
  // So many bytes, whole blocks of them, have been taken before.
  void resume(size_t position) { position_ = position; }
  // view, copy, advance to the end, finish.
  void copyTo(std::byte* destination);

 private:
  Endpoint& endpoint_;
  Channel channel_;
  Waiting waiting_;
  Mailbox& mailbox_;
  const std::byte* arena_ = nullptr;  // of the message's begin; null when staged
  size_t position_ = 0;
};

template <typename Ready>
void Endpoint::await(const Waiting& waiting, Ready&& ready) {
  if (ready()) return;
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    progress();
  } while (Clock::now() - start < spin_);
  RankState& self = view_.rank(rank_);
  const Sleeper sleeper(self);
  while (true) {
    const uint32_t bell = self.doorbell.load(std::memory_order_seq_cst);
    // before ready(): the last words of a lost rank still count
    const std::optional<RankId> lost = findLost(waiting);
    progress();
    if (ready()) return;
    if (lost) breakLost(waiting, *lost);
    if (interrupted_.load(std::memory_order_seq_cst)) breakInterrupted(waiting);
    sleepOn(self, bell, checkDeadline(waiting, start));
  }
}

}  // namespace pipeshard::shm
