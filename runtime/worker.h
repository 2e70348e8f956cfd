// The worker process: one rank of a job. Started by the coordinator, never by hand.
//
//   EXE worker --connect ENDPOINT --job ID --rank R --segments DESCRIPTION --directory RANKDIR --coordinator PID
//              [--data FILE] [--seed N] [--transfer-timeout MS] [--dump DIR] [--dump-gradients] [--dump-parameters]
//              [--dump-states] [--drop-last] [--allow-not-finite] [--adopt DIR] [--adopt-ranks N]
//
// It loads its rank, says so, runs the steps that the coordinator asks for, and ends when told to, when the coordinator is
// gone, or on the first error, which it reports as code and message.
#pragma once

#include <string>
#include <vector>

#include "runtime/job.h"

namespace pipeshard {

struct WorkerOptions {
  std::string endpoint;  // of the coordinator's ControlServer
  std::string job;
  int rank = 0;
  std::string segments;   // SharedSegments::describe()
  std::string directory;  // ranks/NNNN
  int coordinator = 0;    // process id of the parent
  DataDescription data;
  bool check_finite = true;
  std::string dump_directory;
  DumpSelection dump;
  std::string adopt_directory;
  int adopt_ranks = 0;
  int64_t transfer_timeout_ms = 600'000;
};

// The options as arguments, and back. Error(kUsage) naming the argument.
std::vector<std::string> workerArguments(const WorkerOptions& options);
WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments);

// Runs the worker to its end. Returns the exit code: 0, or the ErrorCode that was reported. Throws nothing.
int workerMain(const WorkerOptions& options);
int workerMain(const std::vector<std::string>& arguments);  // what follows "worker" on the command line

}  // namespace pipeshard
