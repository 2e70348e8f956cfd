// The coordinator's (or a node's) end of control; transport/control/control.h describes both ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "transport/control/control_schema.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct ControlCounters;  // transport/control/control.h
struct ControlEvent;
struct ControlMessage;  // transport/control/control_message.h

// What one registered rank may send, as a token bucket. A rank that sends more is a fault of the job (kFault)
// and not heard any more until it is forgotten. Dropping only the surplus would look like lost messages. The
// limit is far above what a worker does (a message per step and second) and below the 175 000 a second that a
// server can take: it ends runaway loops.
struct ControlLimits {
  double messages_per_second = 50'000;
  double burst = 200'000;
};

struct ControlServerOptions {
  std::string job_id = {};
  uint64_t generation = 0;  // raised whenever the job is restarted; earlier ones are fenced off
  std::string endpoint = "tcp://127.0.0.1:*";
  std::optional<JobKeys> keys = std::nullopt;
  // an endpoint that is not loopback without keys; it should be logged loudly
  bool allow_insecure = false;
  bool open_registration = false;  // clients with ControlClientOptions::any_job are let in
  ControlSchema schema = {};       // of what clients send; REGISTER too, if it is in there
  ControlLimits limits = {};
};

class ControlServer {
 public:
  // Port * takes a free one. Error(kAddressInUse); Error(kConfiguration) for a malformed endpoint, or one
  // that is not loopback without keys; Error(kAuthentication) when keys are given but a stranger's key is not
  // refused (tried before this returns).
  static std::unique_ptr<ControlServer> bind(const ControlServerOptions& options);
  virtual ~ControlServer() = default;

  // Where clients connect: "tcp://127.0.0.1:40123".
  virtual const std::string& endpoint() const = 0;

  // The next message of a registered worker, REGISTER included; nothing when `timeout` has passed.
  virtual std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) = 0;
  // Waits for a message and for `descriptors` (pidfds, signalfds: readable) at the same time.
  virtual ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) = 0;

  // Error(kPeerUnavailable) when the rank is not registered, gone, or takes no messages any more.
  virtual void send(int rank, std::string_view type, nlohmann::json body,
                    std::span<const std::byte> payload = {}) = 0;

  // The holder of this public key is let in, too, and its messages are `user`'s (not ""). No effect without
  // keys.
  virtual void allow(const std::string& public_key, const std::string& user) = 0;
  // From now on `rank` can be registered with a key of `user` only ("": with that of the job).
  virtual void reserve(int rank, const std::string& user) = 0;

  virtual bool isRegistered(int rank) const = 0;
  // Allows another process to register as `rank` (after its worker has died). What the one before still says
  // is dropped without a notice.
  virtual void forget(int rank) = 0;
  // The address that `rank` registered from ("10.0.0.2"); "" when it is not registered or ZeroMQ does not
  // know.
  virtual std::string peerAddress(int rank) const = 0;
  virtual const ControlCounters& counters() const = 0;
  // A line for the log when something of strangers was dropped since the last one, with counts and the last
  // reasons; at most once a minute.
  virtual std::optional<std::string> takeNotice() = 0;
};

}  // namespace pipeshard
