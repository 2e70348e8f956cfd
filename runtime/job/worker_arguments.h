// How a worker's options travel: as arguments, and beside them what others must not read.
#pragma once

#include <string>
#include <vector>

#include "runtime/job/worker.h"

namespace pipeshard {

// The options as arguments, and back; Error(kUsage) naming the argument. Without what a node daemon fills in
// (rank, segments, directory, parent) they are what a coordinator sends to nodes.
std::vector<std::string> workerArguments(const WorkerOptions& options);
WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments);
// What goes with them: "NAME=value" of the keys, if there are any.
std::vector<std::string> workerEnvironment(const WorkerOptions& options);

}  // namespace pipeshard
