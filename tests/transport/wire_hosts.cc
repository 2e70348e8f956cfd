#include "tests/transport/wire_hosts.h"

#include <unistd.h>

#include <utility>

#include "transport/wire/wire_communicator.h"

namespace pipeshard::testing {

WireHosts::WireHosts(const IdVector<RankId, int>& host_of_rank, const SeenBy& seen_by) {
  std::map<int, RelayAddress> addresses;
  for (const int host : host_of_rank) {
    if (relays_.contains(host)) continue;
    relays_[host] = HostRelay::open({host, host_of_rank, "127.0.0.1"});
    addresses[host] = relays_[host]->address();
  }
  for (RankId rank : host_of_rank.ids()) {
    std::array<int, 2>& ends = ends_.emplace_back();
    for (const int lane : {0, 1}) ends[lane] = relays_[host_of_rank[rank]]->attach(rank, lane);
  }
  for (const auto& [host, relay] : relays_) {
    std::map<int, RelayAddress> seen = addresses;
    for (auto& [other, address] : seen) {
      if (seen_by && other != host) address = seen_by(host, other, address);
    }
    relay->introduce(seen);
  }
  for (const auto& [host, relay] : relays_) relay->connect();
}

WireHosts::~WireHosts() {
  for (RankId rank : ends_.ids()) letGo(rank);
}

std::unique_ptr<Communicator> WireHosts::open(RankId rank, int lane, std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds connect_timeout) {
  for (RankId other : ends_.ids()) {
    if (other != rank) letGo(other);  // a copy in this process would hide its end
  }
  const int size = ends_.size();
  return openWire({rank, size, std::exchange(ends_[rank][lane], -1), timeout, connect_timeout});
}

void WireHosts::letGo(RankId rank) {
  for (int& end : ends_[rank]) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
}

IdVector<RankId, int> hostsOf(int size, int hosts) {
  IdVector<RankId, int> host_of_rank(size);
  for (RankId rank : host_of_rank.ids()) host_of_rank[rank] = static_cast<int>(rank.index()) % hosts;
  return host_of_rank;
}

}  // namespace pipeshard::testing
