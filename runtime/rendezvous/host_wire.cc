#include "runtime/rendezvous/host_wire.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/messages/control_types.h"

namespace pipeshard {

HostWire::HostWire(const RelayOptions& options, Tell tell)
    : tell_(std::move(tell)), relay_(HostRelay::open(options)) {
  tell_(control::kWire, {{"endpoint", relay_->address().endpoint}, {"key", relay_->address().public_key}});
}

// First all relays let the others in, then they connect.
void HostWire::hear(const nlohmann::json& body) {
  if (!body.contains("hosts")) {
    relay_->connect();
    if (!next_) next_ = Clock::now() + kUnanswered;
    return;
  }
  hosts_.clear();
  for (const nlohmann::json& host : body.at("hosts"))
    hosts_[host.at("host").get<int>()] = {host.at("endpoint").get<std::string>(),
                                          host.at("key").get<std::string>()};
  relay_->introduce(hosts_);
  tell_(control::kWired, nlohmann::json::object());
}

std::optional<std::string> HostWire::look() {
  const Clock::time_point now = Clock::now();
  const std::vector<int> unanswered = next_ ? relay_->unanswered() : std::vector<int>();
  if (next_ && (unanswered.empty() ? has_told_ : now >= *next_)) {
    nlohmann::json peers = nlohmann::json::array();
    for (const int host : unanswered)
      peers.push_back({{"number", host}, {"address", hosts_.at(host).endpoint}});
    tell_(control::kUnreached, {{"peers", std::move(peers)}});
    next_ = now + kUnanswered;
    has_told_ = !unanswered.empty();
  }
  return relay_->takeNotice();
}

}  // namespace pipeshard
