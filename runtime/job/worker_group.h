// The worker processes of one node: one per rank that is placed there, and the shared memory between them.
// The coordinator has one for a job on its own machine; a node daemon (runtime/job/node.h) has one for the
// ranks that a coordinator gives it.
//
//   WorkerGroupSpec spec;
//   spec.options = ...;  spec.plan_directory = "gpt2.plan";  spec.ranks = {2, 3};
//   WorkerGroup workers(spec);                       // two processes, loading
//   poll(workers.descriptors());                     // readable when one has ended
//   for (const WorkerEnd& end : workers.takeEnds()) ...
//
// No process outlives the group: it kills and reaps in its destructor, and the kernel does when the creating
// thread ends; but those that keep() gives away, for the group of the next attempt to run the job.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/files/posix_file.h"
#include "runtime/identity/job_identity.h"
#include "runtime/job/child_process.h"
#include "runtime/job/worker.h"
#include "runtime/machine/control_group.h"
#include "runtime/machine/process_state.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {

class HostRelay;  // transport/wire/host_relay.h

// A worker process that has left an attempt to run a job, and waits for the next one.
struct KeptWorker {
  ChildProcess process;
  Descriptor attempts;  // WorkerOptions::attempts_descriptor has the other end
};

// Those of a node. They are killed with it.
struct KeptWorkers {
  std::string plan_directory;
  int threads = 0;  // of each
  std::map<RankId, KeptWorker> workers;
};

struct WorkerGroupSpec {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments = {"worker"};  // before those of WorkerOptions
  // of each; 0: the processors divided by the workers, at least 1
  int threads = 0;
  std::string plan_directory;  // a folder of programs (runtime/execute/rank_image.h)
  std::vector<RankId> ranks;   // of this node, ascending
  // what all workers have in common; rank, segments, directory, parent, wires are filled in
  WorkerOptions options;
  HostRelay* relay = nullptr;  // to the ranks of other hosts; nullptr: none
  // Where there are any, a rank of the same plan goes on in the process that it had, whose descriptors
  // change; those that find no place are killed. nullptr: none, and none are kept.
  KeptWorkers* kept = nullptr;
};

struct WorkerEnd {
  RankId rank;
  std::string description;  // "was killed by signal 9 (Killed)", "ended with exit code 3"
  ErrorCode code = ErrorCode::kPeerUnavailable;  // kOutOfMemory: the kernel has killed it for that
};

class WorkerGroup {
 public:
  // Starts all. Errors: as ChildProcess::start and SharedSegments::create; those that had started are gone
  // then.
  explicit WorkerGroup(const WorkerGroupSpec& spec);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  int pid(RankId rank) const;
  std::vector<RankId> ranks() const;
  // of those that have not been taken by takeEnds: readable when the process has ended
  std::vector<int> descriptors() const;
  // Reaps who has ended since the last call, and marks them dead for the others' waits. Never waits.
  std::vector<WorkerEnd> takeEnds();
  bool allEnded() const;
  // SIGKILL to all that are left, and waits for their end, at most ChildProcess::kLongestEnd.
  void kill();
  // The attempt is over, and there will be another: asks all that are left to leave it, and waits for that,
  // at most kLongestLeave. Those that have left are in WorkerGroupSpec::kept then, and no more among
  // descriptors() or ends; the others are killed. As kill() where nothing is to be kept.
  void keep();
  static constexpr std::chrono::milliseconds kLongestLeave{2'000};
  // Those that kill() could not end.
  std::vector<RankId> unkillable() const;
  // What the rank has recorded, when it has ended (readTraceMemory); empty when nothing was asked for.
  std::vector<std::byte> readTrace(RankId rank) const;

 private:
  struct Member {
    RankId rank;
    ChildProcess process;
    Descriptor trace;       // not valid: nothing is recorded
    Descriptor attempts;    // not valid: it is not to be kept
    bool has_left = false;  // and was given away
    bool runs() const { return !has_left && !process.isReaped(); }
  };
  KeptWorker start(const WorkerGroupSpec& spec, WorkerOptions options) const;
  void waitForLeaving();
  SharedSegments segments_;
  Descriptor unpacked_;  // of arrays that workers share (runtime/data/unpacked_file.h)
  WorkerEnd endOf(const Member& member) const;

  MemoryGroup memory_group_;   // before they were started
  uint64_t memory_kills_ = 0;  // on this machine, before they were started
  std::string log_directory_;
  std::string plan_directory_;
  int threads_ = 0;  // of each
  KeptWorkers* kept_ = nullptr;
  bool killed_ = false;
  std::vector<Member> members_;  // last: gone before the segments
};

// Of "start", what a coordinator tells a node: threads, plan directory, ranks and options. Error(kUsage).
WorkerGroupSpec workerGroupFromJson(const nlohmann::json& start);
// The files that these ranks would read: what hosts compare before they start any.
IdentityRequest filesOf(const WorkerGroupSpec& spec, std::vector<RankId> ranks);

// What each rank has recorded, in the pieces that a control message holds, with "rank", "offset" and "total";
// what cannot be read is said, and is empty.
void forEachTracePiece(
    const WorkerGroup& workers, const std::function<void(const std::string&)>& say,
    const std::function<void(nlohmann::json place, std::span<const std::byte> piece)>& use);

// How workers look from outside, as a daemon tells its coordinator: those alone of which there is anything to
// say. Back: Error(kInternal) for what is no state.
nlohmann::json statesToJson(const WorkerGroup& workers);
std::map<RankId, ProcessState> statesFromJson(const nlohmann::json& body);

}  // namespace pipeshard
