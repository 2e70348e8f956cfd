// The options of a job, which `run` and `validate` share.
#pragma once

#include <CLI/CLI.hpp>

#include "ir/plan/plan.h"
#include "runtime/job/job.h"

namespace pipeshard {

// Data, seed, threads and the deadlines of a step.
void addJobOptions(CLI::App& command, JobSpec& job);

// Error(kUsage) for those that say something of a GPU, or of a loader, which the job does not have.
void refuseJobOptionsInVain(const CLI::App& command, const JobSpec& job);

// What a job will read, looked at before it starts.
struct DataSummary {
  std::string text;             // a line for people; "" for synthetic data
  int64_t steps_per_epoch = 0;  // 0: data without an end
};
// Of the plan in `job.plan_directory`. Errors as openData (runtime/data/data.h).
DataSummary summarizeData(const JobSpec& job);
// "steps by time: 2 of 128, 1 of 64; none of 32", of the job's steps and a plan with sequences of several
// lengths; "" of another. What comes through a pipe is not known before. Errors likewise.
std::string lengthsOfSteps(const JobSpec& job, const Plan& plan);

}  // namespace pipeshard
