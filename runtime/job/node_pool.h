// Where node daemons join: the coordinator's side. A command makes it before anything else, so that an
// address in use or a missing key is an error at once, and hands it to runJob; nodes that come early wait
// until the job takes them. It outlives the attempts of a job that is started again (runtime/recovery): nodes
// stay from one to the next, and further ones may join meanwhile. Nodes that come when it is all over, but
// not long after it began, are told how it ended (tellLateNodes): they would wait for it in vain.
//
//   NodePool pool({.count = 2, .listen = "tcp://10.0.0.1:7000", .key_file = "job.key"});
//   JobSpec spec;  spec.nodes = &pool;  spec.node_of_rank = {0, 0, 1, 1};
//   runJob(spec);        // on every host: pipeshard node --join tcp://10.0.0.1:7000 --key-file job.key
//
// Security: an address that other machines reach needs a key file. It is written with mode 0600, holds the
// keys of this one job, and is removed with the pool; one that a dead process has left is replaced. Only who
// can read it can join (CURVE, with a list of allowed keys). A node gives the key that its workers are known
// by: they are let in as its ranks only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/durable_folder.h"
#include "runtime/job/job.h"
#include "runtime/job/worker_placement.h"
#include "transport/control/control_server.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct ControlMessage;  // transport/control/control_message.h

struct NodePoolOptions {
  int count = 1;  // nodes that must join
  // of each of them, by number: how many devices it has if it does not say; a spare: as many as the largest
  std::vector<int> devices;
  bool takes_spares = false;                 // more may join than must
  std::string listen = "tcp://127.0.0.1:*";  // port * takes a free one
  // host that nodes are told to connect to, if not that of `listen`
  std::string advertise;
  std::string key_file;   // "": no keys, for loopback or with `insecure`
  bool insecure = false;  // no keys on an address that other machines reach
  // raised when a job is restarted: nodes of an earlier attempt are refused
  uint64_t generation = 0;
  std::chrono::seconds wait{300};  // for all nodes to join
  // daemons that are known to be on their way, for tellLateNodes; 0: `count`
  int awaited = 0;
  std::chrono::seconds late{3};  // from when the pool was made: who comes later is not told
  // how long a node, and the coordinator, may be silent before the other gives it up
  std::chrono::milliseconds patience = kNodeSilence;
};

// A daemon that has joined. Its number is its position in NodePool::nodes().
struct JoinedNode {
  int control_rank = -1;  // -1: nobody has this number
  std::string host = {};
  std::string address = {};  // that it has joined from
  int pid = 0;
  int devices = 0;
  std::string user = {};  // whose workers' messages are, by their key (ControlServer::allow)
  std::chrono::steady_clock::time_point last_heard = {};
  bool is_resting = false;  // it has ended its workers and waits for the next attempt
  bool is_ending = false;   // it was asked to end by a signal, and asks for what it has to be saved
};

// Used by one thread.
class NodePool {
 public:
  // Errors: as ControlServer::bind; kDiskFull when the key file cannot be written, kAddressInUse naming the
  // process when it is that of another job that goes on.
  explicit NodePool(const NodePoolOptions& options);
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;
  // Removes its key file, and sends away the nodes that are still there.
  ~NodePool();

  ControlServer& server() { return *server_; }
  const std::string& job() const { return job_; }
  const std::string& endpoint() const { return endpoint_; }  // as nodes reach it
  uint64_t generation() const { return options_.generation; }
  const std::optional<JobKeys>& keys() const { return keys_; }
  int count() const { return options_.count; }
  std::chrono::seconds wait() const { return options_.wait; }
  std::chrono::seconds late() const { return options_.late; }
  std::chrono::milliseconds patience() const { return options_.patience; }
  // The command to start on every host.
  std::string joinCommand() const;

