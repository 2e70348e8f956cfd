// What a coordinator asks of a worker that has loaded its programs, and what the worker answers.
#pragma once

#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/step_runner.h"
#include "runtime/job/worker.h"
#include "runtime/job/worker_link.h"
#include "runtime/profiling/operator_times.h"

namespace pipeshard {

// Does what the coordinator asks for, one command after the other ("run", "evaluate", "check", "save",
// "finish": control_types.h), until it says "stop", or a step ends the job. `evaluation`, `times`: nullptr:
// none. Errors of steps, of files, and kInternal for a command that is none; a checkpoint that cannot be
// written is no error here, the coordinator is told.
void followCommands(const WorkerOptions& options, WorkerLink& link, StepRunner& runner,
                    RankEvaluation* evaluation, NodeTimes* times);

}  // namespace pipeshard
