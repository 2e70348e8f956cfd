#include "transport/control/control_endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// The host of "tcp://HOST:PORT", with its brackets; nothing where it is not of that form.
std::optional<std::string> hostOfTcp(const std::string& endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kScheme) || colon <= kScheme.size() || colon + 1 >= endpoint.size())
    return std::nullopt;
  std::string host = endpoint.substr(kScheme.size(), colon - kScheme.size());
  const bool is_bracketed = host.front() == '[' && host.back() == ']';
  if (!is_bracketed && host.find_first_of("[]:") != std::string::npos) return std::nullopt;
  return host;
}

bool isNumeric(const std::string& host) {
  in_addr four{};
  return host.front() == '[' || ::inet_pton(AF_INET, host.c_str(), &four) == 1;
}

}  // namespace

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

bool isAnyAddress(const std::string& endpoint) {
  const std::optional<std::string> host = hostOfTcp(endpoint);
  if (!host) return false;
  if (*host == "*" || *host == "0.0.0.0") return true;
  in6_addr six{};
  return host->front() == '[' &&
         ::inet_pton(AF_INET6, host->substr(1, host->size() - 2).c_str(), &six) == 1 &&
         IN6_IS_ADDR_UNSPECIFIED(&six);
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

std::string withHost(const std::string& endpoint, const std::string& host) {
  if (host.empty() || !hostOfTcp(endpoint)) return endpoint;
  const bool needs_brackets = host.find(':') != std::string::npos && host.front() != '[';
  return fmt::format("tcp://{}{}", needs_brackets ? fmt::format("[{}]", host) : host,
                     endpoint.substr(endpoint.rfind(':')));
}

std::vector<std::string> addressesOf(const std::string& endpoint, std::string& why_none) {
  why_none.clear();
  const std::optional<std::string> name = hostOfTcp(endpoint);
  if (!name || *name == "*" || isNumeric(*name)) return {endpoint};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int reason = ::getaddrinfo(name->c_str(), nullptr, &hints, &found); reason != 0) {
    why_none = ::gai_strerror(reason);
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (one->ai_family != family || ::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(),
                                                    nullptr, 0, NI_NUMERICHOST) != 0)
        continue;
      std::string address = withHost(endpoint, text.data());
      if (std::find(addresses.begin(), addresses.end(), address) == addresses.end())
        addresses.push_back(std::move(address));
    }
  }
  if (addresses.empty()) why_none = "it has none of IPv4 or IPv6";
  return addresses;
}

std::string listeningEndpoint(const std::string& endpoint) {
  if (endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://")) return endpoint;
  const std::optional<std::string> host = hostOfTcp(endpoint);
  if (!host) {
    fail(ErrorCode::kConfiguration,
         "control: cannot listen on '{}'; expected tcp://ADDRESS:PORT: an address of this machine, or * for "
         "all of them, as tcp://*:7000",
         endpoint);
  }
  if (*host == "*" || isNumeric(*host) || ::if_nametoindex(host->c_str()) != 0) return endpoint;
  std::string why_none;
  const std::vector<std::string> addresses = addressesOf(endpoint, why_none);
  if (addresses.empty()) {
    fail(
        ErrorCode::kConfiguration,
        "control: cannot listen on '{}': '{}' has no address here ({}); write an address of this machine, or "
        "* for all of them, as {}",
        endpoint, *host, why_none, withHost(endpoint, "*"));
  }
  // As Debian has it for a machine's own name: 127.0.1.1.
  const auto reaches_others = std::find_if_not(addresses.begin(), addresses.end(),
                                               [](const auto& one) { return isLocalEndpoint(one); });
  if (isLocalEndpoint(endpoint)) return addresses.front();
  if (reaches_others == addresses.end()) {
    fail(ErrorCode::kConfiguration,
         "control: cannot listen on '{}': '{}' is {} here, which no other machine reaches; write the address "
         "that they reach, or * for all of them, as {}",
         endpoint, *host, *hostOfTcp(addresses.front()), withHost(endpoint, "*"));
  }
  return *reaches_others;
}

}  // namespace pipeshard
