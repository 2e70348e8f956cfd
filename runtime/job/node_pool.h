// Where node daemons join: the coordinator's side. A command makes it before anything else, so that an
// address in use or a missing key is an error at once, and hands it to runJob; nodes that come early wait
// until the job takes them.
//
//   NodePool pool({.count = 2, .listen = "tcp://10.0.0.1:7000", .key_file = "job.key"});
//   JobSpec spec;  spec.nodes = &pool;  spec.node_of_rank = {0, 0, 1, 1};
//   runJob(spec);        // on every host: pipeshard node --join tcp://10.0.0.1:7000 --key-file job.key
//
// Security: an address that other machines reach needs a key file. It is written with mode 0600, holds the
// keys of this one job, and is removed with the pool; only who can read it can join (CURVE, with a list of
// allowed keys). The tensors between nodes are neither encrypted nor authenticated: use a network that you
// trust.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "transport/control/control_server.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct NodePoolOptions {
  int count = 1;                             // nodes that must join
  std::string listen = "tcp://127.0.0.1:*";  // port * takes a free one
  // host that nodes are told to connect to, if not that of `listen`
  std::string advertise;
  std::string key_file;   // "": no keys, for loopback or with `insecure`
  bool insecure = false;  // no keys on an address that other machines reach
  // raised when a job is restarted: nodes of an earlier attempt are refused
  uint64_t generation = 0;
  std::chrono::seconds wait{300};  // for all nodes to join
};

class NodePool {
 public:
  // Errors: as ControlServer::bind; kDiskFull when the key file cannot be written.
  explicit NodePool(const NodePoolOptions& options);
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;
  // Removes the key file, and sends away nodes that had come for a job that never began.
  ~NodePool();

  ControlServer& server() { return *server_; }
  const std::string& job() const { return job_; }
  const std::string& endpoint() const { return endpoint_; }  // as nodes reach it
  uint64_t generation() const { return options_.generation; }
  const std::optional<JobKeys>& keys() const { return keys_; }
  int count() const { return options_.count; }
  std::chrono::seconds wait() const { return options_.wait; }
  // The command to start on every host.
  std::string joinCommand() const;

  // Told by the job: nodes know how it went, and need not be sent away.
  void setReleased() { released_ = true; }

 private:
  NodePoolOptions options_;
  std::string job_;
  std::optional<JobKeys> keys_;
  std::unique_ptr<ControlServer> server_;
  std::string endpoint_;
  bool released_ = false;
};

}  // namespace pipeshard
