// The options of a job, which `run` and `validate` share.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/job/job.h"

namespace pipeshard {

// Data, seed, threads and the deadlines of a step.
void addJobOptions(CLI::App& command, JobSpec& job);

}  // namespace pipeshard
