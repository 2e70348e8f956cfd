// Communicator between the hosts of a job: encrypted and authenticated, through the relay of this host
// (transport/wire/host_relay.h), to which the rank has one connection. Strangers cannot take part, and who
// listens on the line reads nothing.
//
//   // the process that starts the workers of a host
//   const auto relay = HostRelay::open({.host = 0, .host_of_rank = {0, 1}, .address = "10.0.0.1"});
//   const int descriptor = relay->attach(RankId(0), 0);        // inherited by the worker
//   relay->introduce({{0, relay->address()}, {1, other}});
//   relay->connect();
//   // the worker
//   auto communicator = openWire({.rank = RankId(0), .size = 2, .descriptor = descriptor});
//   communicator->send(RankId(1), bytes)->wait();
//
// What a rank sent in messages of up to 16 KiB (at most 1 MiB of them per peer not received yet) is with the
// relay soon after send() and is delivered even when the sender dies then; larger messages stay with the
// sender until they are received. A rank has one thread per communicator here, whatever the number of peers.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "transport/collectives/communicator.h"

namespace pipeshard {

struct WireOptions {
  RankId rank = RankId(0);
  int size = 1;
  int descriptor = -1;                           // HostRelay::attach; owned from here on
  std::chrono::milliseconds timeout{30000};      // of every wait for a message, or for a part of a long one
  std::chrono::milliseconds connect_timeout{0};  // of openWire(); 0: as `timeout`
  // Those that have an end of the same lane, in any order; nothing: all. Others cannot be spoken to.
  std::optional<std::vector<RankId>> peers = {};
};

// Returns when all peers have opened their ends. Error(kPeerUnavailable) names a rank that has not in time,
// or that died before.
std::unique_ptr<Communicator> openWire(const WireOptions& options);

}  // namespace pipeshard
