// What happens to the connections of a ZeroMQ socket before any message arrives: ZeroMQ itself retries for
// ever and says nothing. Internal to transport.
#pragma once

#include <optional>
#include <string>

#include <zmq.hpp>

namespace pipeshard {

struct HandshakeEvent {
  enum class Kind {
    kConnected,  // the connection stands, the handshake has begun (client only)
    kSucceeded,  // the other side was let in
    kRefused,    // the server's list of keys does not have this client's
    kMismatch,   // one side uses keys and the other does not
    kMalformed,  // not the protocol of ZeroMQ, or bytes encrypted for another key
    kBroken,     // the connection ended in mid-handshake, or took too long
    kEnded,      // the connection has ended, with or without a handshake
  };
  Kind kind;
};

// While it lives, the events of `watched` come out of next(). They must be taken: ZeroMQ's input and output
// stops when some thousand wait.
class ControlMonitor {
 public:
  ControlMonitor(zmq::context_t& context, zmq::socket_t& watched);
  ControlMonitor(const ControlMonitor&) = delete;
  ControlMonitor& operator=(const ControlMonitor&) = delete;
  ~ControlMonitor();

  // The next event, if one is there. Never waits. One thread, not necessarily that of the watched socket.
  std::optional<HandshakeEvent> next();
  zmq::socket_t& socket() { return events_; }

 private:
  zmq::socket_t* watched_;
  zmq::socket_t events_;
};

}  // namespace pipeshard
