#include "transport/collectives/message_mesh.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ir/base/ids_format.h"

namespace pipeshard::mesh {

MessageMesh::MessageMesh(RankId rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), timeout_(timeout) {
  if (size_ < 1 || rank_ >= RankId(size_))
    fail(ErrorCode::kConfiguration, "rank {} opens a communicator of {} ranks", rank_, size_);
  if (timeout_ <= std::chrono::milliseconds(0))
    fail(ErrorCode::kConfiguration, "a timeout of {} ms; it must be positive", timeout_.count());
}

void MessageMesh::checkUsable() const {
  if (broken_)
    throw Error(broken_->code(),
                fmt::format("the communicator is broken by an earlier error: {}", broken_->message()));
}

void MessageMesh::checkPeer(RankId peer) const {
  checkUsable();
  if (peer >= RankId(size_))
    fail(ErrorCode::kInternal, "rank {}: peer {} of a communicator of {} ranks", rank_, peer, size_);
  if (peer == rank_) fail(ErrorCode::kInternal, "rank {} sends to itself, or receives from itself", rank_);
  if (!speaksTo(peer))
    fail(ErrorCode::kInternal, "rank {} has not opened a connection to rank {}", rank_, peer);
}

Incoming MessageMesh::take(Channel channel, std::span<std::byte> to, const Waiting& waiting) {
  checkPeer(waiting.peer);
  Lock lock(mutex_);
  Inbox& inbox = inboxOf(waiting.peer);
  auto& arrived = inbox.arrived[static_cast<size_t>(channel)];
  const auto has_come = [&] { return !arrived.empty(); };
  waited_.during(has_come, [&] { await(lock, waiting, has_come); });
  Inbox::Expected expected;
  if (channel == Channel::kPointToPoint && !inbox.expected.empty()) {
    expected = std::move(inbox.expected.front());
    inbox.expected.pop_front();
    if (expected.to.data() != to.data()) {
      breakWith(ErrorCode::kInternal,
                fmt::format("rank {} receives from rank {} before it has waited for its posted receive",
                            rank_, waiting.peer));
    }
  }
  const Arrival arrival = std::move(arrived.front());
  arrived.pop_front();
  checkArrival(arrival, waiting);
  if (expected.begun) return {channel, waiting, std::move(expected.flow)};
  if (arrival.eager) {
    lock.unlock();
    if (!to.empty()) std::memcpy(to.data(), arrival.payload.data(), to.size());
    return {channel, waiting, nullptr};
  }
  try {
    return {channel, waiting, startFlow(channel, waiting.peer, arrival, to)};
  } catch (const std::exception& error) {
    noteLost(waiting.peer, error.what());
    breakLost(waiting, waiting.peer);
  }
}

void MessageMesh::checkArrival(const Arrival& arrival, const Waiting& waiting) {
  if (arrival.operation != waiting.operation) {
    breakWith(ErrorCode::kVersionMismatch, fmt::format("rank {} does {} where rank {} does {} of {} bytes",
                                                       waiting.peer, operationName(arrival.operation), rank_,
                                                       operationName(waiting.operation), waiting.bytes));
  }
  if (arrival.bytes == waiting.bytes) return;
  breakWith(ErrorCode::kVersionMismatch,
            fmt::format("rank {} gives {} bytes to a {} where rank {} expects {} bytes", waiting.peer,
                        arrival.bytes, operationName(waiting.operation), rank_, waiting.bytes));
}

void MessageMesh::expect(RankId from, std::span<std::byte> to) {
  checkPeer(from);
  const Lock lock(mutex_);
  inboxOf(from).expected.emplace_back().to = to;
  beginExpected(from);
}

// By the thread that posts the receive, or by the one that hears the peer. In order: so are the pieces of
// large messages.
void MessageMesh::beginExpected(RankId peer) {
  Inbox& inbox = inboxOf(peer);
  const auto& arrived = inbox.arrived[static_cast<size_t>(Channel::kPointToPoint)];
  for (size_t i = 0; i < std::min(arrived.size(), inbox.expected.size()); ++i) {
    if (!inbox.expected[i].begun && !begin(peer, arrived[i], inbox.expected[i])) return;
  }
}

bool MessageMesh::begin(RankId peer, const Arrival& arrival, Inbox::Expected& expected) {
  if (arrival.operation != Operation::kSend || arrival.bytes != expected.to.size()) return false;
  if (arrival.eager) {
    if (arrival.bytes > 0) std::memcpy(expected.to.data(), arrival.payload.data(), arrival.bytes);
  } else {
    try {
      expected.flow = startFlow(Channel::kPointToPoint, peer, arrival, expected.to);
    } catch (const std::exception&) {
      return false;  // The connection is broken: take() tries again, and says so.
    }
  }
  expected.begun = true;
  return true;
}

void MessageMesh::giveUp(RankId from) {
  const Lock lock(mutex_);
  if (!speaksTo(from) || inboxOf(from).expected.empty()) return;
  inboxOf(from).expected.clear();
  if (!broken_)
    broken_.emplace(ErrorCode::kInternal,
                    fmt::format("rank {} gave up a posted receive from rank {}", rank_, from));
}

void MessageMesh::interrupt() {
  const Lock lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

bool MessageMesh::isLost(std::span<const RankId> members) const {
  return std::any_of(members.begin(), members.end(),
                     [&](RankId member) { return speaksTo(member) && contactOf(member) == Contact::kLost; });
}

void MessageMesh::checkWait(const Waiting& waiting, Clock::time_point deadline) {
  for (const RankId member : waiting.members) {
    if (isLost({&member, 1})) breakLost(waiting, member);
  }
  if (contactOf(waiting.peer) == Contact::kEnded) breakLost(waiting, waiting.peer);
  if (interrupted_)
    breakWith(ErrorCode::kPeerUnavailable,
              fmt::format("{}, but this rank has failed elsewhere and gives up", describeWait(waiting)));
  if (Clock::now() < deadline) return;
  breakWith(ErrorCode::kHang, fmt::format("{}, and nothing came in {} ms; rank {} is connected, but stopped, "
                                          "stuck, busy elsewhere or out of reach",
                                          describeWait(waiting), timeout_.count(), waiting.peer));
}

std::string MessageMesh::describeWait(const Waiting& waiting) const {
  return fmt::format("rank {}: {} of {} bytes {} rank {}", rank_, operationName(waiting.operation),
                     waiting.bytes, waiting.action, waiting.peer);
}

void MessageMesh::breakLost(const Waiting& waiting, RankId lost) {
  const std::string what = contactOf(lost) == Contact::kEnded
                               ? "has ended and closed its communicator"
                               : fmt::format("has died or its connection broke ({})", lossReason(lost));
  breakWith(ErrorCode::kPeerUnavailable,
            fmt::format("{}, but rank {} {}; look at that rank's log for the first cause",
                        describeWait(waiting), lost, what));
}

void MessageMesh::breakWith(ErrorCode code, std::string message) {
  broken_.emplace(code, std::move(message));
  letGo();
  throw *broken_;
}

}  // namespace pipeshard::mesh
