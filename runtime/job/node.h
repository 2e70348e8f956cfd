// The node daemon: starts, watches and ends the workers of one host, for one job of one coordinator
// (`pipeshard node`).
//
//   NodeOptions options;
//   options.join = "tcp://10.0.0.1:7000";  options.key_file = "job.key";
//   return runNode(options, print).exit_code;
//
// It joins (and waits for a coordinator that is not there yet), starts the workers that it is told to,
// reports their ends, and goes when it is told to; between the attempts of a job that is started again it
// rests. When the coordinator has been silent for the patience (killed, or its link cut), it ends its
// workers, and goes or, if asked to, joins again. On a signal it has a job that keeps checkpoints save first,
// and ends with it (or is let go, where the job goes on without it); on a second one it ends at once. No
// worker outlives it: the kernel kills them with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/identity/plan_completion.h"
#include "transport/wire/host_relay.h"

namespace pipeshard {

struct NodeOptions {
  std::string join;           // "tcp://HOST:PORT"; "": what the key file says
  std::string key_file;       // "": no keys; waited for if it is not there yet
  bool insecure = false;      // no keys towards an address that is not this machine's own
  std::optional<int> index;   // this node's place in the cluster; none: the first that is free
  std::string host;           // this machine as other nodes reach it; "": its address on the way to them
  PortRange data_ports = {};  // at which it may listen for tensors of other nodes
  int devices = 0;            // that this host has for the job; 0: as many as the cluster says of its place
  // After the coordinator was lost, try again for as long as `wait`.
  bool rejoin = false;
  uint64_t generation = 0;  // as the coordinator's; see NodePoolOptions
  std::chrono::seconds wait{300};

  // Started first, in this process's place towards the user: the coordinator's command, whose exit code
  // becomes the daemon's. Empty: none.
  std::vector<std::string> command;
  // For the command to end by itself once it was interrupted or the job has failed; then it is killed. Behind
  // a good job it takes its own time (`validate` runs the reference next), within deadlines of its own.
  std::chrono::milliseconds command_end{60'000};

  // For a disk of this host's own, before its ranks read the plan. Empty: nothing is made.
  CompletePlanHere complete_plan;

  std::string executable = "/proc/self/exe";
  std::vector<std::string> worker_arguments = {"worker"};
};

struct NodeEnd {
  int exit_code = 0;
  bool has_joined = false;  // false: its command ended before any coordinator welcomed this node
};

// What people may want to read: one line each.
using NodeMessages = std::function<void(const std::string&)>;

// The exit code is the one that the coordinator gave, or that of the command. Errors: kPeerUnavailable (no
// coordinator, or it was lost), kAuthentication, kVersionMismatch (also of a generation that is over),
// kConfiguration (also for an address beyond loopback without keys); JobInterrupted on SIGINT, SIGTERM,
// SIGHUP, SIGPIPE.
NodeEnd runNode(const NodeOptions& options, const NodeMessages& say);

}  // namespace pipeshard
