// What a mesh keeps per peer, and the small messages between them. Internal to gloo_mesh.
#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/gloo/gloo_mesh.h"

namespace pipeshard::mesh {

using Buffer = ::gloo::transport::UnboundBuffer;

// Gloo's waits without a limit differ between its versions; this one never comes.
constexpr auto kForever = std::chrono::milliseconds(std::chrono::hours(24 * 3650));

enum class Kind : uint32_t {
  kHello = 1,     // the first of each connection: bytes = kProtocol, operation = ranks of the communicator
  kMessage = 2,   // `bytes` bytes follow
  kAnnounce = 3,  // `bytes` bytes follow in the channel's slot
  kCounts = 4,    // nothing but the counts
  kFarewell = 5,  // the sender closes its communicator; nothing but kCounts follows
};
constexpr uint64_t kProtocol = 0x706970652d676c31;  // "pipe-gl1"

// Both sides have the same byte order (checked by the hello).
struct Header {
  Kind kind;
  Channel channel;
  Operation operation;
  uint32_t unused = 0;
  uint64_t bytes;
  // small messages of the receiver of this one that have arrived at its sender
  uint64_t arrived = 0;
  // messages of the receiver of this one that its sender has taken
  std::array<uint64_t, kChannels> completed = {};
};
static_assert(sizeof(Header) == 48);

// Memory that a small message is sent from or received into.
struct Small {
  std::unique_ptr<std::byte[]> memory;
  std::unique_ptr<Buffer> buffer;
  bool posted = false;  // as a receive
};

// A message that the peer has not completed.
struct Posted {
  std::shared_ptr<Buffer> buffer;  // null when eager
  size_t eager_bytes;
};

// A large message that Gloo writes into memory.
struct GlooFlow : Flow {
  explicit GlooFlow(std::unique_ptr<Buffer> of) : buffer(std::move(of)) {}
  std::unique_ptr<Buffer> buffer;
};

struct Peer {
  explicit Peer(RankId number) : rank(number) {}

  const RankId rank;
  std::vector<char> address;
  std::thread thread;
  std::array<Small, kPosted> receiving;  // used in turn, by the thread only
  std::string broken;                    // why nothing can be posted any more; for the thread only

  // Guarded by the mesh's mutex.
  Contact contact = Contact::kConnecting;
  bool connected = false;  // Gloo's connect has returned
  bool greeted = false;    // the peer's hello has come
  uint64_t parted = 0;     // small messages sent up to this rank's farewell; 0 before it
  bool gone = false;       // the thread is ending; nothing is read any more
  std::string reason;      // of kLost
  uint64_t arrived = 0;
  std::deque<Small> sent;  // small messages that may not have arrived
  uint64_t sent_arrived = 0;
  Inbox inbox;
  std::array<uint64_t, kChannels> taken = {};
  std::array<std::deque<Posted>, kChannels> outstanding;
  std::array<uint64_t, kChannels> posted = {};
  std::array<uint64_t, kChannels> completed = {};
  size_t eager_bytes = 0;  // outstanding
};

}  // namespace pipeshard::mesh
