#include "transport/gloo/gloo_mesh.h"

#include <gloo/transport/context.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ir/base/ids_format.h"
#include "transport/gloo/gloo_peer.h"

namespace pipeshard::mesh {
namespace {

using namespace std::chrono_literals;

// How often a wait serves the communicator that this one is used with.
constexpr auto kWorkSlice = 200us;

uint64_t slotOf(Channel channel) { return 1 + static_cast<uint64_t>(channel); }

template <typename Function>
void forPieces(size_t bytes, Function&& function) {
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes)
    function(begin, std::min(kPieceBytes, bytes - begin));
}

}  // namespace

void Mesh::checkUsable() const {
  if (broken_)
    throw Error(broken_->code(),
                fmt::format("the communicator is broken by an earlier error: {}", broken_->message()));
}

void Mesh::checkPeer(RankId peer) const {
  checkUsable();
  if (peer >= RankId(size_))
    fail(ErrorCode::kInternal, "rank {}: peer {} of a communicator of {} ranks", rank_, peer, size_);
  if (peer == rank_)
    fail(ErrorCode::kInternal, "rank {} sends to itself, or receives from itself, through Gloo", rank_);
  if (!peers_[peer])
    fail(ErrorCode::kInternal, "rank {} has not opened a connection to rank {}", rank_, peer);
}

Ticket Mesh::post(Channel channel, RankId to, Operation operation, std::span<const std::byte> data) {
  checkPeer(to);
  Peer& peer = *peers_[to];
  const auto c = static_cast<size_t>(channel);
  Header header{.kind = Kind::kMessage, .channel = channel, .operation = operation, .bytes = data.size()};
  const Lock lock(mutex_);
  const uint64_t number = peer.posted[c]++;
  if (data.size() <= kEagerBytes && peer.eager_bytes + data.size() <= kEagerWindow) {
    peer.eager_bytes += data.size();
    peer.outstanding[c].push_back({nullptr, data.size()});
    sendSmall(peer, header, data);
    return {channel, to, number, true};
  }
  header.kind = Kind::kAnnounce;
  const std::shared_ptr<Buffer> buffer =
      context_->createUnboundBuffer(const_cast<std::byte*>(data.data()), data.size());
  peer.outstanding[c].push_back({buffer, 0});
  sendSmall(peer, header, {});
  try {
    forPieces(data.size(),
              [&](size_t begin, size_t bytes) { buffer->send(to.index(), slotOf(channel), begin, bytes); });
  } catch (const std::exception&) {
    // The connection is broken: its thread says so to whoever waits, after what the peer had sent before.
  }
  return {channel, to, number, false};
}

bool Mesh::completed(const Ticket& ticket) {
  if (work_) work_();
  const Lock lock(mutex_);
  return peers_[ticket.peer]->completed[static_cast<size_t>(ticket.channel)] > ticket.number;
}

void Mesh::awaitCompleted(const Ticket& ticket, const Waiting& waiting) {
  Peer& peer = *peers_[ticket.peer];
  const auto c = static_cast<size_t>(ticket.channel);
  std::shared_ptr<Buffer> buffer;
  {
    const Lock lock(mutex_);
    if (peer.completed[c] > ticket.number) return;
    checkUsable();
    buffer = peer.outstanding[c][ticket.number - peer.completed[c]].buffer;
  }
  // Piece by piece, so that a slow connection is not taken for a stuck peer.
  if (buffer) forPieces(waiting.bytes, [&](size_t, size_t) { awaitPiece(*buffer, true, waiting); });
  Lock lock(mutex_);
  await(lock, waiting, [&] { return peer.completed[c] > ticket.number; });
}

