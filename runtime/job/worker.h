// The worker process: one rank of a job. Started by the coordinator or a node daemon, never by hand.
//
//   EXE worker ARGUMENTS
//
// The arguments are WorkerOptions, as the table of worker_arguments.cc writes and reads them. Keys come
// through a pipe that is read to its end and closed before anything else (giveKeys): neither arguments nor
// the environment hold a secret.
//
// It loads its rank, says so, does what the coordinator asks for in that order (steps, saving), and ends when
// told to, when the coordinator is gone, or on the first error, which it reports as code and message.
//
// Where the job goes on after a loss, its parent asks it, through the socket attempts_descriptor, to leave
// this attempt to run the job (kLeave): it gives up the step that it is in and all that it has of the
// attempt, says so (kLeft), and gets arguments and descriptors of the next attempt (attemptMessage). So the
// process stays.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/data.h"
#include "runtime/device/device_choice.h"
#include "runtime/evaluation/evaluation.h"
#include "runtime/execute/dump.h"
#include "transport/collectives/data_plane.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct WorkerOptions {
  std::string endpoint;  // of the coordinator's ControlServer
  std::string job;
  uint64_t generation = 0;
  int attempt = 0;                 // to run the job (NodePool::attempt)
  std::optional<ClientKeys> keys;  // to the coordinator; not among the arguments
  int keys_descriptor = -1;        // where a process that starts has them from (giveKeys); -1: it has none
  RankId rank = RankId(0);
  std::string segments;                      // SharedSegments::describe(), of the ranks on this node
  std::string directory;                     // of the plan
  int parent = 0;                            // process id of the coordinator or node daemon that started it
  IdVector<RankId, int> node_of_rank;        // empty: all on one node
  DataPlane data_plane = DataPlane::kCurve;  // between nodes
  std::array<int, 2> wires = {-1, -1};       // HostRelay::attach, by lane; with kCurve and several nodes
  // this node's address or name, as other nodes reach it; used with several nodes
  std::string host;
  DeviceChoice device;
  DataDescription data;
  bool check_finite = true;
  bool find_nan = false;
  bool operators = false;     // its operators are timed (runtime/profiling/operator_times.h)
  std::string log_directory;  // "": what it says goes where its parent's standard error goes
  std::string dump_directory;
  std::string dump_probe;  // requireSameDumps (runtime/disks/dump_folder.h)
  DumpSelection dump;
  std::string adopt_directory;
  int adopt_ranks = 0;
  EvaluationSpec evaluation;  // its batches are the coordinator's business
  std::string resume;         // the folder of the checkpoint that it goes on from; "": it begins anew
  int64_t transfer_timeout_ms = 600'000;
  int64_t trace_steps = 0;    // 0: nothing is recorded; else the last so many steps
  int trace_descriptor = -1;  // where (runtime/trace/trace_memory.h)
  // to its parent (runtime/machine/handover.h), for further attempts; -1: it ends with this one
  int attempts_descriptor = -1;

  friend bool operator==(const WorkerOptions&, const WorkerOptions&) = default;
};

// Runs the worker to its end. Returns the exit code: 0, or the ErrorCode that was reported. Throws nothing.
int workerMain(const WorkerOptions& options);
int workerMain(const std::vector<std::string>& arguments);  // what follows "worker" on the command line

}  // namespace pipeshard
