// The wire of one host: a thread beside the workers that carries all their messages to and from the ranks of
// other hosts, over one connection per pair of hosts (ZeroMQ with CURVE: encrypted, authenticated). What it
// takes grows with hosts and local ranks, never with pairs of ranks.
//
// Every relay makes a key pair for itself. Who is at the other end of a connection is known by the public
// keys, which the hosts of a job tell each other, with the addresses, over their control connections: a host
// speaks for its own ranks and for no others. Strangers are refused while listening goes on, and are told of
// (takeNotice). Each message is numbered, so that none is lost, doubled or replayed unnoticed: CURVE refuses
// what was recorded of another connection.
//
// The ends of ranks are sockets that their processes inherit (attach). A rank that ends without a farewell is
// told to all at once, and so are those of a host whose connection breaks.
//
// Example: transport/wire/wire_communicator.h. Thread rules: one thread calls, first attach(), then
// introduce(), then connect().
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

// How other hosts reach a relay, and how they know it.
struct RelayAddress {
  std::string endpoint;    // "tcp://10.0.0.1:40123"
  std::string public_key;  // 40 characters of Z85
};

// Ports from `first` to `last`; {}: any free one.
struct PortRange {
  int first = 0;
  int last = 0;
};

struct RelayOptions {
  int host = 0;                        // the number of this host
  IdVector<RankId, int> host_of_rank;  // of all ranks
  // name or address of this machine's interface, as other hosts reach it; nothing listens on any other
  std::string address;
  PortRange ports = {};  // of these the first that is free
};

class HostRelay {
 public:
  // Listens, at a free port. Error(kConfiguration) for an address that this machine does not have, or a port
  // that this user may not take, Error(kAddressInUse) when all ports of the range are taken,
  // Error(kAuthentication) when a stranger's key is not refused (tried before this returns).
  static std::unique_ptr<HostRelay> open(const RelayOptions& options);
  virtual ~HostRelay() = default;

  virtual const RelayAddress& address() const = 0;
  // The rank's end of a new socket, for its communicator of this lane (0 or 1); the caller's. It is closed on
  // exec until told otherwise.
  virtual int attach(RankId rank, int lane) = 0;
  // The hosts of the job, of which this one may be one: their keys are let in from now on. Errors:
  // kAuthentication for what is no key.
  virtual void introduce(const std::map<int, RelayAddress>& hosts) = 0;
  // Connects to them, when all of them have been introduced to all, too: who is not known is refused. A
  // second call does nothing. Error(kConfiguration): no endpoint.
  virtual void connect() = 0;
  // Of the hosts that it connects to itself, those that have not answered yet: nobody is there, or something
  // between lets nothing through. Any thread; none before connect(), and none that has answered and was lost.
  virtual std::vector<int> unanswered() = 0;
  // A line for the log when somebody was refused since the last one; at most once a minute.
  virtual std::optional<std::string> takeNotice() = 0;
};

}  // namespace pipeshard
