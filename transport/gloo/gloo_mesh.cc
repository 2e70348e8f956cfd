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

uint64_t slotOf(Channel channel) { return 1 + static_cast<uint64_t>(channel); }

template <typename Function>
void forPieces(size_t bytes, Function&& function) {
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes)
    function(begin, std::min(kPieceBytes, bytes - begin));
}

}  // namespace

Ticket GlooMesh::post(Channel channel, RankId to, Operation operation, std::span<const std::byte> data) {
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

bool GlooMesh::completed(const Ticket& ticket) {
  if (work_) work_();
  const Lock lock(mutex_);
  return peers_[ticket.peer]->completed[static_cast<size_t>(ticket.channel)] > ticket.number;
}

void GlooMesh::awaitCompleted(const Ticket& ticket, const Waiting& waiting) {
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

std::unique_ptr<Flow> GlooMesh::startFlow(Channel channel, RankId peer, const Arrival&,
                                          std::span<std::byte> to) {
  std::unique_ptr<Buffer> buffer = context_->createUnboundBuffer(to.data(), to.size());
  forPieces(to.size(),
            [&](size_t begin, size_t bytes) { buffer->recv(peer.index(), slotOf(channel), begin, bytes); });
  return std::make_unique<GlooFlow>(std::move(buffer));
}

void GlooMesh::finish(Incoming& incoming) {
  if (const auto* flow = static_cast<GlooFlow*>(incoming.flow.get())) {
    forPieces(incoming.waiting.bytes,
              [&](size_t, size_t) { awaitPiece(*flow->buffer, false, incoming.waiting); });
  }
  incoming.flow.reset();
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

void GlooMesh::awaitPiece(Buffer& buffer, bool sends, const Waiting& waiting) {
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
    noteLost(peer.rank, reason);
    breakLost(waiting, peer.rank);
  }
}

void GlooMesh::interrupt() {
  MessageMesh::interrupt();
  gate_changed_.notify_all();
}

Contact GlooMesh::contactOf(RankId peer) const { return peers_[peer]->contact; }

const std::string& GlooMesh::lossReason(RankId peer) const { return peers_[peer]->reason; }

Inbox& GlooMesh::inboxOf(RankId peer) { return peers_[peer]->inbox; }

void GlooMesh::letGo() {
  sayFarewell();
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->inbox.expected.clear();
    for (auto& outstanding : peer->outstanding) {
      for (Posted& posted : outstanding) posted.buffer.reset();
    }
  }
}

}  // namespace pipeshard::mesh
