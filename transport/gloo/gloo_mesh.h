// One rank's connections to all others through Gloo.
//
// Every connection carries a stream of small messages in Gloo's slot 0, for which the receiver always keeps
// kPosted buffers posted, so that they flow without the computing thread: announcements, messages of up to
// kEagerBytes themselves, and counts of what has been received. Larger messages are announced there and
// follow in the slot of their channel, in pieces: Gloo's own thread moves them.
//
// Threads: Gloo's own; one per peer, which reads slot 0 and learns of a broken connection at once, whatever
// the computing thread is doing; and one that ends the computing thread's wait for a piece at its deadline or
// when a member of the group is lost. (Gloo's own timeouts close all connections and name nobody, so none is
// ever used.)
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/collectives/message_mesh.h"
#include "transport/gloo/gloo_communicator.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace pipeshard::mesh {

constexpr size_t kPosted = 8;
constexpr size_t kPieceBytes = 4 << 20;

struct Header;
struct Peer;
struct Small;

class GlooMesh : public MessageMesh {
 public:
  // Connects, as openGloo() says.
  GlooMesh(const GlooOptions& options, RendezvousStore& store);
  ~GlooMesh() override;

  Ticket post(Channel channel, RankId peer, Operation operation, std::span<const std::byte> data) override;
  bool completed(const Ticket& ticket) override;
  void awaitCompleted(const Ticket& ticket, const Waiting& waiting) override;
  void finish(Incoming& incoming) override;
  void interrupt() override;

 private:
  // The computing thread's wait inside Gloo, which the watch ends.
  struct Gate {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    bool sends = false;
    Clock::time_point until;
    std::span<const RankId> members;
  };

  bool speaksTo(RankId peer) const override { return peers_[peer] != nullptr; }
  Contact contactOf(RankId peer) const override;
  const std::string& lossReason(RankId peer) const override;
  Inbox& inboxOf(RankId peer) override;
  std::unique_ptr<Flow> startFlow(Channel channel, RankId peer, const Arrival& arrival,
                                  std::span<std::byte> to) override;
  void noteLost(RankId peer, const std::string& reason) override;
  void letGo() override;

  void connect(const GlooOptions& options, RendezvousStore& store);
  void startPeer(Peer& peer, const std::string& addresses);
  void awaitHellos(const GlooOptions& options, Clock::time_point deadline, std::chrono::milliseconds timeout);
  void tellUnanswered(Lock& lock, const GlooOptions& options);
  void shutdown();
  void sayFarewell();
  void endPeerThread(Peer& peer);

  void runPeer(Peer& peer);
  void postReceive(Peer& peer, Small& small);
  void readSmall(Peer& peer);
  void handle(Peer& peer, const Header& header, std::vector<std::byte> payload);
  void sendSmall(Peer& peer, Header header, std::span<const std::byte> payload);
  void runWatch();

  // One completion of a buffer's pieces.
  void awaitPiece(gloo::transport::UnboundBuffer& buffer, bool sends, const Waiting& waiting);

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  IdVector<RankId, std::unique_ptr<Peer>> peers_;  // null for this rank and those that it is not connected to

  std::condition_variable gate_changed_;
  Gate gate_;                      // guarded by the mutex, like the two below
  Clock::time_point watch_until_;  // when the watch looks again by itself
  bool stopping_ = false;
  std::thread watch_;
};

}  // namespace pipeshard::mesh
