// The hosts of a job over the wire, on loopback: their relays are in this process, like the daemons that have
// them in a job; ranks are forked from it.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include "transport/collectives/communicator.h"
#include "transport/wire/host_relay.h"

namespace pipeshard::testing {

class WireHosts {
 public:
  // `seen_by(host, other, address)`: where a host finds another one; nothing: at its address.
  using SeenBy = std::function<RelayAddress(int host, int other, const RelayAddress& address)>;
  explicit WireHosts(const IdVector<RankId, int>& host_of_rank, const SeenBy& seen_by = {});
  ~WireHosts();
  WireHosts(const WireHosts&) = delete;
  WireHosts& operator=(const WireHosts&) = delete;

  HostRelay& relay(int host) { return *relays_.at(host); }
  // In a rank: its communicator of this lane, once.
  std::unique_ptr<Communicator> open(RankId rank, int lane, std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds connect_timeout);
  // In the launcher: what it has of this rank's ends is closed, so that the rank's own end is seen.
  void letGo(RankId rank);

 private:
  std::map<int, std::unique_ptr<HostRelay>> relays_;
  IdVector<RankId, std::array<int, 2>> ends_;  // of ranks, by lane
};

// Rank r is on host r % hosts.
IdVector<RankId, int> hostsOf(int size, int hosts);

}  // namespace pipeshard::testing
