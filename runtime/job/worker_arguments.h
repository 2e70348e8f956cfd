// How a worker's options travel: as arguments, and beside them what others must not read; to a worker that
// runs already, as a message with descriptors.
#pragma once

#include <string>
#include <vector>

#include "runtime/files/posix_file.h"
#include "runtime/job/worker.h"
#include "runtime/machine/handover.h"

namespace pipeshard {

// The options as arguments, and back; Error(kUsage) naming the argument. Without what a node daemon fills in
// (rank, segments, directory, parent) they are what a coordinator sends to nodes.
std::vector<std::string> workerArguments(const WorkerOptions& options);
WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments);

// The keys, if there are any, in a pipe for the process that is started next to inherit; its number is in
// options.keys_descriptor. To be closed here when that has begun. Error(kOutOfMemory).
Descriptor giveKeys(WorkerOptions& options);
// In that process, once: reads them, and closes the pipe. Error(kAuthentication): it does not hold any.
void takeKeys(WorkerOptions& options);

// What asks a worker to leave its attempt, and its answer (WorkerOptions::attempts_descriptor).
inline constexpr const char* kLeave = "leave";
inline constexpr const char* kLeft = "left";
// The options of its next attempt, and back, in its own process: the descriptors that they name are those
// that have come with it. Errors as parseWorkerArguments.
struct AttemptMessage {
  std::string text;
  std::vector<int> descriptors;
};
AttemptMessage attemptMessage(WorkerOptions options);
WorkerOptions parseAttempt(Handover message);

}  // namespace pipeshard
