// The options of a job, which `run` and `validate` share.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/job/job.h"

namespace pipeshard {

// Data, seed, threads and the deadlines of a step.
void addJobOptions(CLI::App& command, JobSpec& job);

// What a job will read, looked at before it starts.
struct DataSummary {
  std::string text;             // a line for people; "" for synthetic data
  int64_t steps_per_epoch = 0;  // 0: data without an end
};
// Of the plan in `job.plan_directory`. Errors as openData (runtime/data/data.h).
DataSummary summarizeData(const JobSpec& job);

}  // namespace pipeshard
