// A TCP connection to a control endpoint that sends whatever bytes it likes, and the parts of ZeroMQ's
// protocol (ZMTP 3) that such a peer needs to get far.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace pipeshard {

class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint);  // "tcp://127.0.0.1:PORT"
  RawPeer(RawPeer&& other) noexcept;
  RawPeer& operator=(RawPeer&&) = delete;
  ~RawPeer();

  // False when the other side has closed.
  bool send(const std::string& bytes) const;
  // As much as fits now; bytes taken, or -1 when the other side has closed.
  int64_t sendSome(std::string_view bytes) const;
  // Reads until the other side closes; true if it did within `timeout`.
  bool isClosedWithin(std::chrono::milliseconds timeout) const;

 private:
  int socket_ = -1;
};

// The first 64 bytes of a connection. `mechanism`: "NULL", "PLAIN", "CURVE".
std::string greeting(const std::string& mechanism);
// The rest of the handshake of NULL as a DEALER.
std::string readyCommand();
// The header of a frame of `size` bytes, with another one after it or not.
std::string frameHeader(uint64_t size, bool more = false);

// Of this process, from /proc: resident and virtual bytes.
struct MemoryUse {
  int64_t resident = 0;
  int64_t virtual_size = 0;
};
MemoryUse memoryUse();

}  // namespace pipeshard
