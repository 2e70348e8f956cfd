// Control between the coordinator (or a node) and its workers: ROUTER and DEALER sockets of ZeroMQ, JSON messages
// (transport/control_message.h). For commands, states and errors; never for tensors.
//
//   coordinator                                            worker
//   auto server = ControlServer::bind(job);
//   start workers with server->endpoint()       ───►       auto client = ControlClient::connect(endpoint, job, rank, 10s);
//   auto m = server->receive(1s);  // m->type == "REGISTER"
//   server->send(m->rank, "load", {{"dir", d}}) ───►       auto m = client->receive(1s);
//
// Registration: the client sends REGISTER with its body (say host and pid); the server answers WELCOME, or REJECT when the
// versions differ or the rank is taken, and hands the REGISTER message to its caller. A worker of another job is ignored,
// and so finds no coordinator. A client whose connection breaks reconnects by itself under the same identity.
//
// What arrives is checked, never trusted: what is not a message of this job and generation from a registered rank is
// counted and dropped. It never throws and never ends a receive before its time.
//
// Security: plain text without authentication, therefore bound to loopback unless told otherwise.
// Thread rules: one thread per object. Fork before making one, or exec after: ZeroMQ does not survive a fork.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/control_message.h"

namespace pipeshard {

// What was dropped, and why.
struct ControlCounters {
  uint64_t garbage = 0;  // not a control message at all, or a rank that is not the sender's
  uint64_t other_version = 0;
  uint64_t other_job = 0;
  uint64_t stale = 0;         // another generation
  uint64_t unregistered = 0;  // sender did not register
  uint64_t duplicate = 0;     // sequence number seen before
  uint64_t lost = 0;          // gaps in sequence numbers; see ControlMessage::lost_before
};

// What ended a wait: a message, descriptors that became readable, both, or (when its time was over) neither.
struct ControlEvent {
  std::optional<ControlMessage> message;
  std::vector<int> ready;
};

class ControlServer {
 public:
  // Error(kAddressInUse), Error(kConfiguration) for a malformed endpoint. Port * takes a free one.
  static std::unique_ptr<ControlServer> bind(const std::string& job_id, uint64_t generation = 0,
                                             const std::string& endpoint = "tcp://127.0.0.1:*");
  virtual ~ControlServer() = default;

  // Where clients connect: "tcp://127.0.0.1:40123".
  virtual const std::string& endpoint() const = 0;

  // The next message of a registered worker, REGISTER included; nothing when `timeout` has passed.
  virtual std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) = 0;
  // Waits for a message and for `descriptors` (pidfds, signalfds: readable) at the same time.
  virtual ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) = 0;

  // Error(kPeerUnavailable) when the rank is not registered, gone, or takes no messages any more.
  virtual void send(int rank, std::string_view type, nlohmann::json body) = 0;

  virtual bool isRegistered(int rank) const = 0;
  // Allows another process to register as `rank` (after its worker has died).
  virtual void forget(int rank) = 0;
  virtual const ControlCounters& counters() const = 0;
};

struct ControlClientOptions {
  uint64_t generation = 0;
  nlohmann::json body = nlohmann::json::object();  // of REGISTER
};

class ControlClient {
 public:
  // Registers and waits for WELCOME. Error(kPeerUnavailable) when none comes within `timeout`, kVersionMismatch or
  // kConfiguration when the server rejects.
  static std::unique_ptr<ControlClient> connect(const std::string& endpoint, const std::string& job_id, int rank,
                                                std::chrono::milliseconds timeout, const ControlClientOptions& options = {});
  virtual ~ControlClient() = default;

  virtual int rank() const = 0;
  virtual void send(std::string_view type, nlohmann::json body) = 0;
  virtual std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) = 0;
  virtual ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) = 0;
  virtual const ControlCounters& counters() const = 0;
};

}  // namespace pipeshard
