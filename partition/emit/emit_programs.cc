#include "partition/emit/emit_programs.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "ir/base/error.h"
#include "ir/base/parallel.h"
#include "ir/graph/weight_role.h"
#include "ir/program/program_set_verify.h"
#include "ir/program/rolled_kind.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/layout.h"
#include "partition/cut/stage_shardings.h"
#include "partition/emit/early_receives.h"
#include "partition/emit/emit_messages.h"
#include "partition/emit/gradient_buckets.h"
#include "partition/emit/prolonged_programs.h"
#include "partition/emit/rank_kinds.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/steady_state.h"
#include "partition/stages/partition_training.h"
#include "sharding/stage/sharding_plan.h"

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
  return emitForSchedule(family, plan, scheduleOf(plan));
}

namespace {

// Marks the results that the module has in another form: a parameter that lies transposed or has an axis as
// two, its gradient, its states. States of other shapes (a row's mean) have no other form.
void markOtherForms(const Graph& graph, const std::vector<Parameter>& parameters, Program& program) {
  std::map<std::string_view, const Value*> changed;
  for (const Parameter& parameter : parameters) {
    const Value& value = graph.value(parameter.value);
    if (value.shape && (isStoredTransposed(value) || dividedAxis(value))) changed.emplace(value.name, &value);
  }
  for (Result& result : program.results) {
    const auto found = changed.find(result.name);
    const bool of_parameter = result.kind == Result::Kind::kParameter ||
                              result.kind == Result::Kind::kGradient ||
                              result.kind == Result::Kind::kOptimizerState;
    if (!of_parameter || found == changed.end()) continue;
    const Value& value = *found->second;
    const Shape& whole = wholeShape(program.buffer(result.buffer));
    const bool is_divided = dividedAxis(value) && whole == value.shape;
    if (!is_divided && whole != storedShape(value)) continue;
    result.transposed = isStoredTransposed(value) && storedShape(value).size() == 2;
    if (is_divided) result.divided_axis = static_cast<int>(*dividedAxis(value));
  }
}

// Of an evaluation: the totals that the loss is divided by, beside the loss alone.
void keepLossAlone(const TrainingGraph& training, Program& program) {
  std::erase_if(program.results, [](const Result& result) { return result.kind != Result::Kind::kLoss; });
  if (program.results.empty()) return;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffer(BufferId(b));
    const auto isTotal = [&](const PrologueTotal& total) {
      return buffer.kind == BufferKind::kAccumulator &&
             buffer.value == training.graph.value(total.total).name;
    };
    if (std::any_of(training.totals.begin(), training.totals.end(), isTotal))
      program.results.push_back({Result::Kind::kMeasure, buffer.value, "", BufferId(b)});
  }
}

// The programs of a plan's step in the order of a schedule: its own, or one with fewer microbatches.
class StepEmitter {
 public:
  // `stage_of_parameter`: as WeightVersions. `trained_elsewhere`: as EmissionContext. All outlive this.
  StepEmitter(const TrainingFamily& family, const Plan& plan, const Cut& cut, bool in_turn,
              std::vector<StageId> stage_of_parameter, const std::vector<bool>& trained_elsewhere)
      : family_(family),
        training_(family.base()),
        plan_(plan),
        cut_(cut),
        stage_of_parameter_(std::move(stage_of_parameter)),
        trained_elsewhere_(trained_elsewhere),
        layout_(plan, family, in_turn),
        shardings_(family, plan, cut, in_turn),
        separator_(separatorFor(training_.graph)) {
    for (int group = 0; group < layout_.groups(); ++group) pieces_.emplace_back(shardings_);
  }

  const Layout& layout() const { return layout_; }

  // Not verified. `progress`: as emitProgramSet.
  EmittedPrograms emit(const Schedule& schedule, const std::function<void(double)>& progress) {
    const WeightVersions versions(schedule, stage_of_parameter_);
    const Messages messages(cut_, schedule);
    const EmissionContext context{family_,  layout_,  plan_.stages, cut_,       schedule,
                                  versions, messages, shardings_,   separator_, trained_elsewhere_};
    const auto complete = [&](EmittedRank& emitted) { this->complete(schedule, emitted); };
    return emitKinds(context, pieces_, complete, progress);
  }

