// One rank's connections to all others through Gloo: posting messages, taking them, waiting. Point-to-point
// operations and collectives are both built from it.
//
// Every connection carries a stream of small messages in Gloo's slot 0, for which the receiver always keeps
// kPosted buffers posted, so that they flow without the computing thread: announcements, messages of up to
// kEagerBytes themselves, and counts of what has been received. Larger messages are announced there and
// follow in the slot of their channel, in pieces, when the receiver has found their size to be right and has
// posted its memory: Gloo's own thread moves them. Of a receive that is posted before its message (expect),
// whoever comes second posts that memory: the thread that posts the receive, or the one that reads the
// announcement.
//
// Threads: Gloo's own; one per peer, which reads slot 0 and learns of a broken connection at once, whatever
// the computing thread is doing; and one that ends the computing thread's wait for a piece at its deadline or
// when a member of the group is lost. (Gloo's own timeouts close all connections and name nobody, so none is
// ever used.)
//
// Thread rules: one thread at a time calls, but interrupt(). Errors: every failure breaks the mesh; later
// calls repeat the first error.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ir/base/error.h"
#include "transport/collectives/operation.h"
#include "transport/gloo/gloo_communicator.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace pipeshard::mesh {

enum class Channel : uint32_t { kPointToPoint = 0, kCollective = 1 };
constexpr size_t kChannels = 2;

constexpr size_t kEagerBytes = 16 << 10;
// Of messages on their way to one peer that have not been received; what is more waits at the sender.
constexpr size_t kEagerWindow = 1 << 20;
constexpr size_t kPosted = 8;
constexpr size_t kPieceBytes = 4 << 20;

struct Arrival;
struct Expected;
struct Header;
struct Peer;
struct Small;

struct Ticket {
  Channel channel;
  RankId peer;
  uint64_t number;
  bool copied;  // the bytes may be overwritten at once
};

// A message that is being received: its bytes are there once finish() has returned.
struct Incoming {
  Channel channel;
  Waiting waiting;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;  // null when everything is there
};

class Mesh {
 public:
  // Connects, as openGloo() says.
  Mesh(const GlooOptions& options, RendezvousStore& store);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  RankId rank() const { return rank_; }
  int size() const { return size_; }

  // Hands a message over. `data` must stay unchanged until it is completed, unless Ticket::copied.
  Ticket post(Channel channel, RankId peer, Operation operation, std::span<const std::byte> data);
  // The receiver has all of it.
  bool completed(const Ticket& ticket);
  void awaitCompleted(const Ticket& ticket, const Waiting& waiting);

  // Waits until the next message of the channel is announced, checks that it is what the caller expects, and
  // lets it flow into `to`. waiting.bytes is to.size(). At most one message per channel and peer at a time.
  Incoming take(Channel channel, std::span<std::byte> to, const Waiting& waiting);
  // Waits until all of it is there, and tells the sender.
  void finish(Incoming& incoming);
  // Lets the next point-to-point message from `peer` that is not expected yet flow into `to` as soon as it is
  // announced. take() with the same memory, in the same order, finds what is wrong with the message.
  void expect(RankId peer, std::span<std::byte> to);
  // What was expected from the peer is not taken: its memory is not touched any more, and the mesh is broken.
  void giveUp(RankId peer);

  // Throws the first error again, if there was one; and when `peer` is out of range or this rank.
  void checkUsable() const;
  void checkPeer(RankId peer) const;
  // Any thread: ends this and all later waits.
  void interrupt();
  void whileWaiting(std::function<bool()> work) { work_ = std::move(work); }
  WaitedTime& waitedTime() { return waited_; }
  const WaitedTime& waitedTime() const { return waited_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  // The computing thread's wait inside Gloo, which the watch ends.
  struct Gate {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    bool sends = false;
    Clock::time_point until;
    std::span<const RankId> members;
  };

  void connect(const GlooOptions& options, RendezvousStore& store);
  void startPeer(Peer& peer, const std::string& addresses);
  void awaitHellos(Clock::time_point deadline, std::chrono::milliseconds timeout);
  void shutdown();
  void sayFarewell();
  void endPeerThread(Peer& peer);

  void runPeer(Peer& peer);
  void postReceive(Peer& peer, Small& small);
  void readSmall(Peer& peer);
  void handle(Peer& peer, const Header& header, std::vector<std::byte> payload);
  void beginExpected(Peer& peer);
  bool begin(RankId peer, const Arrival& arrival, Expected& expected);
  std::unique_ptr<gloo::transport::UnboundBuffer> postPieces(Channel channel, RankId peer,
                                                             std::span<std::byte> to);
  void sendSmall(Peer& peer, Header header, std::span<const std::byte> payload);
  void noteLost(Peer& peer, const std::string& reason);
  void runWatch();

  template <typename Ready>
  void await(Lock& lock, const Waiting& waiting, Ready&& ready);
  // One completion of a buffer's pieces.
  void awaitPiece(gloo::transport::UnboundBuffer& buffer, bool sends, const Waiting& waiting);
  void checkWait(const Waiting& waiting, Clock::time_point deadline);
  bool isLost(std::span<const RankId> members) const;
  std::string describeWait(const Waiting& waiting) const;
  [[noreturn]] void breakLost(const Waiting& waiting, const Peer& lost);
  [[noreturn]] void breakWith(ErrorCode code, std::string message);

  RankId rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::function<bool()> work_;
  std::optional<Error> broken_;
  WaitedTime waited_;

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  IdVector<RankId, std::unique_ptr<Peer>> peers_;  // null for this rank and those that it is not connected to

  mutable std::mutex mutex_;         // guards the peers' state, the gate and the flags below
  std::condition_variable changed_;  // a peer's state
  std::condition_variable gate_changed_;
  Gate gate_;
  Clock::time_point watch_until_;  // when the watch looks again by itself
  bool stopping_ = false;
  bool interrupted_ = false;
  std::thread watch_;
};

}  // namespace pipeshard::mesh
