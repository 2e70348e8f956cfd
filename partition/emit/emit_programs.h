// Programs of a plan: one per rank, and one for a single device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/emit/rank_program.h"
#include "partition/schedules/schedule.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

// Programs of a training step, cut by the plan and ordered by a schedule. Values that a later stage needs go
// there directly, whatever lies between. A parameter read on several stages has one owner; the others receive
// it at the start of the step and send their summed gradient back at its end. The devices of a stage share
// every microbatch as its sharding says (partition/cut/stage_shardings.h); gradients are summed over them
// once, after the last microbatch, unless a chosen sharding cuts the accumulators. Replicas that take
// microbatches in turn average their gradients at every update instead. The result passes verifyPrograms.
// Errors: kConfiguration when devices, meshes or microbatches do not fit together.
//
// All that follow make these, but emitOnOneDevice and emitEvaluation.

// By kind of rank, in the order of a schedule that fits the plan's stages: every kind is emitted, held and
// verified once, in time and memory that grow with kinds, not with ranks. Groups of devices are worked at on
// as many threads as there are processors. `progress`: told, while it works, which share of the work is done,
// about, on the calling thread; what it throws ends the work.
//
// A schedule with a long steady state is emitted with few iterations of it, and what grows from one to the
// next is prolonged (prolonged_programs.h); kInFull: every microbatch for itself, which gives the same
// programs, and takes longer (tests compare the two).
enum class Emission : uint8_t { kSteadyState, kInFull };
EmittedPrograms emitProgramSet(const TrainingFamily& family, const Plan& plan, const Schedule& schedule,
                               const std::function<void(double)>& progress = {},
                               Emission emission = Emission::kSteadyState);
// By rank, every one held for itself, in the order of the plan's own schedule: for tests and small plans.
IdVector<RankId, RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan);
// Likewise, in the order of another schedule that fits the plan's stages.
IdVector<RankId, RankProgram> emitForSchedule(const TrainingFamily& family, const Plan& plan,
                                              const Schedule& schedule);
// Likewise, of a step that is known at one size only: equal microbatches, whose rows nobody shares.
IdVector<RankId, RankProgram> emitOneSize(const TrainingGraph& training, const Plan& plan);

// The same step on one device, cut nowhere: what `validate` compares with. Under an asynchronous schedule
// every microbatch reads the versions of the parameters that it reads on the plan's stages; where these
// update their weights at different times, the device runs the plan's stages one after the other.
// `progress`: as emitProgramSet.
RankProgram emitOnOneDevice(const TrainingFamily& family, const Plan& plan, const Schedule& schedule,
                            const std::function<void(double)>& progress = {});
// The forward passes and the loss alone, to be run beside the programs of a training plan, of the tensors
// that these keep. `family`: the model in evaluation mode, without an optimizer; `plan`: the training plan's
// stages, with layers that are positions in the family's forward nodes, and shardings (what they say of
// backward passes and updates is passed over); `owners`: by name, of every parameter that training changes
// (running statistics are parameters here, too), its owner. Results are the loss, and as measures, by name,
// the totals that it is divided by.
EmittedPrograms emitEvaluation(const TrainingFamily& family, const Plan& plan, const Schedule& schedule,
                               const std::map<std::string, StageId>& owners);

}  // namespace pipeshard
