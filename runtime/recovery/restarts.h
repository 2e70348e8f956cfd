// A job that goes on without a person after it has lost a worker or a node.
#pragma once

#include <string>
#include <vector>

#include "ir/base/error.h"
#include "ir/base/ids.h"
#include "runtime/job/job.h"

namespace pipeshard {

// How many times in a row a job may be lost without a new step before it ends with kNoProgress.
inline constexpr int kFruitlessRestarts = 3;

// A plan of the same training step for fewer devices, for when those that are left are too few.
struct FewerPlan {
  std::string directory;
  IdVector<RankId, int> node_of_rank;  // in its own cluster
  EvaluationSpec evaluation = {};      // JobSpec::evaluation, as its own programs do it
};

struct RestartOptions {
  int restarts = 0;              // at most
  std::vector<FewerPlan> fewer;  // the first that fits is taken
  // A job that ends with kNotANumber goes back to its newest checkpoint, too; that is not one of `restarts`.
  // It ends when no step is done that had not been done before.
  bool rewinds = false;
};

// Whether a restart can help after an attempt that ended with this code. A plan takes the same memory in
// every step, and all of it before the first: an attempt that ran out of it without a step that was new
// (`has_new_step`) would do so again. One that had new steps had memory enough, which something else has
// taken since.
bool mayBeStartedAgain(ErrorCode code, bool has_new_step);

// As runJob; a job that ends because a worker or a node was lost, hangs or is out of memory is started again
// (mayBeStartedAgain), at most `restarts` times, and goes on from its newest good checkpoint
// (`spec.checkpoint` names a folder).
//
// A checkpoint of which a node's part is damaged, on its own disk, and no host has it whole, is given up for
// the one before it, if there is one; that is not one of `restarts`. (Where the coordinator sees the part it
// does so itself.)
//
// With nodes (`spec.nodes`, whose pool takes spares): on those that are left. Ranks of a node that is gone
// move to one that has joined meanwhile, or to free devices; where all are too few for the plan, one of
// `options.fewer` is run; else it waits for a node to join, as long as for the first ones. So it does where
// only hosts that are gone have some part of the newest checkpoint, on disks of their own
// (checkpoint_parts.h). A node that has come back is used from the next restart on. A node that was asked to
// end (SIGTERM) has been saved for, and is left out, unless it alone has such a part: then the job ends; the
// coordinator that was asked itself ends. A node that had no part in the job before, and with which it cannot
// start (other files, files that it lacks), is sent away, and the job goes on without it: no restart.
//
// All attempts are of the plan that the first one had, or of one of `options.fewer`: where another plan has
// been put into such a folder since (`plan -o`), the job ends with kVersionMismatch, and its checkpoints
// stay.
//
// `progress` hears of each restart: a notice with what was lost and where it goes on, and one with how long
// it took from the loss (JobFailed::began) until a step was done again. The result is that of the last
// attempt: `steps` begins behind `resumed_step`. Errors: as runJob; what is lost after the last restart, as
// it is; kNoProgress; kPeerUnavailable where no node joins, kRequeue where no host has come back with a part
// of the checkpoint.
JobResult runWithRestarts(const JobSpec& spec, const RestartOptions& options,
                          const JobProgressCallback& progress);

}  // namespace pipeshard
