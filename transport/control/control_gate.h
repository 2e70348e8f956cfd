// Who is let in: a thread beside a listening socket that answers ZeroMQ's authentication requests (ZAP) and
// counts the handshakes that failed. Internal to transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
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
  enum class Keys { kNone, kNeeded };
  // Before `socket` is bound. With Keys::kNeeded nobody is let in whose key is not allowed; without keys,
  // whoever comes without one.
  ControlGate(ControlSocket& socket, Keys keys);
  ControlGate(const ControlGate&) = delete;
  ControlGate& operator=(const ControlGate&) = delete;
  ~ControlGate();

  // Any thread: the holder of this public key (Z85) is let in from now on; its messages bear `user`
  // (ReceivedFrames::user).
  void allow(const std::string& public_key, const std::string& user = "");
  // From now on handshakes are counted. `on_end` is called by the gate's thread for every connection that has
  // ended, whosever it was.
  void watch(std::function<void()> on_end = {});
  // Any thread.
  uint64_t failedHandshakes() const { return failed_.load(); }
  std::string lastFailure() const;  // "unknown key from 10.0.0.7"; "" before one was counted

 private:
  void serve();
  void answerRequest();
  void countFailures();
  void noteFailure(std::string what);

  ControlSocket& socket_;
  bool needs_keys_;
  std::function<void()> on_end_;
  zmq::socket_t requests_;
  int wake_[2] = {-1, -1};  // a byte in it: look at `watching_` and `stopping_` again
  std::optional<ControlMonitor> monitor_;
  std::atomic<bool> watching_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> failed_{0};
  mutable std::mutex mutex_;                  // guards the two below
  std::map<std::string, std::string> users_;  // by key of 32 bytes
  std::string last_failure_;
  std::thread thread_;
};

// Connects to `endpoint` as a stranger (the right server key, a fresh client key) and returns when it was
// refused. Error(kAuthentication) when it was let in, or when nothing was decided within a second.
void requireRefusal(const std::string& endpoint, const std::string& server_public);

}  // namespace pipeshard
