// A node's side of the encrypted connections between hosts: its relay (transport/wire/host_relay.h), and what
// its daemon and the coordinator say to each other about it:
//
//   wire {endpoint, key}       ──►  where it listens, and the key by which others know it
//                              ◄──  wires {hosts}: where all listen, when all have said so
//   wired {}                   ──►  it lets them in
//                              ◄──  connect {}: when all do
//   unreached {peers}          ──►  those that do not answer it: after kUnanswered, again as often, and once
//                                   without any when all have answered after all
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "transport/wire/host_relay.h"

namespace pipeshard {

// How long a host that has an address may leave others without an answer there, before that is said.
inline constexpr std::chrono::seconds kUnanswered{10};

// Used by one thread.
class HostWire {
 public:
  using Tell = std::function<void(std::string_view type, const nlohmann::json& body)>;

  // Listens, and tells the coordinator. Errors as HostRelay::open, and those of `tell`, here as below.
  HostWire(const RelayOptions& options, Tell tell);

  HostRelay& relay() { return *relay_; }
  // "wires", which has "hosts", or "connect". Errors as HostRelay::introduce and connect.
  void hear(const nlohmann::json& body);
  // Called several times a second. A line for the log where strangers were refused.
  std::optional<std::string> look();

 private:
  using Clock = std::chrono::steady_clock;

  Tell tell_;
  std::unique_ptr<HostRelay> relay_;
  std::map<int, RelayAddress> hosts_;
  std::optional<Clock::time_point> next_;  // when to say who does not answer; nothing: no more
  bool has_told_ = false;                  // that somebody does not
};

}  // namespace pipeshard
