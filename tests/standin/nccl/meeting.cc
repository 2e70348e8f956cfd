#include "tests/standin/nccl/meeting.h"

#include <algorithm>
#include <utility>

#include "tests/standin/heap.h"
#include "tests/standin/nccl/reduction.h"

namespace standin::nccl {
namespace {

bool isPair(Call call) { return call == Call::kSend || call == Call::kRecv; }

// What the peer has posted for it; nullptr: not there yet.
Element* findCounterpart(Communicator& communicator, const Element& mine, int peer) {
  Member& member = communicator.block->members[peer];
  const Call wanted = mine.call == Call::kSend ? Call::kRecv : Call::kSend;
  const auto matches = [&](const Element& other) {
    if (other.index != mine.index) return false;
    if (!isPair(mine.call)) return !isPair(other.call);
    return other.call == wanted && other.peer == communicator.rank;
  };
  Element* end = member.element + member.elements;
  Element* found = std::find_if(member.element, end, matches);
  return found == end ? nullptr : found;
}

bool isSame(const Element& a, const Element& b) {
  if (a.count != b.count || a.type != b.type) return false;
  if (isPair(a.call)) return true;
  return a.call == b.call && a.op == b.op && a.peer == b.peer;
}

bool isMatch(Communicator& communicator, const Element& mine, const Element& other, int peer) {
  if (isSame(mine, other)) return true;
  const std::string what = "calls that do not match: rank " + std::to_string(communicator.rank) + " has " +
                           describe(mine) + ", rank " + std::to_string(peer) + " has " + describe(other);
  report("NCCL, " + communicator.name + ": " + what);
  fail(communicator, ncclInternalError, what);
  return false;
}

// False: not yet, or never.
bool take(Communicator& communicator, Piece& piece, int peer, Element& other) {
  if (!isMatch(communicator, piece.element, other, peer)) return false;
  if (other.payload >= 0) {
    const Member& member = communicator.block->members[peer];
    const size_t bytes = static_cast<size_t>(other.count) * sizeOf(other.type) *
                         (other.call == Call::kReduceScatter ? communicator.ranks : 1);
    piece.given[peer] = readPayload(member.process, other.payload, bytes);
    if (piece.given[peer].size() != bytes) return false;
  }
  ++other.taken;
  piece.met[peer] = true;
  return true;
}

std::vector<std::byte> joined(std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void computeResult(Communicator& communicator, Piece& piece) {
  const Element& element = piece.element;
  if (piece.to_bytes == 0) return;
  switch (element.call) {
    case Call::kAllReduce:
    case Call::kReduce: piece.result = reduce(piece.given, element.type, element.op); break;
    case Call::kReduceScatter: {
      const std::vector<std::byte> all = reduce(piece.given, element.type, element.op);
      const auto begin = all.begin() + static_cast<ptrdiff_t>(piece.to_bytes) * communicator.rank;
      piece.result.assign(begin, begin + static_cast<ptrdiff_t>(piece.to_bytes));
      break;
    }
    case Call::kAllGather: piece.result = joined(piece.given); break;
    default: piece.result = std::move(piece.given[element.peer]); break;
  }
  piece.given.clear();
}

bool meet(Communicator& communicator, Piece& piece, Element& posted) {
  const Element& element = piece.element;
  if (element.call == Call::kSend) {
    const Element* other = findCounterpart(communicator, element, element.peer);
    if (other != nullptr && posted.taken == 0) isMatch(communicator, element, *other, element.peer);
    return posted.taken > 0;
  }
  if (element.call == Call::kRecv) {
    Element* other = findCounterpart(communicator, element, element.peer);
    return other != nullptr && take(communicator, piece, element.peer, *other);
  }
  bool all = true;
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    if (piece.met[peer]) continue;
    Element* other = findCounterpart(communicator, element, peer);
    if (other == nullptr || !take(communicator, piece, peer, *other)) all = false;
    if (communicator.hasFailed()) return false;
  }
  return all && posted.taken == communicator.ranks;
}

}  // namespace

bool meetAll(Launch& launch) {
  Communicator& communicator = *launch.communicator;
  const Held held(*communicator.block);
  bool all = true;
  for (size_t i = 0; i < launch.pieces.size(); ++i) {
    Piece& piece = launch.pieces[i];
    if (piece.finished) continue;
    piece.finished = meet(communicator, piece, communicator.self().element[i]);
    if (piece.finished) computeResult(communicator, piece);
    all = all && piece.finished;
  }
  return all;
}

}  // namespace standin::nccl