  // At least count() of them; more, where spares have joined.
  const std::vector<JoinedNode>& nodes() const { return nodes_; }
  bool isHere(int number) const { return nodes_.at(number).control_rank >= 0; }
  std::optional<int> numberOf(int control_rank) const;
  std::string nameOf(int number) const;  // "node 1 (host a, pid 4711)"
  // "a"; "a at 10.0.0.2" where another node's host has the same name and another address.
  std::string hostOf(int number) const;

  // A daemon that registers: one that names its number gets that, any other the first free one; where there
  // is none, it is a spare, or sent away. `progress` hears of it. Returns why it has another build, if it
  // does: then it is sent away, and both builds are named.
  std::optional<std::string> admit(const ControlMessage& registration, const JobProgressCallback& progress);
  void hear(int number);  // something has come from it
  // Time in which this process did not listen is nobody's silence.
  void forgive(std::chrono::steady_clock::duration absence);
  std::chrono::steady_clock::duration silenceOf(int number) const;
  // A node that is gone makes no error: its silence will tell.
  void send(int number, std::string_view type, nlohmann::json body, std::span<const std::byte> payload = {});
  // Tells all that the coordinator is there, twice a second, and how long it waits for them. Called often.
  void keepAlive();
  // It is no member any more; its number is free.
  void drop(int number);
  void sendAway(int number, int exit_code, const std::string& message);  // so does it go

  // A node was asked to end, and asks so for the job. The signal, once for each node.
  void askToEnd(int number, int signal);
  std::optional<int> takeRequestToEnd();
  // The coordinator was asked itself.
  void setAskedItself() { asked_itself_ = true; }
  bool wasAskedItself() const { return asked_itself_; }

  // Every attempt to run the job has a number: workers of an earlier one are not heard.
  void beginAttempt(int ranks);
  int attempt() const { return attempt_; }
  // Whether nodes stay when an attempt ends with this exit code; if nothing was said, they never do.
  void keepNodesAfter(std::function<bool(int exit_code)> decide) { keeps_after_ = std::move(decide); }
  bool keepsNodesAfter(int exit_code) const { return keeps_after_ && keeps_after_(exit_code); }
  // Between attempts: has all nodes end their workers and wait, and drops those that do not answer. `why`:
  // for the nodes' output.
  void callRoll(const std::string& why, const JobProgressCallback& progress);
  // Between attempts: hears nodes for as long as `time`, and drops those that are gone or silent. `others`
  // is told every message of a node that has joined, with its number.
  using Hear = std::function<void(int number, const ControlMessage& message)>;
  void listen(std::chrono::milliseconds time, const JobProgressCallback& progress, const Hear& others = {});
  // The job is over: all nodes may go, with this exit code and message ("" when all went well). A second
  // call does nothing.
  void dismiss(int exit_code, const std::string& message);
  // Behind dismiss(): whether nodes may still come: not all that are awaited have been here, and
  // NodePoolOptions::late has not passed.
  bool awaitsMore() const;
  // Those are told what dismiss() said; ends with awaitsMore(), or when `is_enough` says so.
  void tellLateNodes(const std::function<bool()>& is_enough);

 private:
  std::optional<int> numberFor(const ControlMessage& registration, std::string& refusal);
  void sayFarewell(int control_rank);
  int devicesOf(int number) const;
  void sayAlive(int number);

  NodePoolOptions options_;
  FolderLock key_lock_;  // of the key file
  std::string job_;
  std::optional<JobKeys> keys_;
  std::unique_ptr<ControlServer> server_;
  std::string endpoint_;
  std::vector<JoinedNode> nodes_;
  std::function<bool(int)> keeps_after_;
  std::chrono::steady_clock::time_point last_sent_;
  int attempt_ = 0;
  int most_ranks_ = 0;  // of any attempt
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::set<std::string> visitors_;  // every daemon that has come: host, address and process
  std::optional<std::pair<int, std::string>> farewell_;  // exit code and message, since it was dismissed
  std::optional<int> request_to_end_;
  bool asked_itself_ = false;
};

}  // namespace pipeshard
