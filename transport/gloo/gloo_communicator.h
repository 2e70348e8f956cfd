// Communicator between the nodes of a job on a private network (docs/nodes.md): TCP through Gloo.
//
// Trusted networks only: connections are neither authenticated nor encrypted. Every rank listens on ephemeral
// ports of the given host's address and of no other, one per peer, each open until that peer has connected;
// the first connection wins. The addresses travel only through the RendezvousStore, which the runtime keeps
// on its authenticated control connection.
//
//   MyStore store;  // all ranks see the same one
//   auto communicator = openGloo({.rank = 0, .size = 2, .host = "10.0.0.1", .timeout = 30s}, store);
//   communicator->send(1, bytes)->wait();
//
// What a rank sent in messages of up to 16 KiB (at most 1 MiB of them per peer not received yet) is with the
// peer's machine soon after send() and is delivered even when the sender dies then; larger messages stay with
// the sender until they are received.
//
// Process-wide effect: SIGPIPE is ignored from the first openGloo() on, unless it has a handler (Gloo writes
// to sockets that the peer may have closed).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/collectives/communicator.h"

namespace pipeshard {

// Where ranks leave their addresses for each other: "gloo/rank/N" holds those of rank N ("gloo/CHANNEL/N"
// with GlooOptions::channel). Implemented by the runtime over the control connection; by tests in memory.
// Used by one thread, within openGloo() only. A restarted job needs a fresh one.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual void set(const std::string& key, const std::string& bytes) = 0;
  // Waits until the key is there. Error(kPeerUnavailable) naming the key when it is not in time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

// A rank that has left its address, and where it is tried in vain: "tcp://10.0.0.2:40123".
struct UnansweredRank {
  RankId rank;
  std::string address;
};

struct GlooOptions {
  RankId rank = RankId(0);
  int size = 1;
  // address or name of this machine's interface, as other nodes reach it
  std::string host;
  std::chrono::milliseconds timeout{30000};      // of every wait for a message, or for 4 MiB of a long one
  std::chrono::milliseconds connect_timeout{0};  // of openGloo(); 0: as `timeout`
  // Several communicators of the same ranks have a store in common, and names of their own.
  std::string channel = "rank";
  // Those to connect to, in any order; nothing: all. Whoever lists a rank is to be listed by it. Others
  // cannot be spoken to.
  std::optional<std::vector<RankId>> peers = {};
  // Called within openGloo() while ranks that have left their addresses do not answer: after so long, again
  // as often, and once with none when all have answered after all.
  std::function<void(const std::vector<UnansweredRank>&)> on_unanswered = {};
  std::chrono::milliseconds unanswered_after{10'000};
};

// Connects to all other ranks, which do the same; returns when every connection has been used in both
// directions. Error(kPeerUnavailable) names a rank that left no address or broke the connection, Error(kHang)
// those that did not answer in time, Error(kConfiguration) a host that this machine does not have. The
// destructor waits up to half a second for peers to have the messages that were handed to the network.
std::unique_ptr<Communicator> openGloo(const GlooOptions& options, RendezvousStore& store);

}  // namespace pipeshard