Incoming Mesh::take(Channel channel, std::span<std::byte> to, const Waiting& waiting) {
  checkPeer(waiting.peer);
  Peer& peer = *peers_[waiting.peer];
  auto& inbox = peer.inbox[static_cast<size_t>(channel)];
  Lock lock(mutex_);
  const auto has_come = [&] { return !inbox.empty(); };
  waited_.during(has_come, [&] { await(lock, waiting, has_come); });
  Expected expected;
  if (channel == Channel::kPointToPoint && !peer.expected.empty()) {
    expected = std::move(peer.expected.front());
    peer.expected.pop_front();
    if (expected.to.data() != to.data()) {
      breakWith(ErrorCode::kInternal,
                fmt::format("rank {} receives from rank {} before it has waited for its posted receive",
                            rank_, peer.rank));
    }
  }
  const Arrival arrival = std::move(inbox.front());
  inbox.pop_front();
  if (arrival.operation != waiting.operation) {
    breakWith(ErrorCode::kVersionMismatch, fmt::format("rank {} does {} where rank {} does {} of {} bytes",
                                                       waiting.peer, operationName(arrival.operation), rank_,
                                                       operationName(waiting.operation), waiting.bytes));
  }
  if (arrival.bytes != to.size()) {
    breakWith(ErrorCode::kVersionMismatch,
              fmt::format("rank {} gives {} bytes to a {} where rank {} expects {} bytes", waiting.peer,
                          arrival.bytes, operationName(waiting.operation), rank_, to.size()));
  }
  if (expected.begun) return {channel, waiting, std::move(expected.buffer)};
  lock.unlock();
  if (arrival.eager) {
    if (!to.empty()) std::memcpy(to.data(), arrival.payload.data(), to.size());
    return {channel, waiting, nullptr};
  }
  try {
    return {channel, waiting, postPieces(channel, waiting.peer, to)};
  } catch (const std::exception& error) {
    lock.lock();
    noteLost(peer, error.what());
    breakLost(waiting, peer);
  }
}

std::unique_ptr<Buffer> Mesh::postPieces(Channel channel, RankId peer, std::span<std::byte> to) {
  std::unique_ptr<Buffer> buffer = context_->createUnboundBuffer(to.data(), to.size());
  forPieces(to.size(),
            [&](size_t begin, size_t bytes) { buffer->recv(peer.index(), slotOf(channel), begin, bytes); });
  return buffer;
}

void Mesh::expect(RankId from, std::span<std::byte> to) {
  checkPeer(from);
  Peer& peer = *peers_[from];
  const Lock lock(mutex_);
  peer.expected.emplace_back().to = to;
  beginExpected(peer);
}

// With the mutex held. By the thread that posts the receive, or by the peer's. In order: so are the pieces of
// large messages.
void Mesh::beginExpected(Peer& peer) {
  const auto& inbox = peer.inbox[static_cast<size_t>(Channel::kPointToPoint)];
  for (size_t i = 0; i < std::min(inbox.size(), peer.expected.size()); ++i) {
    if (!peer.expected[i].begun && !begin(peer.rank, inbox[i], peer.expected[i])) return;
  }
}

bool Mesh::begin(RankId peer, const Arrival& arrival, Expected& expected) {
  if (arrival.operation != Operation::kSend || arrival.bytes != expected.to.size()) return false;
  if (arrival.eager) {
    if (arrival.bytes > 0) std::memcpy(expected.to.data(), arrival.payload.data(), arrival.bytes);
  } else {
    try {
      expected.buffer = postPieces(Channel::kPointToPoint, peer, expected.to);
    } catch (const std::exception&) {
      return false;  // The connection is broken: take() tries again, and says so.
    }
  }
  expected.begun = true;
  return true;
}

void Mesh::giveUp(RankId from) {
  const Lock lock(mutex_);
  const auto& peer = peers_[from];
  if (!peer || peer->expected.empty()) return;
  peer->expected.clear();
  if (!broken_)
    broken_.emplace(ErrorCode::kInternal,
                    fmt::format("rank {} gave up a posted receive from rank {}", rank_, from));
}

void Mesh::finish(Incoming& incoming) {
  if (incoming.buffer)
    forPieces(incoming.waiting.bytes,
              [&](size_t, size_t) { awaitPiece(*incoming.buffer, false, incoming.waiting); });
  incoming.buffer.reset();
  const Lock lock(mutex_);
  Peer& peer = *peers_[incoming.waiting.peer];
  ++peer.taken[static_cast<size_t>(incoming.channel)];
  sendSmall(peer,
            {.kind = Kind::kCounts,
             .channel = incoming.channel,
             .operation = incoming.waiting.operation,
             .bytes = 0},
            {});
}