 private:
  void complete(const Schedule& schedule, EmittedRank& emitted) const {
    markOtherForms(training_.graph, training_.parameters, emitted.rank.program);
    if (!trained_elsewhere_.empty()) keepLossAlone(training_, emitted.rank.program);
    if (!schedule.asynchronous()) postGradientBuckets(emitted.rank, plan_.given.bucket_bytes, separator_);
    if (plan_.given.overlap_receives == OverlapReceives::kOff) return;
    const auto early = [&plan = plan_](RankId rank, RankId peer) {
      return plan.given.overlap_receives == OverlapReceives::kOn ||
             plan.cluster.nodeOf(peer.index()) != plan.cluster.nodeOf(rank.index());
    };
    emitted.questions.requireOfPeers(early);
    postReceivesEarly(emitted.rank.program,
                      [&](RankId peer) { return early(emitted.rank.program.rank, peer); });
  }

  const TrainingFamily& family_;
  const TrainingGraph& training_;
  const Plan& plan_;
  const Cut& cut_;
  const std::vector<StageId> stage_of_parameter_;
  const std::vector<bool>& trained_elsewhere_;
  const Layout layout_;
  const StageShardings shardings_;
  const std::string separator_;
  IdVector<PipelineRankId, ShardedPieces> pieces_;
};

constexpr double kEmission = 0.6;  // share of the time, about; verification takes the rest

// Of a schedule with a long steady state: it is emitted with three short ones, and prolonged. Nothing: there
// is none, or it would be hardly less work, or the programs do not grow evenly.
std::optional<EmittedPrograms> emitSteadily(const TrainingFamily& family, const Schedule& schedule,
                                            StepEmitter& emitter,
                                            const std::function<void(double)>& progress) {
  if (family.largestMicrobatch() * family.microbatches() != family.batch()) return std::nullopt;
  const std::optional<SteadyState> steady = SteadyState::of(schedule);
  if (!steady) return std::nullopt;
  const int shortest = schedule.microbatches - steady->most() * steady->period();
  if (6 * (shortest + steady->period()) > schedule.microbatches) return std::nullopt;
  std::array<EmittedPrograms, 3> shorter;
  for (size_t i = 0; i < shorter.size(); ++i) {
    const auto tell = [&](double share) {
      if (progress) progress(kEmission * (static_cast<double>(i) + share) / std::size(shorter));
    };
    shorter[i] = emitter.emit(steady->without(steady->most() - static_cast<int>(i)), tell);
  }
  std::optional<EmittedPrograms> made =
      prolongedPrograms(std::move(shorter), steady->most(), schedule.microbatches);
  if (made) made->emitted_microbatches = 3 * (shortest + steady->period());
  return made;
}

// `stage_of_parameter`, `trained_elsewhere`: as StepEmitter.
EmittedPrograms emit(const TrainingFamily& family, const Plan& plan, const Schedule& schedule, const Cut& cut,
                     std::vector<StageId> stage_of_parameter, const std::vector<bool>& trained_elsewhere = {},
                     const std::function<void(double)>& progress = {},
                     Emission emission = Emission::kSteadyState) {
  StepEmitter emitter(family, plan, cut, !schedule.replicas.empty(), std::move(stage_of_parameter),
                      trained_elsewhere);
  const Layout& layout = emitter.layout();
  for (const StageId stage : layout.stageIds()) {
    PIPESHARD_CHECK(!layout.inTurn() || schedule.replicasOf(stage) == layout.replicas(stage),
                    "the schedule {} is of other replicas", schedule.name());
  }
  PIPESHARD_CHECK(schedule.stages == layout.stages() &&
                      schedule.microbatches == family.microbatches() * plan.updates_per_step,
                  "the schedule {} is of another plan", schedule.name());
  std::optional<EmittedPrograms> made;
  if (emission == Emission::kSteadyState) made = emitSteadily(family, schedule, emitter, progress);
  if (!made) {
    made = emitter.emit(schedule, [&](double share) {
      if (progress) progress(kEmission * share);
    });
    made->emitted_microbatches = schedule.microbatches;
    parallelFor(processorCount(), static_cast<int32_t>(made->set.kinds.size()),
                [&](int32_t kind) { rollLoops(made->set.kinds[KindId(kind)]); });
  }
  verifyProgramSet(made->set);
  return *std::move(made);
}

}  // namespace

