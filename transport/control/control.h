// Control between the coordinator (or a node) and its workers: ROUTER and DEALER sockets of ZeroMQ, JSON
// messages (transport/control/control_message.h). For commands, states and errors; never for tensors.
//
//   coordinator                                            worker
//   const JobKeys keys = makeJobKeys();
//   auto server = ControlServer::bind({.job_id = job, .keys = keys});
//   start workers with server->endpoint()       ───►       auto client = ControlClient::connect(endpoint,
//                                                          job, rank, 10s, {.keys = k});
//   auto m = server->receive(1s);  // m->type == "REGISTER"
//   server->send(m->rank, "load", {{"dir", d}}) ───►       auto m = client->receive(1s);
//
// Registration: the client sends REGISTER with its body (say host and pid); the server answers WELCOME and
// hands the REGISTER message to its caller, or answers REJECT: another version, another job, a generation
// that is over (each exit code 76), or a rank that is taken (78). A worker whose generation is over is told
// so whatever it sends. A client whose connection breaks reconnects by itself under the same identity.
//
// Security. With keys (transport/control/job_keys.h) every connection is encrypted, and only a holder of the
// job's client key gets past the handshake; strangers cost a handshake, and at most kMaxControlBytes of
// memory until it times out. Without keys a bind is refused unless it is to loopback, where it is plain text
// that every process of the machine can reach, and where a sender of an endless multipart message can fill
// the memory (ZeroMQ bounds the size of frames, not their number): use keys there too.
//
// What arrives is checked, never trusted: what is not a message of this job and generation from a registered
// rank is counted and dropped. It never throws and never ends a receive before its time. A *registered* rank
// that breaks the rules (a message not in the schema; more messages than the limit) is a fault of the job: a
// message of type kFault with {"message": why} comes out in its name, once for a flood.
//
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

#include "transport/control/control_message.h"
#include "transport/control/control_schema.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

// What was dropped, and why.
struct ControlCounters {
  uint64_t garbage =
      0;  // not a control message at all, not in the schema, or a rank that is not the sender's
  uint64_t other_version = 0;
  uint64_t other_job = 0;
  uint64_t stale = 0;         // another generation
  uint64_t unregistered = 0;  // sender did not register
  uint64_t duplicate = 0;     // sequence number seen before
  uint64_t lost = 0;          // gaps in sequence numbers; see ControlMessage::lost_before
  uint64_t flooded = 0;       // above the rate limit
  uint64_t handshakes =
      0;  // connections that ended before they were let in: wrong key, no key, not ZeroMQ, too slow
};

// What one registered rank may send, as a token bucket. A rank that sends more is a fault of the job (kFault)
// and not heard any more until it is forgotten. Dropping only the surplus would look like lost messages. The
// limit is far above what a worker does (a message per step and second) and below the 175 000 a second that a
// server can take: it ends runaway loops.
struct ControlLimits {
  double messages_per_second = 50'000;
  double burst = 200'000;
};

// What ended a wait: a message, descriptors that became readable, both, or (when its time was over) neither.
struct ControlEvent {
  std::optional<ControlMessage> message;
  std::vector<int> ready;
};

struct ControlServerOptions {
  std::string job_id = {};
  uint64_t generation = 0;  // raised whenever the job is restarted; earlier ones are fenced off
  std::string endpoint = "tcp://127.0.0.1:*";
  std::optional<JobKeys> keys = std::nullopt;
  bool allow_insecure = false;  // an endpoint that is not loopback without keys; it should be logged loudly
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
  virtual void send(int rank, std::string_view type, nlohmann::json body) = 0;

  virtual bool isRegistered(int rank) const = 0;
  // Allows another process to register as `rank` (after its worker has died).
  virtual void forget(int rank) = 0;
  // The address that `rank` registered from ("10.0.0.2"); "" when it is not registered or ZeroMQ does not
  // know.
  virtual std::string peerAddress(int rank) const = 0;
  virtual const ControlCounters& counters() const = 0;
  // A line for the log when something was dropped since the last one, with counts and the last reason; at
  // most once a minute.
  virtual std::optional<std::string> takeNotice() = 0;
};

struct ControlClientOptions {
  uint64_t generation = 0;
  nlohmann::json body = nlohmann::json::object();  // of REGISTER; 64 KiB with everything at most
  std::optional<ClientKeys> keys = std::nullopt;
  // For a client that does not know its job yet: job id ("") and generation are adopted from WELCOME.
  bool any_job = false;
  ControlSchema schema = {};  // of what the server sends
};

class ControlClient {
 public:
  // Registers and waits for WELCOME. Errors: kPeerUnavailable when none comes within `timeout`;
  // kAuthentication as soon as the key is refused (or is missing, or the server has none); kVersionMismatch
  // or kConfiguration when the server rejects.
  static std::unique_ptr<ControlClient> connect(const std::string& endpoint, const std::string& job_id,
                                                int rank, std::chrono::milliseconds timeout,
                                                const ControlClientOptions& options = {});
  virtual ~ControlClient() = default;

  virtual int rank() const = 0;
  virtual const std::string& job() const = 0;
  virtual uint64_t generation() const = 0;
  // Error(kPeerUnavailable) when the server is gone or takes no messages.
  virtual void send(std::string_view type, nlohmann::json body) = 0;
  // As those of the server. Error(kVersionMismatch) when the server says that this generation is over.
  virtual std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) = 0;
  virtual ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) = 0;
  virtual const ControlCounters& counters() const = 0;
};

}  // namespace pipeshard
