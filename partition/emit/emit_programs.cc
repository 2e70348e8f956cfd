#include "partition/emit/emit_programs.h"

#include <algorithm>

#include "ir/base/error.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/layout.h"
#include "partition/cut/stage_shardings.h"
#include "partition/emit/early_receives.h"
#include "partition/emit/emit_messages.h"
#include "partition/emit/gradient_buckets.h"
#include "partition/emit/rank_kinds.h"
#include "partition/emit/sharded_pieces.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_training.h"

namespace pipeshard {
namespace {

std::string separatorFor(const Graph& graph) {
  std::string separator = "@";
  const auto is_used = [&](const Value& value) { return value.name.find(separator) != std::string::npos; };
  while (std::any_of(graph.values.begin(), graph.values.end(), is_used)) separator += '@';
  return separator;
}

}  // namespace

IdVector<RankId, RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan) {
  return emitPrograms(family, plan, scheduleOf(plan));
}

namespace {

// `stage_of_parameter`: as WeightVersions.
EmittedPrograms emit(const TrainingFamily& family, const Plan& plan, const Schedule& schedule, const Cut& cut,
                     std::vector<StageId> stage_of_parameter) {
  const TrainingGraph& training = family.base();
  const Layout layout(plan, family, !schedule.replicas.empty());
  for (const StageId stage : layout.stageIds()) {
    PIPESHARD_CHECK(!layout.inTurn() || schedule.replicasOf(stage) == layout.replicas(stage),
                    "the schedule {} is of other replicas", schedule.name());
  }
  PIPESHARD_CHECK(schedule.stages == layout.stages() &&
                      schedule.microbatches == family.microbatches() * plan.updates_per_step,
                  "the schedule {} is of another plan", schedule.name());
  const WeightVersions versions(schedule, std::move(stage_of_parameter));
  const Messages messages(cut, schedule);
  const StageShardings shardings(family, plan, cut, layout.inTurn());
  ShardedPieces pieces(shardings);
  EmissionContext context{family,   layout,    plan.stages,
                          cut,      schedule,  versions,
                          messages, shardings, separatorFor(training.graph)};
  context.pieces = &pieces;
  return emitKinds(context, [&](EmittedRank& emitted) {
    if (!schedule.asynchronous())
      postGradientBuckets(emitted.rank, plan.given.bucket_bytes, context.separator);
    if (plan.given.overlap_receives == OverlapReceives::kOff) return;
    const auto early = [&plan](RankId rank, RankId peer) {
      return plan.given.overlap_receives == OverlapReceives::kOn ||
             plan.cluster.nodeOf(peer.index()) != plan.cluster.nodeOf(rank.index());
    };
    emitted.questions.requireOfPeers(early);
    postReceivesEarly(emitted.rank.program,
                      [&](RankId peer) { return early(emitted.rank.program.rank, peer); });
  });
}

}  // namespace

EmittedPrograms emitProgramSet(const TrainingFamily& family, const Plan& plan, const Schedule& schedule) {
  const std::vector<Parameter>& parameters = family.base().parameters;
  const bool trains = std::any_of(parameters.begin(), parameters.end(),
                                  [](const Parameter& parameter) { return isTrained(parameter); });
  if (schedule.forward_only && trains) {
    fail(ErrorCode::kConfiguration,
         "the schedule {} has no backward passes, and does not train; for evaluation take --schedule "
         "forward-only",
         schedule.name());
  }
  const Cut cut = cutTraining(family.base(), plan);
  refuseUndefinedVersions(family.base(), cut, plan, schedule);
  return emit(family, plan, schedule, cut, cut.owners);
}

IdVector<RankId, RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan,
                                           const Schedule& schedule) {
  return emitProgramSet(family, plan, schedule).ofAllRanks();
}

RankProgram emitOnOneDevice(const TrainingFamily& family, const Plan& plan, const Schedule& schedule) {
  const Schedule order = onOneDevice(schedule);
  Plan alone = plan;
  if (order.stages > 1) {
    for (StagePlan& stage : alone.stages) {
      stage.devices = {RankId(0)};
      stage.mesh_shape = {1, 1};
      stage.recomputation = Recomputation::kNever;
    }
  } else {
    PartitionOptions options;
    options.stages = uniformStages(1);
    options.schedule = ScheduleSpec{"sequential"};
    partitionTraining(family.base(), options, alone);  // forgets the orders, too
    alone.updates_per_step = plan.updates_per_step;
  }
  const std::vector<StageId> stage_of_parameter = cutTraining(family.base(), plan).owners;
  return emit(family, alone, order, cutTraining(family.base(), alone), stage_of_parameter).of(RankId(0));
}

IdVector<RankId, RankProgram> emitPrograms(const TrainingGraph& training, const Plan& plan) {
  return emitPrograms(TrainingFamily(training), plan);
}

}  // namespace pipeshard
