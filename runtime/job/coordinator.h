// Runs a job (job.h): the coordinator of its workers.
//
//   JobSpec spec;
//   spec.plan_directory = "gpt2.plan";  spec.steps = 3;
//   const JobResult result = runJob(spec);
//   result.steps[0].loss
//
// runJob is the coordinator. It starts one process per rank (`EXE worker ...`, see worker.h), or has the
// nodes that joined (runtime/job/node_pool.h) start theirs, and stays until all are gone, however it ends: no
// process, shared memory segment or socket outlives it, also when it is killed with SIGKILL (the kernel kills
// its workers then, and the nodes theirs when it has been silent for NodePoolOptions::patience).
//
// When something fails, the first cause is what runJob throws, one line with rank, host, process and
// instruction; failures that follow from it (peers that lose their partner) are not reported. The code is the
// worker's own (kBadModel, kNotANumber, kOutOfMemory, ...); kPeerUnavailable for a process or node that died
// or does not answer (SIGSTOP, a cut link); kHang when a rank answers but makes no progress, or when a
// deadline passed.
//
// Three signals tell that a rank lives: its process (its end is noticed at once), its heartbeats (twice a
// second, from a thread of their own), and the progress of its computing thread, which they carry.
#pragma once

#include "runtime/job/job.h"

namespace pipeshard {

// Runs the job to its end. One job per process at a time when handle_signals is set. Errors: see above.
JobResult runJob(const JobSpec& spec, const JobProgressCallback& progress = {});

}  // namespace pipeshard
