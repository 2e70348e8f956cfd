#include "transport/control/control_endpoint.h"

#include <arpa/inet.h>

#include <utility>

namespace pipeshard {

bool isLocalEndpoint(const std::string& endpoint) {
  const size_t scheme_end = endpoint.find("://");
  if (scheme_end == std::string::npos) return false;
  const std::string scheme = endpoint.substr(0, scheme_end);
  if (scheme == "ipc" || scheme == "inproc") return true;
  if (scheme != "tcp") return false;
  std::string host = endpoint.substr(scheme_end + 3);
  const size_t colon = host.rfind(':');
  if (colon == std::string::npos) return false;
  host.resize(colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost" || host == "lo") return true;
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::string reachableHere(const std::string& endpoint) {
  for (const auto& [wildcard, loopback] :
       {std::pair<std::string, std::string>{"tcp://0.0.0.0:", "tcp://127.0.0.1:"},
        {"tcp://*:", "tcp://127.0.0.1:"},
        {"tcp://[::]:", "tcp://[::1]:"}}) {
    if (endpoint.rfind(wildcard, 0) == 0) return loopback + endpoint.substr(wildcard.size());
  }
  return endpoint;
}

}  // namespace pipeshard
