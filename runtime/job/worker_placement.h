// Where the workers of a job are: all on this machine, or on nodes that have joined. The coordinator sees
// both through this. Internal to the coordinator. Thread rules: the coordinator's thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ir/base/error.h"
#include "runtime/disks/disk_exchange.h"
#include "runtime/job/worker_group.h"
#include "runtime/machine/process_state.h"
#include "runtime/trace/clock_alignment.h"

namespace pipeshard {

struct ControlMessage;  // transport/control/control_message.h

// What ends a job.
struct Failure {
  ErrorCode code;
  std::string message;   // one line
  bool is_cause = true;  // false: a worker cannot reach a peer, most often the consequence of something else
  int64_t done = 0;      // the last step that no rank needs anything more for, to have done it
  // when it began: of who does not answer, when it was heard of last
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  std::vector<int> daemons = {};  // whose error it is, by control rank; where that is known
};

// The earlier one, unless only the later one can be a cause; it began with the first of the two.
void keepFirstCause(std::optional<Failure>& first, std::optional<Failure> later);

// What an "error" message of a worker `name` says, which has done so many steps. `unreached`: of hosts,
// before it has loaded (WorkerPlacement::describeUnreached): its deadline, or a connection that broke,
// follows from that then.
Failure failureOf(const nlohmann::json& error, const std::string& name, int64_t steps_done,
                  const std::string& unreached);

// From a number in a message. kInternal when it is none of ErrorCode.
ErrorCode knownErrorCode(int code);

// Control ranks from here on are nodes; below are workers.
inline constexpr int kFirstNodeRank = 1'000'000;
inline bool isNodeRank(int control_rank) { return control_rank >= kFirstNodeRank; }
// A node and its coordinator hear from each other this often, and give each other up after this much silence.
inline constexpr std::chrono::milliseconds kNodeHeartbeat{500};
inline constexpr std::chrono::milliseconds kNodeSilence{4'000};

class WorkerPlacement {
 public:
  virtual ~WorkerPlacement() = default;

  // Starts the workers, or waits for those who will: true once all processes have been started. Called until
  // it is true.
  virtual bool start() = 0;
  // While start() is not true: what is missing, for the message when the time is over.
  virtual std::string describeMissing() const = 0;
  // How long all that may take, not counting loading.
  virtual std::chrono::milliseconds startTimeout() const = 0;

  virtual int pid(RankId rank) const = 0;           // 0: not started
  virtual std::string host(RankId rank) const = 0;  // "" before it has started
  // How a silent worker looks from outside.
  virtual ProcessState processState(RankId rank) const = 0;

  virtual std::vector<int> descriptors() const = 0;  // readable when there is an end to take
  virtual std::vector<WorkerEnd> takeEnds() = 0;
  virtual bool allEnded() const = 0;

  // A message of a control rank from kFirstNodeRank on, or "unreached" of a worker.
  virtual std::optional<Failure> handleMessage(const ControlMessage& message) = 0;
  // Which hosts do not reach each other, as far as they know; "": all do.
  virtual std::string describeUnreached() const { return ""; }
  // How long workers may be cut off from here: 0 where there is no network between.
  virtual std::chrono::milliseconds patience() const { return {}; }
  // Called about ten times a second: keeps nodes informed and finds those that are silent. `absence`: how
  // long the coordinator itself has not listened since the last call, which is nobody's fault.
  virtual std::optional<Failure> look(std::chrono::steady_clock::duration absence) = 0;
  // Longest time until a failure that explains others shows itself.
  virtual std::chrono::milliseconds causeWindow() const = 0;

  // Of a job that keeps checkpoints: where the rank writes, and what DiskExchange does.
  virtual DiskOfNode diskOf(RankId) const { return {}; }
  virtual void publish(const Checkpoint&) {}
  virtual void drop(int64_t /*step*/) {}
  virtual bool isPublishing() const { return false; }
  // Of a job whose data come through a pipe: what has come goes to other hosts.
  virtual void sendBatches() {}

  // Ends all workers at once. A second call does nothing.
  virtual void kill() = 0;
  // The attempt is over, and there will be another: workers leave it, where they can, and stay for the next
  // (WorkerGroup::keep); the others are killed.
  virtual void keep() = 0;
  // Of this machine's, those that cannot be killed: frozen, or waiting inside the kernel. They are given up.
  virtual std::vector<RankId> unkillable() const { return {}; }
  // With WorkerOptions::trace_steps, once all have been ended or killed: what ranks have recorded, and their
  // hosts' clocks. Gives up on nodes that do not answer by `deadline`. Errors: as WorkerGroup::readTrace.
  struct Recorded {
    IdVector<RankId, std::vector<std::byte>> bytes;  // empty: nothing came
    IdVector<RankId, ClockAlignment> clocks;
  };
  virtual Recorded collectTraces(std::chrono::steady_clock::time_point deadline) = 0;
  // The job is over: nodes may go, with this exit code and message ("" when all went well).
  virtual void release(int exit_code, const std::string& message) = 0;
};

// All workers on this machine.
std::unique_ptr<WorkerPlacement> placeHere(WorkerGroupSpec spec);
}  // namespace pipeshard
