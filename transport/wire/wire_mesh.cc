#include "transport/wire/wire_mesh.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/base/ids_format.h"

namespace pipeshard::wire {
namespace {

// Its memory is not written any more when this is gone.
struct WireFlow : mesh::Flow {
  explicit WireFlow(std::shared_ptr<Landing> of) : landing(std::move(of)) {}
  ~WireFlow() override { landing->given_up = true; }
  WireFlow(const WireFlow&) = delete;
  WireFlow& operator=(const WireFlow&) = delete;
  std::shared_ptr<Landing> landing;
};

std::span<const std::byte> bytesOf(const Frame& frame) {
  return {reinterpret_cast<const std::byte*>(&frame), sizeof(frame)};
}

}  // namespace

mesh::Ticket WireMesh::post(Channel channel, RankId to, Operation operation,
                            std::span<const std::byte> data) {
  checkPeer(to);
  Peer& peer = *peers_[to];
  const auto c = static_cast<size_t>(channel);
  const Lock lock(mutex_);
  const uint64_t number = peer.posted[c]++;
  Frame frame{.kind = Kind::kMessage,
              .channel = static_cast<uint8_t>(channel),
              .operation = static_cast<uint8_t>(operation),
              .number = number,
              .bytes = data.size()};
  const bool eager = data.size() <= mesh::kEagerBytes && peer.eager_bytes + data.size() <= mesh::kEagerWindow;
  if (eager) {
    peer.eager_bytes += data.size();
    peer.outstanding[c].push_back({data.size(), nullptr});
    send(frame, to, data);
  } else {
    frame.kind = Kind::kAnnounce;
    peer.outstanding[c].push_back({0, std::make_shared<Sending>(Sending{
                                          .peer = to, .channel = channel, .number = number, .data = data})});
    send(frame, to);
  }
  flush();
  return {channel, to, number, eager};
}

bool WireMesh::completed(const mesh::Ticket& ticket) {
  if (work_) work_();
  const Lock lock(mutex_);
  return peers_[ticket.peer]->completed[static_cast<size_t>(ticket.channel)] > ticket.number;
}

template <typename Ready, typename Progress>
void WireMesh::awaitFlow(Lock& lock, const Waiting& waiting, Ready&& ready, Progress&& progress) {
  while (!ready()) {
    const size_t before = progress();
    await(lock, waiting, [&] { return ready() || progress() != before; });
  }
}

void WireMesh::awaitCompleted(const mesh::Ticket& ticket, const Waiting& waiting) {
  Peer& peer = *peers_[ticket.peer];
  const auto c = static_cast<size_t>(ticket.channel);
  Lock lock(mutex_);
  const auto is_completed = [&] { return peer.completed[c] > ticket.number; };
  if (is_completed()) return;
  checkUsable();
  const std::shared_ptr<Sending> large = peer.outstanding[c][ticket.number - peer.completed[c]].large;
  awaitFlow(lock, waiting, is_completed, [&] { return large ? large->received : 0; });
}

std::unique_ptr<mesh::Flow> WireMesh::startFlow(Channel channel, RankId peer, const mesh::Arrival& arrival,
                                                std::span<std::byte> to) {
  auto landing = std::make_shared<Landing>(
      Landing{.peer = peer, .channel = channel, .number = arrival.number, .to = to});
  landings_.push_back(landing);
  send({.kind = Kind::kGrant, .channel = static_cast<uint8_t>(channel), .number = arrival.number}, peer);
  flush();
  return std::make_unique<WireFlow>(std::move(landing));
}

void WireMesh::finish(mesh::Incoming& incoming) {
  Lock lock(mutex_);
  Peer& peer = *peers_[incoming.waiting.peer];
  if (const auto* flow = static_cast<WireFlow*>(incoming.flow.get())) {
    const Landing& landing = *flow->landing;
    awaitFlow(
        lock, incoming.waiting, [&] { return landing.received == landing.to.size(); },
        [&] { return landing.received; });
    std::erase(landings_, flow->landing);
  }
  incoming.flow.reset();
  const auto c = static_cast<size_t>(incoming.channel);
  send({.kind = Kind::kCompleted, .channel = static_cast<uint8_t>(c), .number = ++peer.taken[c]},
       incoming.waiting.peer);
  flush();
}

void WireMesh::noteLost(RankId rank, const std::string& reason) {
  Peer& peer = *peers_[rank];
  if (peer.contact != Contact::kConnecting && peer.contact != Contact::kOpen) return;
  peer.contact = Contact::kLost;
  peer.reason = reason;
}

void WireMesh::loseAll(const std::string& reason) {
  ended_ = true;
  queue_.clear();
  active_.clear();
  current_.reset();
  for (RankId rank : peers_.ids()) {
    if (peers_[rank]) noteLost(rank, reason);
  }
  changed_.notify_all();
}

// What is half written is written to its end, from a copy: the relay could not make sense of less.
void WireMesh::letGo() {
  if (!said_farewell_ && !ended_) send({.kind = Kind::kFarewell}, RankId());
  said_farewell_ = true;
  active_.clear();
  if (current_ && current_->own.empty() && !current_->payload.empty()) {
    current_->own.assign(current_->payload.begin(), current_->payload.end());
    current_->payload = current_->own;
  }
  for (const std::shared_ptr<Landing>& landing : landings_) landing->given_up = true;
  landings_.clear();
  for (const auto& peer : peers_) {
    if (peer) peer->inbox.expected.clear();
  }
  flush();
}

// `target`: no rank means everybody.
void WireMesh::send(Frame frame, RankId target, std::span<const std::byte> copied) {
  if (ended_) return;
  frame.source = rank_.index();
  frame.target = target.valid() ? static_cast<uint32_t>(target.index()) : kEverybody;
  frame.payload = copied.size();
  queue_.push_back({frame, {copied.begin(), copied.end()}, {}});
}

void WireMesh::activate(const std::shared_ptr<Sending>& sending) {
  const size_t limit = std::min(sending->data.size(), sending->received + kFlowWindow);
  if (said_farewell_ || !sending->granted || sending->queued || sending->sent >= limit) return;
  sending->queued = true;
  active_.push_back(sending);
}

// Headers and small messages before pieces; pieces of several messages in turn.
bool WireMesh::beginNext() {
  if (!queue_.empty()) {
    current_ = std::move(queue_.front());
    queue_.pop_front();
    current_->payload = current_->own;
    return true;
  }
  if (active_.empty()) return false;
  const std::shared_ptr<Sending> sending = active_.front();
  active_.pop_front();
  const size_t bytes = std::min(kPieceBytes, sending->data.size() - sending->sent);
  current_.emplace();
  current_->frame = {.source = static_cast<uint32_t>(rank_.index()),
                     .target = static_cast<uint32_t>(sending->peer.index()),
                     .kind = Kind::kPiece,
                     .channel = static_cast<uint8_t>(sending->channel),
                     .payload = static_cast<uint32_t>(bytes),
                     .number = sending->number,
                     .bytes = sending->sent};
  current_->payload = sending->data.subspan(sending->sent, bytes);
  sending->sent += bytes;
  sending->queued = false;
  activate(sending);
  return true;
}

// Writes what the socket takes without waiting.
void WireMesh::flush() {
  const bool was_full = full_;
  while (!ended_ && (current_ || beginNext())) {
    const std::span<const std::byte> head = bytesOf(current_->frame);
    std::array<iovec, 2> parts{};
    size_t count = 0;
    const auto add = [&](std::span<const std::byte> bytes) {
      if (!bytes.empty()) parts[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    };
    add(head.subspan(std::min(head.size(), current_->done)));
    add(current_->payload.subspan(current_->done - std::min(head.size(), current_->done)));
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t written = ::sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      full_ = true;
      if (!was_full) wake();
      return;
    }
    if (written < 0) break;  // the relay is gone: the thread finds its end, after what it had sent before
    current_->done += static_cast<size_t>(written);
    if (current_->done == head.size() + current_->payload.size()) current_.reset();
  }
  full_ = false;
}

void WireMesh::wake() {
  const uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) {
    // The counter is at its limit: the thread is awake already.
  }
}

}  // namespace pipeshard::wire
