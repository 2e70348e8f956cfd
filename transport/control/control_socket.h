// A ZeroMQ socket with the options that control needs, and ZeroMQ's exceptions translated. Internal to
// transport.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <zmq.hpp>

#include "ir/base/error.h"
#include "transport/control/control_message.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

inline constexpr int kControlSendTimeout = 2000;  // milliseconds
inline constexpr int kControlHandshake = 2000;    // milliseconds

// The part of a wait that is left.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(std::chrono::steady_clock::now() + timeout) {}
  std::chrono::milliseconds left() const;

 private:
  std::chrono::steady_clock::time_point end_;
};

// What differs between sockets for commands (as it stands here) and those for tensors.
struct SocketTraits {
  size_t max_bytes;   // of a message
  int queued = 1000;  // messages per peer and direction; 0: no limit
  std::chrono::milliseconds heartbeat{2'000};
  std::chrono::milliseconds silence{
      75'000};  // of a peer whose connection is given up then: beyond --patience
  std::shared_ptr<zmq::context_t> context = nullptr;  // whose threads serve the socket; nullptr: its own
};

struct ReceivedFrames {
  std::vector<std::string> frames;  // the first four of them
  std::string address;              // of the peer: "10.0.0.2", or ""
  std::string user;                 // whose key it has (ControlGate::allow), or ""
};

class ControlSocket {
 public:
  // `endpoint` decides about IPv6 only.
  ControlSocket(zmq::socket_type type, std::string_view routing_id, std::string_view endpoint,
                const SocketTraits& traits = {.max_bytes = kMaxControlBytes});
  void useKeys(const JobKeys& keys);     // before bind
  void useKeys(const ClientKeys& keys);  // before connect

  zmq::socket_t& socket() { return socket_; }
  zmq::context_t& context() { return *context_; }
  const std::shared_ptr<zmq::context_t>& sharedContext() const { return context_; }

  // The frames of the next message, if one is there. Never waits.
  std::optional<ReceivedFrames> receiveNow();
  // Until a message is there, one of `descriptors` is readable, or the deadline; the readable descriptors.
  std::vector<int> wait(const Deadline& deadline, std::span<const int> descriptors, bool& has_message);
  // False when the peer is unknown or its queue is full: at once, or (with `patience`) after the socket's
  // send timeout.
  bool send(const std::vector<std::string_view>& frames, bool patience = true);

 private:
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
};

// Idle connections of strangers use descriptors until their handshake times out, and a listener that cannot
// accept makes ZeroMQ spin: raises the soft limit of descriptors of this process towards the hard one, to
// 65536 at most.
void raiseDescriptorLimit();

[[noreturn]] void failControl(const zmq::error_t& error, ErrorCode code, std::string_view what);

}  // namespace pipeshard
