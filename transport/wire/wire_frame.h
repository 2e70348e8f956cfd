// What travels between the ends of a wire: a header and the bytes that follow it, between a worker and the
// relay of its host over a socket, and between relays as one message of ZeroMQ. Internal to wire.
//
//   kind                 source         target       number               bytes
//   kHello               (host)                      the sender's number  kProtocol
//   kCredit                                                               so many have been taken off the
//   line kOpen, kFarewell     the rank       everybody    kOpen: all ranks     kOpen: kProtocol kLost the
//   rank       everybody    (the reason follows) kMessage             sender         receiver of the message,
//   which follows kAnnounce            sender         receiver     of the message       of the message kGrant
//   receiver       sender       of the message kPiece               sender         receiver     of the
//   message       where the bytes that follow belong kProgress            receiver       sender       of the
//   message       that have come kCompleted           receiver       sender       messages taken
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipeshard::wire {

enum class Kind : uint8_t {
  kHello = 1,
  kCredit,
  kOpen,
  kFarewell,
  kLost,
  kMessage,
  kAnnounce,
  kGrant,
  kPiece,
  kProgress,
  kCompleted,
};

constexpr uint64_t kProtocol = 0x706970652d777231;  // "pipe-wr1"
constexpr uint32_t kEverybody = UINT32_MAX;
constexpr size_t kLanes = 2;  // of a rank: for its first communicator, and for its second

// Of a large message: at once, and on their way to a receiver that has not said that they have come.
constexpr size_t kPieceBytes = 32 << 10;
constexpr size_t kFlowWindow = 4 << 20;
constexpr size_t kFlowStep = 1 << 20;  // so often it says so
// Between two hosts, in each direction: bytes that the other relay has not taken off the line.
constexpr size_t kLineWindow = 16 << 20;
constexpr size_t kLineStep = 2 << 20;

// Both sides have the same byte order: kOpen and kHello would not be understood otherwise.
struct Frame {
  uint32_t source = 0;  // ranks
  uint32_t target = 0;
  Kind kind = Kind::kHello;
  uint8_t lane = 0;
  uint8_t channel = 0;
  uint8_t operation = 0;
  uint32_t payload = 0;  // bytes that follow
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint64_t sequence = 0;  // between relays: 0, 1, 2, ... in each direction
};
static_assert(sizeof(Frame) == 40);

inline bool isForEverybody(Kind kind) {
  return kind == Kind::kOpen || kind == Kind::kFarewell || kind == Kind::kLost;
}

}  // namespace pipeshard::wire
