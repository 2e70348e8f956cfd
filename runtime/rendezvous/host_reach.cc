#include "runtime/rendezvous/host_reach.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/messages/control_types.h"

namespace pipeshard {

// Every host learns where the others' relays are, and whose keys they have; when all let each other in, they
// connect.
std::string_view HostReach::take(int node, std::string_view type, const nlohmann::json& body,
                                 nlohmann::json& next) {
  const auto all_in = [&](const auto& known) {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](int one) { return known.count(one) > 0; });
  };
  next = nlohmann::json::object();
  if (type == control::kWired) {
    wired_.insert(node);
    return all_in(wired_) ? control::kConnect : "";
  }
  const RelayAddress wire{body.at("endpoint").get<std::string>(), body.at("key").get<std::string>()};
  if (!wires_.emplace(node, wire).second || !all_in(wires_)) return "";
  nlohmann::json& hosts = next["hosts"] = nlohmann::json::array();
  for (const int one : nodes_)
    hosts.push_back(
        {{"host", one}, {"endpoint", wires_.at(one).endpoint}, {"key", wires_.at(one).public_key}});
  return control::kWires;
}

void HostReach::note(int speaker, int from, std::map<int, std::string> unreached) {
  if (unreached.empty()) {
    said_.erase(speaker);
  } else {
    said_[speaker] = {from, std::move(unreached)};
  }
}

std::string HostReach::describe(const std::function<std::string(int node)>& name) const {
  constexpr size_t kMost = 3;
  std::map<std::pair<int, int>, std::string> pairs;
  for (const auto& one : said_) {
    for (const auto& peer : one.second.unreached)
      pairs.emplace(std::pair(one.second.from, peer.first), peer.second);
  }
  if (pairs.empty()) return "";
  std::string text;
  size_t count = 0;
  for (const auto& pair : pairs) {
    if (count++ == kMost) break;
    text += fmt::format("{}{} does not reach {} at {}", text.empty() ? "" : "; ", name(pair.first.first),
                        name(pair.first.second), pair.second);
  }
  if (pairs.size() > kMost) text += fmt::format("; and {} more such pairs", pairs.size() - kMost);
  return text +
         ": a firewall between them? Tensors go from host to host, so that every host is to reach every "
         "other "
         "one on all ports; `node --host` names another address of a host";
}

}  // namespace pipeshard
