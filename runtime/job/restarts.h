// A job that goes on without a person after it has lost a worker.
#pragma once

#include "runtime/job/job.h"

namespace pipeshard {

// How many times in a row a job may be lost without a new step before it ends with kNoProgress.
inline constexpr int kFruitlessRestarts = 3;

// As runJob; a job that ends because a worker was lost, hangs or is out of memory is started again, at most
// `restarts` times, and goes on from its newest good checkpoint (`spec.checkpoint` names a folder).
// `progress` hears of each restart: a notice with what was lost, after which step it goes on, and how long it
// took to be there again. The result is that of the last attempt: `steps` begins behind `resumed_step`.
// Errors: as runJob; what is lost after the last restart, as it is; kNoProgress.
JobResult runWithRestarts(const JobSpec& spec, int restarts, const JobProgressCallback& progress);

}  // namespace pipeshard
