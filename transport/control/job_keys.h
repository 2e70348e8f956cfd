// The keys of one job, and the file by which a node gets them.
//
// Control between hosts is encrypted and authenticated by CURVE (ZeroMQ's Curve25519 handshake). Both key
// pairs are made for one job and end with it; whoever holds the client pair may join the job, nobody else.
//
//   coordinator:
//     const JobKeys keys = makeJobKeys();
//     auto server = ControlServer::bind({.job_id = id, .keys = keys, ...});
//     writeJobTicket("/shared/job.ticket", ticket);
//   node:
//     auto ticket = readJobTicket("/shared/job.ticket");
//     ControlClient::connect(ticket->endpoint, ticket->job_id, rank, 30s, {.keys = ticket->clientKeys()});
//
// Workers that a process starts itself get the keys through a pipe that they inherit (giveKeys), never
// through arguments, which every user of the machine can read, or the environment, which all that they start
// would have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipeshard {

// What a client needs to be let in: 40 characters of Z85 text each.
struct ClientKeys {
  std::string server_public, client_public, client_secret;

  friend bool operator==(const ClientKeys&, const ClientKeys&) = default;
};

struct JobKeys {
  std::string server_public, server_secret, client_public, client_secret;
  ClientKeys clientKeys() const { return {server_public, client_public, client_secret}; }
};

// Two fresh key pairs. Error(kConfiguration) when this ZeroMQ was built without CURVE.
JobKeys makeJobKeys();

// True for 40 characters of Z85 that decode to 32 bytes.
bool isJobKey(const std::string& text);

// "SERVER_PUBLIC CLIENT_PUBLIC CLIENT_SECRET", and back: Error(kAuthentication) when it is not that. Z85 has
// no blanks.
std::string clientKeysText(const ClientKeys& keys);
ClientKeys parseClientKeys(const std::string& text);

// What a node needs to join a job.
struct JobTicket {
  std::string job_id;
  uint64_t generation = 0;
  std::string endpoint;  // "tcp://10.0.0.1:40123"
  std::string server_public, client_public, client_secret;
  ClientKeys clientKeys() const { return {server_public, client_public, client_secret}; }
};

// Replaces `path` at once (temporary and rename) by a file that only its owner can read, from its first byte
// on. Error(kDiskFull) with the system's reason.
void writeJobTicket(const std::string& path, const JobTicket& ticket);

// Removes the file at `path` if it is this job's; what another job has put there stays.
void removeJobTicket(const std::string& path, const std::string& job_id) noexcept;

// Nothing while there is no file at `path`. Error(kAuthentication) when its owner is another user, when
// others may read or write it (copied without its mode: `chmod 600`), or when it is malformed;
// Error(kVersionMismatch) for another version's.
std::optional<JobTicket> readJobTicket(const std::string& path);

}  // namespace pipeshard
