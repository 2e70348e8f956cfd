// Who is let in: a thread beside a control server that answers ZeroMQ's authentication requests (ZAP) and
// counts the handshakes that failed. Internal to control.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <zmq.hpp>

#include "transport/control/control_monitor.h"
#include "transport/control/control_socket.h"

namespace pipeshard {

class ControlGate {
 public:
  // Before `socket` is bound. Lets in the holder of `client_key` (Z85) and nobody else; without a key,
  // whoever comes without one.
  ControlGate(ControlSocket& socket, const std::optional<std::string>& client_key);
  ControlGate(const ControlGate&) = delete;
  ControlGate& operator=(const ControlGate&) = delete;
  ~ControlGate();

  // From now on handshakes are counted.
  void watch();
  // Any thread.
  uint64_t failedHandshakes() const { return failed_.load(); }
  std::string lastFailure() const;  // "unknown key from 10.0.0.7"

 private:
  void serve();
  void answerRequest();
  void countFailures();
  void noteFailure(std::string what);

  ControlSocket& socket_;
  std::string client_key_;  // 32 bytes, or empty
  zmq::socket_t requests_;
  int wake_[2] = {-1, -1};  // a byte in it: look at `watching_` and `stopping_` again
  std::optional<ControlMonitor> monitor_;
  std::atomic<bool> watching_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> failed_{0};
  mutable std::mutex mutex_;
  std::string last_failure_;
  std::thread thread_;
};

// Connects to `endpoint` as a stranger (the right server key, a fresh client key) and returns when it was
// refused. Error(kAuthentication) when it was let in, or when nothing was decided within a second.
void requireRefusal(const std::string& endpoint, const std::string& server_public);

}  // namespace pipeshard
