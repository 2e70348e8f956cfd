// A worker's side of the control connection. A thread of its own owns the connection, so that a worker that
// computes still answers: it sends a heartbeat twice a second that says where the worker is, and ends the
// process when its parent or the coordinator is gone, or says "abort". When its parent asks it to leave the
// attempt (worker.h) it ends the connection, has the owner's waits interrupted, and its own fail.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <nlohmann/json_fwd.hpp>

#include "ir/base/error.h"
#include "runtime/files/posix_file.h"
#include "runtime/job/worker.h"

namespace pipeshard {

class ControlClient;    // transport/control/control_client.h
struct ControlMessage;  // transport/control/control_message.h

// What a heartbeat says.
struct WorkerStatus {
  std::string where = "loading";
  uint64_t progress = 0;
  bool computing = false;  // not waiting for anybody: progress must grow
  bool waiting = false;    // for another rank, inside a step
};

class WorkerLink {
 public:
  // Registers with the coordinator. Errors as ControlClient::connect.
  explicit WorkerLink(const WorkerOptions& options);
  // Sends what is still to be sent.
  ~WorkerLink();

  // Any thread. `status` is called by the link's thread for each heartbeat.
  void send(std::string_view type, nlohmann::json body);
  void setStatus(std::function<WorkerStatus()> status);

  // What workers leave for each other (their addresses), through the coordinator. get waits;
  // Error(kPeerUnavailable) when it does not come within `timeout`.
  void store(const std::string& key, const std::string& bytes);
  std::string fetch(const std::string& key, std::chrono::milliseconds timeout);

  // Waits for the next command of the coordinator ("run", "stop").
  ControlMessage next();
  std::optional<ControlMessage> nextWithin(std::chrono::milliseconds timeout);
  bool stopRequested() const { return stop_requested_.load(); }  // or left
  // The parent has asked for it. Then all that is done here is over, and an error no cause of anything.
  bool hasLeft() const { return left_.load(); }
  // Called once, by the link's thread, when that is asked for; at once where it was. {}: no more.
  void setInterrupt(std::function<void()> interrupt);

 private:
  void serve(const WorkerOptions& options);
  void exchange(ControlClient& client, const WorkerOptions& options);
  void take(ControlMessage message);
  void leave();
  void beat(ControlClient& client);
  bool sendQueued(ControlClient& client);
  void wake();

  Descriptor wake_;  // eventfd
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::pair<std::string, nlohmann::json>> outgoing_;
  std::list<ControlMessage> incoming_;
  std::map<std::string, std::string> stored_;
  std::function<WorkerStatus()> status_;
  std::function<void()> interrupt_;
  bool registered_ = false;
  bool closing_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> left_{false};
  std::atomic<bool> idle_{false};  // the owner waits for the next command
  std::thread thread_;             // last: started when all else is there
};

}  // namespace pipeshard
