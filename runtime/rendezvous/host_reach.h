// How hosts with ranks come to know each other, on the coordinator's side (a node's: host_wire.h): it
// gathers where their relays listen and hands that on, and keeps which of them do not reach each other.
//
//   HostReach reach({0, 1, 2});
//   reach.take(1, "wire", body, next);  // "wires" once all are known: send `next` to 0, 1 and 2
//   reach.note(1, 1, {{0, "tcp://10.0.0.1:40123"}});
//   reach.describe(name);  // "node 1 (host b) does not reach node 0 (host a) at tcp://10.0.0.1:40123: ..."
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "transport/wire/host_relay.h"

namespace pipeshard {

class HostReach {
 public:
  // By their numbers as nodes.
  explicit HostReach(std::set<int> nodes) : nodes_(std::move(nodes)) {}
  const std::set<int>& nodes() const { return nodes_; }

  // A node's "wire" or "wired". The type of what all nodes are to be sent now, with its body in `next`; "":
  // nothing yet.
  std::string_view take(int node, std::string_view type, const nlohmann::json& body, nlohmann::json& next);

  // Whom `speaker` (a daemon, or one of its ranks) on `from` does not reach, and where, in place of what it
  // has said before.
  void note(int speaker, int from, std::map<int, std::string> unreached);
  // All of that in one line, with what to do about it; "": nothing.
  std::string describe(const std::function<std::string(int node)>& name) const;

 private:
  struct Said {
    int from;
    std::map<int, std::string> unreached;
  };

  std::set<int> nodes_;
  std::map<int, RelayAddress> wires_;  // by node
  std::set<int> wired_;                // who lets the others in
  std::map<int, Said> said_;           // by speaker
};

}  // namespace pipeshard
