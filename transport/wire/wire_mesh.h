// One rank's end of a wire: all its messages to and from other ranks go over one socket to the relay of its
// host. Internal to wire.
//
// A message of up to kEagerBytes travels with its header. A larger one is announced; the receiver grants it
// when it has memory for it, and then it comes in pieces, of which no more than kFlowWindow are on their way.
// So a rank always takes what comes at once, and nobody holds up a line that others use.
//
// A thread reads what comes, pieces straight into the memory that they are for, and writes what the calling
// thread could not write without waiting.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/collectives/message_mesh.h"
#include "transport/wire/wire_communicator.h"
#include "transport/wire/wire_frame.h"

namespace pipeshard::wire {

using mesh::Channel;
using mesh::Contact;

// A large message that is sent.
struct Sending {
  RankId peer;
  Channel channel;
  uint64_t number;
  std::span<const std::byte> data;
  bool granted = false;
  bool queued = false;  // its next piece may go
  size_t sent = 0;
  size_t received = 0;  // as the receiver has said
};

// A large message that is received.
struct Landing {
  RankId peer;
  Channel channel;
  uint64_t number;
  std::span<std::byte> to;
  size_t received = 0;
  size_t told = 0;
  bool given_up = false;
};

class WireMesh : public mesh::MessageMesh {
 public:
  // Opens, as openWire() says.
  explicit WireMesh(const WireOptions& options);
  ~WireMesh() override;

  mesh::Ticket post(Channel channel, RankId peer, Operation operation,
                    std::span<const std::byte> data) override;
  bool completed(const mesh::Ticket& ticket) override;
  void awaitCompleted(const mesh::Ticket& ticket, const Waiting& waiting) override;
  void finish(mesh::Incoming& incoming) override;

 private:
  struct Posted {
    size_t eager_bytes;
    std::shared_ptr<Sending> large;  // null: it went with its header
  };
  struct Peer {
    Contact contact = Contact::kConnecting;
    std::string reason;  // of kLost
    mesh::Inbox inbox;
    std::array<uint64_t, mesh::kChannels> arrived = {};
    std::array<uint64_t, mesh::kChannels> taken = {};
    std::array<std::deque<Posted>, mesh::kChannels> outstanding;
    std::array<uint64_t, mesh::kChannels> posted = {};
    std::array<uint64_t, mesh::kChannels> completed = {};
    size_t eager_bytes = 0;  // outstanding
  };
  // What is being written.
  struct Outgoing {
    Frame frame;
    std::vector<std::byte> own;
    std::span<const std::byte> payload;  // of `own`, or of the caller
    size_t done = 0;                     // bytes, header included
  };
  // What is being read.
  struct Arriving {
    Frame frame;
    size_t done = 0;
    std::vector<std::byte> own;
    std::shared_ptr<Landing> landing;  // of a piece that is wanted
  };

  bool speaksTo(RankId peer) const override { return peers_[peer] != nullptr; }
  Contact contactOf(RankId peer) const override { return peers_[peer]->contact; }
  const std::string& lossReason(RankId peer) const override { return peers_[peer]->reason; }
  mesh::Inbox& inboxOf(RankId peer) override { return peers_[peer]->inbox; }
  std::unique_ptr<mesh::Flow> startFlow(Channel channel, RankId peer, const mesh::Arrival& arrival,
                                        std::span<std::byte> to) override;
  void noteLost(RankId peer, const std::string& reason) override;
  void letGo() override;

  void open(const WireOptions& options);
  void close();

  // All below with the mutex held, but run().
  void send(Frame frame, RankId target, std::span<const std::byte> copied = {});
  void activate(const std::shared_ptr<Sending>& sending);
  bool beginNext();
  void flush();
  void wake();
  void run();
  bool readSome();
  bool readBytes(std::byte* to, size_t bytes, size_t& got);
  void beginPayload();
  void handle();
  void handleAnswer(Peer& peer, const Frame& frame);
  void advance(Landing& landing, size_t bytes);
  void loseAll(const std::string& reason);
  std::shared_ptr<Landing> findLanding(RankId peer, const Frame& frame) const;
  // Waits until ready(); the deadline begins anew whenever progress() has changed.
  template <typename Ready, typename Progress>
  void awaitFlow(Lock& lock, const Waiting& waiting, Ready&& ready, Progress&& progress);

  IdVector<RankId, std::unique_ptr<Peer>> peers_;  // null for those that it does not speak to
  int descriptor_;
  int wake_ = -1;  // eventfd
  std::deque<Outgoing> queue_;
  std::deque<std::shared_ptr<Sending>> active_;
  std::optional<Outgoing> current_;
  Arriving arriving_;
  std::vector<std::shared_ptr<Landing>> landings_;
  bool full_ = false;   // the socket takes nothing now
  bool ended_ = false;  // the relay is gone
  bool said_farewell_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace pipeshard::wire
