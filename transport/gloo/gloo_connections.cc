// Opening and closing the connections of a mesh, and the threads that serve them.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "ir/base/ids_format.h"
#include "transport/collectives/signals_blocked.h"
#include "transport/gloo/gloo_mesh.h"
#include "transport/gloo/gloo_peer.h"

namespace pipeshard::mesh {
namespace {

using namespace std::chrono_literals;

constexpr auto kFarewell = 500ms;
constexpr auto kFarewellBroken = 50ms;

void ignoreBrokenPipes() {
  struct sigaction action;
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
      action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, nullptr);
  }
}

std::string keyOf(const GlooOptions& options, RankId rank) {
  return fmt::format("gloo/{}/{}", options.channel, rank);
}

bool connectsTo(const GlooOptions& options, RankId peer) {
  if (peer == options.rank) return false;
  return !options.peers ||
         std::find(options.peers->begin(), options.peers->end(), peer) != options.peers->end();
}

// The addresses where a rank awaits each other rank: length and bytes, in rank order.
void appendAddress(std::string& text, const std::vector<char>& address) {
  const uint32_t length = address.size();
  text.append(reinterpret_cast<const char*>(&length), sizeof(length));
  text.append(address.data(), address.size());
}

std::vector<char> addressFor(RankId rank, int size, const std::string& text) {
  std::vector<char> found;
  size_t position = 0;
  for (RankId reader : idsBelow<RankId>(size)) {
    uint32_t length = 0;
    if (text.size() - position < sizeof(length)) return {};
    std::memcpy(&length, text.data() + position, sizeof(length));
    position += sizeof(length);
    if (text.size() - position < length) return {};
    if (reader == rank) found.assign(text.data() + position, text.data() + position + length);
    position += length;
  }
  return position == text.size() ? found : std::vector<char>{};
}

// For people: "tcp://10.0.0.2:40123", of the bytes that Gloo has for an address.
std::string endpointOf(const std::vector<char>& address) {
  const ::gloo::transport::tcp::Address parsed(address);
  const sockaddr_storage& place = parsed.getSockaddr();
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&place), sizeof place, host.data(), host.size(),
                    port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an address that cannot be written";
  const std::string_view text(host.data());
  const bool is_six = text.find(':') != std::string_view::npos;
  return fmt::format("tcp://{}{}{}:{}", is_six ? "[" : "", text, is_six ? "]" : "", port.data());
}

// Gloo begins with the place in its source, which helps nobody here.
std::string withoutSource(std::string reason) {
  if (!reason.starts_with("[")) return reason;
  const size_t end = reason.find("] ");
  return end == std::string::npos ? reason : reason.substr(end + 2);
}

}  // namespace

GlooMesh::GlooMesh(const GlooOptions& options, RendezvousStore& store)
    : MessageMesh(options.rank, options.size, options.timeout), watch_until_(Clock::time_point::max()) {
  if (options.host.empty())
    fail(ErrorCode::kConfiguration, "rank {}: Gloo needs the address of this machine that other nodes reach",
         rank_);
  peers_.resize(size_);
  bool alone = true;
  for (RankId peer : idsBelow<RankId>(size_)) alone = alone && !connectsTo(options, peer);
  if (alone) return;
  ignoreBrokenPipes();
  try {
    connect(options, store);
  } catch (...) {
    shutdown();
    throw;
  }
}

GlooMesh::~GlooMesh() { shutdown(); }

