// Opening and closing one rank's end of a wire, and the thread that reads what comes.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ir/base/ids_format.h"
#include "transport/collectives/signals_blocked.h"
#include "transport/wire/wire_mesh.h"

namespace pipeshard::wire {
namespace {

using namespace std::chrono_literals;

// For the relay to take what small messages are still to be sent.
constexpr auto kFarewellTime = 500ms;
constexpr auto kFarewellBroken = 50ms;
// At once, before what has come is told to whoever waits.
constexpr size_t kReadAtOnce = 1 << 20;

}  // namespace

WireMesh::WireMesh(const WireOptions& options)
    : MessageMesh(options.rank, options.size, options.timeout), descriptor_(options.descriptor) {
  peers_.resize(size_);
  bool alone = true;
  for (RankId peer : idsBelow<RankId>(size_)) {
    const bool listed = !options.peers ||
                        std::find(options.peers->begin(), options.peers->end(), peer) != options.peers->end();
    if (peer == rank_ || !listed) continue;
    peers_[peer] = std::make_unique<Peer>();
    alone = false;
  }
  if (alone) return;
  if (::fcntl(descriptor_, F_SETFD, FD_CLOEXEC) != 0) {
    fail(ErrorCode::kConfiguration,
         "rank {}: descriptor {} is not open in this process; start the worker from the process that made it",
         rank_, descriptor_);
  }
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail(ErrorCode::kOutOfMemory, "cannot make an eventfd: {}", std::strerror(errno));
  try {
    open(options);
  } catch (...) {
    close();
    throw;
  }
}

WireMesh::~WireMesh() { close(); }

void WireMesh::open(const WireOptions& options) {
  const auto timeout = options.connect_timeout > 0ms ? options.connect_timeout : timeout_;
  {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  }
  Lock lock(mutex_);
  send({.kind = Kind::kOpen, .number = static_cast<uint64_t>(size_), .bytes = kProtocol}, RankId());
  flush();
  const auto first = [&](Contact contact) {
    const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const std::unique_ptr<Peer>& peer) {
      return peer && peer->contact == contact;
    });
    return RankId(found - peers_.begin());
  };
  const RankId none(peers_.size());
  changed_.wait_for(lock, timeout,
                    [&] { return first(Contact::kLost) != none || first(Contact::kConnecting) == none; });
  if (const RankId lost = first(Contact::kLost); lost != none) {
    fail(ErrorCode::kPeerUnavailable,
         "rank {} cannot connect to rank {}: {}; look at that rank's log for the first cause", rank_, lost,
         peers_[lost]->reason);
  }
  if (const RankId silent = first(Contact::kConnecting); silent != none) {
    fail(ErrorCode::kPeerUnavailable,
         "rank {} connects to rank {}: it has not opened its end within {} ms; did it start, and does no "
         "firewall stand between the hosts?",
         rank_, silent, timeout.count());
  }
}

void WireMesh::close() {
  if (thread_.joinable()) {
    Lock lock(mutex_);
    letGo();
    changed_.wait_for(lock, broken_ ? kFarewellBroken : kFarewellTime,
                      [&] { return ended_ || (queue_.empty() && !current_); });
    stopping_ = true;
    wake();
    lock.unlock();
    thread_.join();
  }
  if (descriptor_ >= 0) ::close(descriptor_);
  if (wake_ >= 0) ::close(wake_);
  descriptor_ = wake_ = -1;
}

void WireMesh::run() {
  Lock lock(mutex_);
  while (!stopping_) {
    std::array<pollfd, 2> items{{{wake_, POLLIN, 0}, {descriptor_, POLLIN, 0}}};
    if (ended_) items[1].fd = -1;
    if (full_) items[1].events |= POLLOUT;
    lock.unlock();
    if (::poll(items.data(), items.size(), -1) < 0 && errno != EINTR) return;
    lock.lock();
    uint64_t count = 0;
    if (items[0].revents != 0 && ::read(wake_, &count, sizeof count) < 0 && errno != EAGAIN) return;
    if ((items[1].revents & ~POLLOUT) != 0 && !readSome()) loseAll("the daemon of this host is gone");
    flush();
    changed_.notify_all();
  }
}

