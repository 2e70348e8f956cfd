#include "transport/control/control_monitor.h"

#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "transport/control/control_socket.h"

namespace pipeshard {
namespace {

// One per watched socket: several may share a context.
std::string newAddress() {
  static std::atomic<uint64_t> number{0};
  return fmt::format("inproc://handshakes-{}", number.fetch_add(1));
}

constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED;

std::optional<HandshakeEvent> translate(uint16_t event, uint32_t value) {
  using Kind = HandshakeEvent::Kind;
  switch (event) {
    case ZMQ_EVENT_CONNECTED: return HandshakeEvent{Kind::kConnected};
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: return HandshakeEvent{Kind::kSucceeded};
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return HandshakeEvent{Kind::kRefused};
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: return HandshakeEvent{Kind::kBroken};
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      return HandshakeEvent{value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? Kind::kMismatch
                                                                                : Kind::kMalformed};
    case ZMQ_EVENT_DISCONNECTED: return HandshakeEvent{Kind::kEnded};
    default: return std::nullopt;
  }
}

}  // namespace

ControlMonitor::ControlMonitor(zmq::context_t& context, zmq::socket_t& watched) try
    : watched_(&watched), events_(context, zmq::socket_type::pair) {
  events_.set(zmq::sockopt::linger, 0);
  const std::string address = newAddress();
  if (::zmq_socket_monitor(watched.handle(), address.c_str(), kEvents) != 0) throw zmq::error_t();
  events_.connect(address);
} catch (const zmq::error_t& error) {
  failControl(error, ErrorCode::kConfiguration, "cannot watch a socket; check `ulimit -n`");
}

ControlMonitor::~ControlMonitor() { ::zmq_socket_monitor(watched_->handle(), nullptr, 0); }

std::optional<HandshakeEvent> ControlMonitor::next() {
  try {
    while (true) {
      zmq::message_t frame;
      if (!events_.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
      zmq::message_t address;
      if (frame.more()) (void)events_.recv(address);
      uint16_t event = 0;
      uint32_t value = 0;
      if (frame.size() != sizeof event + sizeof value) continue;
      std::memcpy(&event, frame.data(), sizeof event);
      std::memcpy(&value, frame.data<char>() + sizeof event, sizeof value);
      if (const auto known = translate(event, value)) return known;
    }
  } catch (const zmq::error_t&) {
    return std::nullopt;  // interrupted by a signal: what is there will be there at the next call
  }
}

}  // namespace pipeshard