void GlooMesh::connect(const GlooOptions& options, RendezvousStore& store) {
  const auto timeout = options.connect_timeout > 0ms ? options.connect_timeout : timeout_;
  const auto deadline = Clock::now() + timeout;
  std::string addresses;
  try {
    const SignalsBlocked blocked;
    ::gloo::transport::tcp::attr attributes(options.host.c_str());
    device_ = ::gloo::transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(rank_.index(), size_);
    context_->setTimeout(timeout);
    for (RankId peer : idsBelow<RankId>(size_)) {
      appendAddress(addresses, connectsTo(options, peer)
                                   ? context_->createPair(peer.index())->address().bytes()
                                   : std::vector<char>{});
    }
  } catch (const std::exception& error) {
    fail(ErrorCode::kConfiguration,
         "rank {} cannot listen at host '{}': {}; it must be an address of this machine", rank_, options.host,
         withoutSource(error.what()));
  }
  store.set(keyOf(options, rank_), addresses);
  {
    const SignalsBlocked blocked;
    watch_ = std::thread([this] { runWatch(); });
  }
  for (RankId rank : idsBelow<RankId>(size_)) {
    if (connectsTo(options, rank)) peers_[rank] = std::make_unique<Peer>(rank);
  }
  for (const auto& peer : peers_) {
    if (!peer) continue;
    const auto left = std::max(1ms, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    try {
      startPeer(*peer, store.get(keyOf(options, peer->rank), left));
    } catch (Error& error) {
      error.addContext(fmt::format("rank {} connects to rank {}", rank_, peer->rank));
      throw;
    }
  }
  awaitHellos(options, deadline, timeout);
}

void GlooMesh::startPeer(Peer& peer, const std::string& addresses) {
  peer.address = addressFor(rank_, size_, addresses);
  if (peer.address.empty()) {
    fail(ErrorCode::kInternal, "the addresses of rank {} are {} bytes without one for rank {} of {}",
         peer.rank, addresses.size(), rank_, size_);
  }
  for (Small& small : peer.receiving) {
    constexpr size_t kBytes = sizeof(Header) + kEagerBytes;
    small.memory = std::make_unique<std::byte[]>(kBytes);
    small.buffer = context_->createUnboundBuffer(small.memory.get(), kBytes);
  }
  const SignalsBlocked blocked;
  peer.thread = std::thread([this, &peer] { runPeer(peer); });
}

void GlooMesh::awaitHellos(const GlooOptions& options, Clock::time_point deadline,
                           std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  const auto failed = [](const std::unique_ptr<Peer>& peer) {
    return peer && !peer->greeted && peer->contact == Contact::kLost;
  };
  const auto missing = [](const std::unique_ptr<Peer>& peer) { return peer && !peer->greeted; };
  const auto is_over = [&] {
    return std::any_of(peers_.begin(), peers_.end(), failed) ||
           std::none_of(peers_.begin(), peers_.end(), missing);
  };
  bool told = false;
  while (!is_over() && Clock::now() < deadline) {
    const auto next = Clock::now() + options.unanswered_after;
    if (changed_.wait_until(lock, std::min<Clock::time_point>(deadline, next), is_over)) break;
    if (!options.on_unanswered || Clock::now() < next) continue;
    tellUnanswered(lock, options);
    told = true;
  }
  const auto lost = std::find_if(peers_.begin(), peers_.end(), failed);
  if (lost != peers_.end()) {
    fail(ErrorCode::kPeerUnavailable,
         "rank {} cannot connect to rank {}: {}; look at that rank's log for the first cause", rank_,
         (*lost)->rank, (*lost)->reason);
  }
  std::vector<RankId> silent;
  for (const auto& peer : peers_) {
    if (missing(peer)) silent.push_back(peer->rank);
  }
  if (silent.empty() && told) tellUnanswered(lock, options);
  if (silent.empty()) return;
  fail(ErrorCode::kHang, "rank {}: rank {} did not connect within {} ms: stopped, stuck or out of reach",
       rank_, fmt::join(silent, ", rank "), timeout.count());
}

// Those that have not greeted.
void GlooMesh::tellUnanswered(Lock& lock, const GlooOptions& options) {
  std::vector<UnansweredRank> unanswered;
  for (const auto& peer : peers_) {
    if (peer && !peer->greeted) unanswered.push_back({peer->rank, endpointOf(peer->address)});
  }
  lock.unlock();
  options.on_unanswered(unanswered);
  lock.lock();
}

void GlooMesh::runPeer(Peer& peer) {
  std::string reason;
  try {
    context_->getPair(peer.rank.index())->connect(peer.address);
    {
      const Lock lock(mutex_);
      peer.connected = true;
    }
    for (Small& small : peer.receiving) postReceive(peer, small);
    {
      const Lock lock(mutex_);
      const auto ranks = static_cast<Operation>(size_);
      sendSmall(
          peer,
          {.kind = Kind::kHello, .channel = Channel::kPointToPoint, .operation = ranks, .bytes = kProtocol},
          {});
    }
    readSmall(peer);
    reason = "this rank closes its communicator";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const Lock lock(mutex_);
  peer.gone = true;
  noteLost(peer.rank, reason);
  changed_.notify_all();
}

// A broken connection refuses new receives, but what had arrived before lies in those that were posted: they
// are read first.
void GlooMesh::postReceive(Peer& peer, Small& small) {
  small.posted = false;
  try {
    if (peer.broken.empty()) small.buffer->recv(peer.rank.index(), 0);
    small.posted = peer.broken.empty();
  } catch (const std::exception& error) {
    peer.broken = error.what();
  }
}

// Returns when this rank closes; throws when the connection breaks or the peer makes no sense.
void GlooMesh::readSmall(Peer& peer) {
  for (size_t next = 0;; next = (next + 1) % kPosted) {
    Small& small = peer.receiving[next];
    if (!small.posted) fail(ErrorCode::kPeerUnavailable, "{}", peer.broken);
    if (!small.buffer->waitRecv(kForever)) return;
    Header header;
    std::memcpy(&header, small.memory.get(), sizeof(header));
    std::vector<std::byte> payload;
    if (header.kind == Kind::kMessage) {
      if (header.bytes > kEagerBytes)
        fail(ErrorCode::kPeerUnavailable, "it sent a small message of {} bytes", header.bytes);
      payload.assign(small.memory.get() + sizeof(header), small.memory.get() + sizeof(header) + header.bytes);
    }
    postReceive(peer, small);
    const Lock lock(mutex_);
    handle(peer, header, std::move(payload));
    changed_.notify_all();
  }
}

// With the mutex held.
void GlooMesh::handle(Peer& peer, const Header& header, std::vector<std::byte> payload) {
  if (!peer.greeted) {
    if (header.kind != Kind::kHello || header.bytes != kProtocol ||
        static_cast<int>(header.operation) != size_) {
      fail(ErrorCode::kPeerUnavailable,
           "it speaks another protocol, or is of a communicator of another size than {}", size_);
    }
    peer.greeted = true;
    peer.contact = Contact::kOpen;
  }
  const auto c = static_cast<size_t>(header.channel);
  if (c >= kChannels) fail(ErrorCode::kPeerUnavailable, "it sent a message for channel {}", c);
  ++peer.arrived;
  for (; peer.sent_arrived < header.arrived && !peer.sent.empty(); ++peer.sent_arrived) peer.sent.pop_front();
  for (size_t i = 0; i < kChannels; ++i) {
    for (; peer.completed[i] < header.completed[i] && !peer.outstanding[i].empty(); ++peer.completed[i]) {
      peer.eager_bytes -= peer.outstanding[i].front().eager_bytes;
      peer.outstanding[i].pop_front();
    }
  }
  switch (header.kind) {
    case Kind::kMessage:
    case Kind::kAnnounce:
      peer.inbox.arrived[c].push_back(
          {header.operation, header.bytes, header.kind == Kind::kMessage, std::move(payload)});
      beginExpected(peer.rank);
      break;
    case Kind::kFarewell:
      sendSmall(peer,
                {.kind = Kind::kCounts,
                 .channel = Channel::kPointToPoint,
                 .operation = Operation::kSend,
                 .bytes = 0},
                {});
      peer.contact = Contact::kEnded;
      gate_changed_.notify_one();
      break;
    case Kind::kHello:
    case Kind::kCounts: break;
  }
}

// With the mutex held.
void GlooMesh::sendSmall(Peer& peer, Header header, std::span<const std::byte> payload) {
  if (peer.gone || peer.contact == Contact::kLost) return;
  header.arrived = peer.arrived;
  header.completed = peer.taken;
  Small small;
  small.memory = std::make_unique<std::byte[]>(sizeof(header) + payload.size());
  std::memcpy(small.memory.get(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(small.memory.get() + sizeof(header), payload.data(), payload.size());
  small.buffer = context_->createUnboundBuffer(small.memory.get(), sizeof(header) + payload.size());
  peer.sent.push_back(std::move(small));
  try {
    peer.sent.back().buffer->send(peer.rank.index(), 0);
  } catch (const std::exception&) {
    // The connection is broken: its thread says so to whoever waits, after what the peer had sent before.
  }
}

// With the mutex held.
void GlooMesh::noteLost(RankId rank, const std::string& reason) {
  Peer& peer = *peers_[rank];
  if (peer.contact != Contact::kConnecting && peer.contact != Contact::kOpen) return;
  peer.contact = Contact::kLost;
  peer.reason = withoutSource(reason);
  gate_changed_.notify_one();
}

void GlooMesh::runWatch() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (gate_.buffer == nullptr) {
      watch_until_ = Clock::time_point::max();
      gate_changed_.wait(lock);
    } else if (Clock::now() >= gate_.until || interrupted_ || isLost(gate_.members)) {
      gate_.sends ? gate_.buffer->abortWaitSend() : gate_.buffer->abortWaitRecv();
      gate_.buffer = nullptr;
    } else {
      watch_until_ = gate_.until;
      gate_changed_.wait_until(lock, gate_.until);
    }
  }
}

// With the mutex held.
void GlooMesh::sayFarewell() {
  for (const auto& peer : peers_) {
    if (!peer || !peer->greeted || peer->parted > 0) continue;
    sendSmall(*peer,
              {.kind = Kind::kFarewell,
               .channel = Channel::kPointToPoint,
               .operation = Operation::kSend,
               .bytes = 0},
              {});
    peer->parted = peer->sent_arrived + peer->sent.size();
  }
}

// What small messages are under way is delivered first; Gloo moves the others only as long as somebody
// receives them.
void GlooMesh::shutdown() {
  {
    Lock lock(mutex_);
    sayFarewell();
    const auto settled = [](const std::unique_ptr<Peer>& peer) {
      return !peer || !peer->greeted || peer->gone || peer->sent_arrived >= peer->parted;
    };
    changed_.wait_for(lock, broken_ ? kFarewellBroken : kFarewell,
                      [&] { return std::all_of(peers_.begin(), peers_.end(), settled); });
    stopping_ = true;
    gate_changed_.notify_all();
  }
  for (const auto& peer : peers_) {
    if (peer) endPeerThread(*peer);
  }
  if (watch_.joinable()) watch_.join();
  peers_.clear();  // their buffers belong to the context
  context_.reset();
  device_.reset();
}

void GlooMesh::endPeerThread(Peer& peer) {
  if (!peer.thread.joinable()) return;
  Lock lock(mutex_);
  while (!peer.gone) {
    if (!peer.connected) {
      lock.unlock();
      context_->getPair(peer.rank.index())->close();
      lock.lock();
    }
    for (Small& small : peer.receiving) small.buffer->abortWaitRecv();
    changed_.wait_for(lock, 10ms, [&] { return peer.gone; });
  }
  lock.unlock();
  peer.thread.join();
}

}  // namespace pipeshard::mesh