// Takes what there is without waiting. False: the relay is gone.
bool WireMesh::readBytes(std::byte* to, size_t bytes, size_t& got) {
  const ssize_t count = ::recv(descriptor_, to, bytes, MSG_DONTWAIT);
  got = count > 0 ? static_cast<size_t>(count) : 0;
  if (count == 0) return false;
  return count > 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool WireMesh::readSome() {
  for (size_t total = 0; total < kReadAtOnce;) {
    size_t got = 0;
    Arriving& in = arriving_;
    if (in.done < sizeof(Frame)) {
      if (!readBytes(reinterpret_cast<std::byte*>(&in.frame) + in.done, sizeof(Frame) - in.done, got))
        return false;
      in.done += got;
      if (in.done == sizeof(Frame)) beginPayload();
    } else {
      const size_t rest = sizeof(Frame) + in.frame.payload - in.done;
      const bool lands = in.landing && !in.landing->given_up;
      if (in.landing && !lands && in.own.empty()) in.own.resize(in.frame.payload);
      std::byte* to =
          lands ? in.landing->to.data() + in.landing->received : in.own.data() + (in.done - sizeof(Frame));
      if (!readBytes(to, rest, got)) return false;
      in.done += got;
      if (lands) advance(*in.landing, got);
    }
    if (got == 0) return true;
    total += got;
    if (in.done < sizeof(Frame) || in.done < sizeof(Frame) + in.frame.payload) continue;
    handle();
    in = {};
  }
  return true;
}

std::shared_ptr<Landing> WireMesh::findLanding(RankId peer, const Frame& frame) const {
  const auto found =
      std::find_if(landings_.begin(), landings_.end(), [&](const std::shared_ptr<Landing>& landing) {
        return landing->peer == peer && static_cast<uint8_t>(landing->channel) == frame.channel &&
               landing->number == frame.number && landing->received == frame.bytes &&
               landing->to.size() - landing->received >= frame.payload;
      });
  return found == landings_.end() ? nullptr : *found;
}

// Pieces go where they belong, all else, and pieces that nobody wants any more, into memory of their own.
void WireMesh::beginPayload() {
  Arriving& in = arriving_;
  in.landing.reset();
  if (in.frame.kind == Kind::kPiece) in.landing = findLanding(RankId(in.frame.source), in.frame);
  if (!in.landing) in.own.resize(in.frame.payload);
}

void WireMesh::advance(Landing& landing, size_t bytes) {
  landing.received += bytes;
  if (landing.received - landing.told < kFlowStep) return;
  landing.told = landing.received;
  send({.kind = Kind::kProgress,
        .channel = static_cast<uint8_t>(landing.channel),
        .number = landing.number,
        .bytes = landing.received},
       landing.peer);
}

void WireMesh::handle() {
  const Frame& frame = arriving_.frame;
  const RankId source(frame.source);
  if (source >= RankId(size_) || !speaksTo(source)) return;
  Peer& peer = *peers_[source];
  const size_t c = frame.channel;
  if (c >= mesh::kChannels) return noteLost(source, fmt::format("it sent a message for channel {}", c));
  switch (frame.kind) {
    case Kind::kOpen:
      if (frame.bytes != kProtocol || frame.number != static_cast<uint64_t>(size_)) {
        return noteLost(source, fmt::format("it speaks another protocol, or is of a communicator of another "
                                            "size than {}",
                                            size_));
      }
      if (peer.contact == Contact::kConnecting) peer.contact = Contact::kOpen;
      return;
    case Kind::kFarewell:
      if (peer.contact != Contact::kLost) peer.contact = Contact::kEnded;
      return;
    case Kind::kLost:
      return noteLost(source, {reinterpret_cast<const char*>(arriving_.own.data()), arriving_.own.size()});
    case Kind::kMessage:
    case Kind::kAnnounce:
      if (frame.kind == Kind::kMessage && frame.bytes != arriving_.own.size())
        return noteLost(source, "it sent a message of another size than it said");
      peer.inbox.arrived[c].push_back({static_cast<Operation>(frame.operation), frame.bytes,
                                       frame.kind == Kind::kMessage, std::move(arriving_.own),
                                       peer.arrived[c]++});
      return beginExpected(source);
    default: return handleAnswer(peer, frame);
  }
}

// Of the receiver of what this rank sends.
void WireMesh::handleAnswer(Peer& peer, const Frame& frame) {
  auto& outstanding = peer.outstanding[frame.channel];
  uint64_t& completed = peer.completed[frame.channel];
  if (frame.kind == Kind::kCompleted) {
    for (; completed < frame.number && !outstanding.empty(); ++completed) {
      peer.eager_bytes -= outstanding.front().eager_bytes;
      outstanding.pop_front();
    }
    return;
  }
  const uint64_t position = frame.number - completed;
  if (frame.number < completed || position >= outstanding.size() || !outstanding[position].large) return;
  const std::shared_ptr<Sending>& sending = outstanding[position].large;
  if (frame.kind == Kind::kGrant) sending->granted = true;
  if (frame.kind == Kind::kProgress) sending->received = std::min<size_t>(frame.bytes, sending->sent);
  activate(sending);
}

}  // namespace pipeshard::wire