EmittedPrograms emitProgramSet(const TrainingFamily& family, const Plan& plan, const Schedule& schedule,
                               const std::function<void(double)>& progress, Emission emission) {
  const std::vector<Parameter>& parameters = family.base().parameters;
  const bool trains = std::any_of(parameters.begin(), parameters.end(),
                                  [](const Parameter& parameter) { return isTrained(parameter); });
  if (schedule.forward_only && trains) {
    fail(ErrorCode::kConfiguration,
         "the schedule {} has no backward passes, and does not train; for evaluation take --schedule "
         "forward-only",
         schedule.name());
  }
  if (schedule.asynchronous() && family.base().loss_scale.valid()) {
    fail(ErrorCode::kConfiguration,
         "--precision float16: under the schedule {} stages make their updates at different times, so there "
         "is "
         "no moment at which all know that the gradients of a step are finite; take --precision bfloat16, or "
         "a "
         "synchronous schedule (1f1b, zb-h1, ...)",
         schedule.name());
  }
  if (schedule.asynchronous() && family.base().clip_norm > 0) {
    fail(ErrorCode::kConfiguration,
         "--clip-norm: under the schedule {} stages make their updates at different times, so there is no "
         "moment at which the norm of all gradients is known; clip by value (--clip-value), or take a "
         "synchronous schedule (1f1b, zb-h1, ...)",
         schedule.name());
  }
  const Cut cut = cutTraining(family.base(), plan, splitStages(schedule));
  refuseUndefinedVersions(family.base(), cut, plan, schedule);
  return emit(family, plan, schedule, cut, cut.owners, {}, progress, emission);
}

IdVector<RankId, RankProgram> emitForSchedule(const TrainingFamily& family, const Plan& plan,
                                              const Schedule& schedule) {
  return emitProgramSet(family, plan, schedule).ofAllRanks();
}

namespace {

// Names that the stages of an evaluation have no longer (gradients, updates) are taken out of the shardings,
// and so are strategies of normalisations, which do something else in training.
Plan withoutTraining(const TrainingGraph& training, Plan plan) {
  const Cut cut = cutTraining(training, plan);
  for (const StageId s : plan.stages.ids()) {
    if (!plan.stages[s].sharding) continue;
    std::set<std::string> keys, values;
    for (const NodeId id : shardedNodes(cut, s)) {
      const Node& node = training.graph.node(id);
      if (!node.is("BatchNormalization")) keys.insert(nodeKey(training.graph, id));
      for (const std::vector<ValueId>* ids : {&node.inputs, &node.outputs}) {
        for (const ValueId value : *ids) {
          if (value.valid()) values.insert(training.graph.value(value).name);
        }
      }
    }
    ShardingPlan& sharding = *plan.stages[s].sharding;
    std::erase_if(sharding.strategies, [&](const auto& entry) { return !keys.contains(entry.first); });
    std::erase_if(sharding.specs, [&](const auto& entry) { return !values.contains(entry.first); });
  }
  return plan;
}

}  // namespace

EmittedPrograms emitEvaluation(const TrainingFamily& family, const Plan& asked, const Schedule& schedule,
                               const std::map<std::string, StageId>& owners) {
  const TrainingGraph& evaluation = family.base();
  const Plan plan = withoutTraining(evaluation, asked);
  Cut cut = cutTraining(evaluation, plan);
  std::vector<bool> trained_elsewhere(std::max<size_t>(evaluation.parameters.size(), 1));
  for (size_t p = 0; p < evaluation.parameters.size(); ++p) {
    const auto owner = owners.find(evaluation.graph.value(evaluation.parameters[p].value).name);
    if (owner == owners.end()) continue;
    cut.owners[p] = owner->second;
    trained_elsewhere[p] = true;
  }
  return emit(family, plan, schedule, cut, cut.owners, trained_elsewhere);
}

RankProgram emitOnOneDevice(const TrainingFamily& family, const Plan& plan, const Schedule& schedule,
                            const std::function<void(double)>& progress) {
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
  EmittedPrograms made =
      emit(family, alone, order, cutTraining(family.base(), alone), stage_of_parameter, {}, progress);
  return {std::move(made.set.kinds.front().program), *made.subgraphs.front()};
}

IdVector<RankId, RankProgram> emitOneSize(const TrainingGraph& training, const Plan& plan) {
  return emitPrograms(TrainingFamily(training), plan);
}

}  // namespace pipeshard