template <typename Ready>
void Mesh::await(Lock& lock, const Waiting& waiting, Ready&& ready) {
  const auto deadline = Clock::now() + timeout_;
  while (!ready()) {
    bool again = false;
    if (work_) {
      lock.unlock();
      again = work_();
      lock.lock();
      if (ready()) return;
    }
    checkWait(waiting, deadline);
    changed_.wait_until(lock, again ? std::min(deadline, Clock::now() + kWorkSlice) : deadline);
  }
}

void Mesh::awaitPiece(Buffer& buffer, bool sends, const Waiting& waiting) {
  const auto deadline = Clock::now() + timeout_;
  for (bool done = false; !done;) {
    const bool again = work_ && work_();
    {
      const Lock lock(mutex_);
      checkWait(waiting, deadline);
      gate_ = {&buffer, sends, again ? std::min(deadline, Clock::now() + kWorkSlice) : deadline,
               waiting.members};
      if (gate_.until < watch_until_) gate_changed_.notify_one();
    }
    std::string reason;
    try {
      done = sends ? buffer.waitSend(kForever) : buffer.waitRecv(kForever);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    Lock lock(mutex_);
    gate_.buffer = nullptr;
    if (reason.empty()) continue;
    // The peer's thread knows whether it said farewell before.
    Peer& peer = *peers_[waiting.peer];
    changed_.wait_for(lock, 1s, [&] { return peer.gone; });
    noteLost(peer, reason);
    breakLost(waiting, peer);
  }
}

void Mesh::interrupt() {
  const Lock lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
  gate_changed_.notify_all();
}

bool Mesh::isLost(std::span<const RankId> members) const {
  return std::any_of(members.begin(), members.end(), [&](RankId member) {
    const auto& peer = peers_[member];
    return peer && peer->contact == Contact::kLost;
  });
}

void Mesh::checkWait(const Waiting& waiting, Clock::time_point deadline) {
  for (const RankId member : waiting.members) {
    if (isLost({&member, 1})) breakLost(waiting, *peers_[member]);
  }
  const Peer& peer = *peers_[waiting.peer];
  if (peer.contact == Contact::kEnded) breakLost(waiting, peer);
  if (interrupted_)
    breakWith(ErrorCode::kPeerUnavailable,
              fmt::format("{}, but this rank has failed elsewhere and gives up", describeWait(waiting)));
  if (Clock::now() < deadline) return;
  breakWith(ErrorCode::kHang, fmt::format("{}, and nothing came in {} ms; rank {} is connected, but stopped, "
                                          "stuck, busy elsewhere or out of reach",
                                          describeWait(waiting), timeout_.count(), waiting.peer));
}

std::string Mesh::describeWait(const Waiting& waiting) const {
  return fmt::format("rank {}: {} of {} bytes {} rank {}", rank_, operationName(waiting.operation),
                     waiting.bytes, waiting.action, waiting.peer);
}

void Mesh::breakLost(const Waiting& waiting, const Peer& lost) {
  const std::string what = lost.contact == Contact::kEnded
                               ? "has ended and closed its communicator"
                               : fmt::format("has died or its connection broke ({})", lost.reason);
  breakWith(ErrorCode::kPeerUnavailable,
            fmt::format("{}, but rank {} {}; look at that rank's log for the first cause",
                        describeWait(waiting), lost.rank, what));
}

// With the mutex held. The memory of the caller is not touched any more once this has thrown.
void Mesh::breakWith(ErrorCode code, std::string message) {
  broken_.emplace(code, std::move(message));
  sayFarewell();
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->expected.clear();
    for (auto& outstanding : peer->outstanding) {
      for (Posted& posted : outstanding) posted.buffer.reset();
    }
  }
  throw *broken_;
}

}  // namespace pipeshard::mesh
