// Control between the coordinator (or a node) and its workers: ROUTER and DEALER sockets of ZeroMQ, JSON
// messages (transport/control/control_message.h). For commands, states and errors, and files and batches on
// their way to a host that lacks them; never for the tensors of a step.
//
//   coordinator                                       worker
//   const JobKeys keys = makeJobKeys();
//   auto server = ControlServer::bind(
//       {.job_id = job, .keys = keys});
//   start workers with server->endpoint()       ───►  auto client = ControlClient::connect(
//                                                         endpoint, job, rank, 10s, {.keys = k});
//   auto m = server->receive(1s);               ◄───  (m->type == "REGISTER")
//   server->send(m->rank, "load", {{"dir", d}}) ───►  auto m = client->receive(1s);
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

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/control/control_message.h"

namespace pipeshard {

// What was dropped, and why.
struct ControlCounters {
  // not a control message at all, not in the schema, or a rank that is not the sender's
  uint64_t garbage = 0;
  uint64_t other_version = 0;
  uint64_t other_job = 0;
  uint64_t stale = 0;         // another generation
  uint64_t unregistered = 0;  // sender did not register
  uint64_t late = 0;          // sender was registered and has been forgotten: no stranger
  uint64_t duplicate = 0;     // sequence number seen before
  uint64_t lost = 0;          // gaps in sequence numbers; see ControlMessage::lost_before
  uint64_t flooded = 0;       // above the rate limit
  // connections that ended before they were let in: wrong key, no key, not ZeroMQ, too slow
  uint64_t handshakes = 0;
};

// What ended a wait: a message, descriptors that became readable, both, or (when its time was over) neither.
struct ControlEvent {
  std::optional<ControlMessage> message;
  std::vector<int> ready;
};

}  // namespace pipeshard
