#include "transport/wire/host_relay.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ir/base/ids_format.h"
#include "transport/collectives/signals_blocked.h"
#include "transport/control/job_keys.h"
#include "transport/wire/relay_parts.h"

namespace pipeshard {
namespace wire {
namespace {

using namespace std::chrono_literals;

constexpr int kMostIoThreads = 4;
// Behind the end of any connection, hosts are asked for so long, so often, whether they are there.
constexpr auto kProbeFor = 500ms;
constexpr auto kProbeEach = 50ms;

// ZeroMQ binds to numbers, not to names.
std::string numericAddress(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (name.empty() || ::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) {
    fail(ErrorCode::kConfiguration,
         "cannot listen for tensors at host '{}'; it must be an address of this machine", name);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    fail(ErrorCode::kConfiguration, "the address of host '{}' cannot be written as a number", name);
  return found->ai_family == AF_INET6 ? fmt::format("[{}]", text.data()) : text.data();
}

// Returns where it listens.
std::string bindWithin(zmq::socket_t& socket, const std::string& address, const PortRange& ports) {
  for (int port = ports.first; port <= ports.last; ++port) {
    const std::string endpoint = fmt::format("tcp://{}:{}", address, port == 0 ? "*" : std::to_string(port));
    try {
      socket.bind(endpoint);
      return socket.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      if (port != 0 && error.num() == EADDRINUSE) continue;
      fail(ErrorCode::kConfiguration,
           "cannot listen for tensors at '{}': {}; it must be an address of this machine{}", endpoint,
           error.what(), port == 0 ? "" : ", and a port that this user may take");
    }
  }
  fail(ErrorCode::kAddressInUse, "cannot listen for tensors at {}: all ports from {} to {} are taken",
       address, ports.first, ports.last);
}

SocketTraits traits(const std::shared_ptr<zmq::context_t>& context) {
  // How much is under way is counted in bytes (kLineWindow), not in messages; a host that is dead is known
  // sooner by control.
  return {.max_bytes = sizeof(Frame) + kPieceBytes,
          .queued = 0,
          .heartbeat = 5s,
          .silence = 60s,
          .context = context};
}

}  // namespace

Relay::Relay(const RelayOptions& options) : options_(options) {
  for (auto& lane : ends_) lane.resize(options_.host_of_rank.size());
  int hosts = 0;
  for (const int host : options_.host_of_rank) hosts = std::max(hosts, host + 1);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail(ErrorCode::kOutOfMemory, "cannot make an eventfd: {}", std::strerror(errno));
  const JobKeys keys = makeJobKeys();
  secret_key_ = keys.server_secret;
  address_.public_key = keys.server_public;
  const std::string address = numericAddress(options_.address);
  const auto context = std::make_shared<zmq::context_t>(std::clamp(hosts - 1, 1, kMostIoThreads));
  listening_.emplace(zmq::socket_type::router, "", fmt::format("tcp://{}:*", address), traits(context));
  listening_->useKeys(keys);
  gate_.emplace(*listening_, ControlGate::Keys::kNeeded);
  address_.endpoint = bindWithin(listening_->socket(), address, options_.ports);
  requireRefusal(address_.endpoint, address_.public_key);
  gate_->watch([this] {
    some_ended_.store(true);
    wake();
  });
}

Relay::~Relay() {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
  for (const RankLink& link : links_) {
    if (link.descriptor >= 0) ::close(link.descriptor);
  }
  lines_.clear();
  gate_.reset();
  listening_.reset();
  ::close(wake_);
}

int Relay::attach(RankId rank, int lane) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail(ErrorCode::kConfiguration, "cannot make a socket for rank {}: {}; check `ulimit -n`", rank,
         std::strerror(errno));
  }
  const int bytes = 2 * kPieceBytes;  // less where the kernel's limit is lower
  for (const int end : ends) (void)::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  RankLink& link = links_.emplace_back();
  link.rank = rank;
  link.lane = static_cast<uint8_t>(lane);
  link.descriptor = ends[0];
  return ends[1];
}

void Relay::introduce(const std::map<int, RelayAddress>& hosts) {
  if (!lines_.empty()) return;
  for (const auto& [number, address] : hosts) {
    if (number == options_.host) continue;
    HostLine& line = lines_.emplace_back();
    line.number = number;
    line.address = address;
    if (!connectsTo(line)) gate_->allow(address.public_key, std::to_string(number));
  }
}

void Relay::connect() {
  if (thread_.joinable()) return;
  for (HostLine& line : lines_) {
    if (!connectsTo(line)) continue;
    const std::string& endpoint = line.address.endpoint;
    line.socket.emplace(zmq::socket_type::dealer, "", endpoint, traits(listening_->sharedContext()));
    line.socket->socket().set(zmq::sockopt::immediate, false);  // the greeting waits for the connection
    line.socket->useKeys(ClientKeys{line.address.public_key, address_.public_key, secret_key_});
    line.monitor.emplace(line.socket->context(), line.socket->socket());
    {
      const std::lock_guard lock(mutex_);
      unanswered_.insert(line.number);
    }
    try {
      line.socket->socket().connect(endpoint);
    } catch (const zmq::error_t& error) {
      fail(ErrorCode::kConfiguration, "cannot connect to host {} at '{}': {}", line.number, endpoint,
           error.what());
    }
    sendFrame(line,
              {.kind = Kind::kHello, .number = static_cast<uint64_t>(options_.host), .bytes = kProtocol});
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

std::vector<int> Relay::unanswered() {
  const std::lock_guard lock(mutex_);
  return {unanswered_.begin(), unanswered_.end()};
}

std::optional<std::string> Relay::takeNotice() {
  const uint64_t connections = gate_->failedHandshakes();
  const std::lock_guard lock(mutex_);
  if (!notices_.isDue(connections + refused_)) return std::nullopt;
  std::string text =
      fmt::format("tensors at {}: {} connections refused so far", address_.endpoint, connections);
  if (const std::string failure = gate_->lastFailure(); !failure.empty())
    text += fmt::format("; last connection: {}", failure);
  if (!last_refused_.empty()) text += fmt::format("; {}", last_refused_);
  return text;
}

void Relay::wake() {
  const uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) {
    // The counter is at its limit: the thread is awake already.
  }
}

void Relay::run() {
  while (!stopping_.load()) {
    try {
      turn();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return;  // the sockets of the ranks are closed, which tells them
    }
  }
}

// Whose connection has ended, ZeroMQ does not say; it refuses to send to a host whose connection is gone.
void Relay::probeHosts() {
  const auto now = std::chrono::steady_clock::now();
  if (some_ended_.exchange(false)) probe_until_ = now + kProbeFor;
  if (now >= probe_until_ || now < next_probe_) return;
  next_probe_ = now + kProbeEach;
  for (HostLine& line : lines_) {
    if (!line.socket && line.greeted) sendFrame(line, {.kind = Kind::kCredit});
  }
}

// Waits until something comes, and works it off.
void Relay::turn() {
  std::vector<zmq::pollitem_t> items = {{nullptr, wake_, ZMQ_POLLIN, 0},
                                        {listening_->socket().handle(), 0, ZMQ_POLLIN, 0}};
  for (HostLine& line : lines_) {
    if (!line.socket) continue;
    items.push_back({line.socket->socket().handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({line.monitor->socket().handle(), 0, ZMQ_POLLIN, 0});
  }
  const size_t first_link = items.size();
  for (RankLink& link : links_) {
    short events = 0;
    if (!link.closed && !link.held) events |= ZMQ_POLLIN;
    if (!link.closed && !link.queue.empty()) events |= ZMQ_POLLOUT;
    items.push_back({nullptr, events == 0 ? wake_ : link.descriptor, events, 0});
  }
  zmq::poll(items, std::chrono::steady_clock::now() < probe_until_ ? kProbeEach : -1ms);
  uint64_t count = 0;
  if (items[0].revents != 0 && ::read(wake_, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR)
    throw zmq::error_t();
  if (items[1].revents != 0) hearListening();
  size_t item = 2;
  for (HostLine& line : lines_) {
    if (!line.socket) continue;
    if (items[item].revents != 0) hearConnecting(line);
    if (items[item + 1].revents != 0) hearMonitor(line);
    item += 2;
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    const zmq::pollitem_t& polled = items[first_link + i];
    if (polled.events == 0) continue;
    if ((polled.revents & ZMQ_POLLOUT) != 0) writeLink(links_[i]);
    if ((polled.revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0) readLink(links_[i]);
  }
  probeHosts();
}

}  // namespace wire

std::unique_ptr<HostRelay> HostRelay::open(const RelayOptions& options) {
  return std::make_unique<wire::Relay>(options);
}

}  // namespace pipeshard
