#include "planning/programs/evaluation_programs.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/evaluation_mode.h"
#include "partition/cut/cut_training.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule_verify.h"
#include "planning/model/sequence_lengths.h"
#include "planning/programs/batch_losses.h"
#include "planning/programs/step_programs.h"

namespace pipeshard {
namespace {

ForwardModel inEvaluationMode(const ForwardModel& model, int& drawn) {
  ForwardModel evaluation = model;
  evaluation.outputs.clear();
  evaluation.imported.reset();
  evaluation.groups.clear();
  evaluation.extras = {};
  const std::string loss = lossName(model);
  const auto made = std::make_shared<std::map<int64_t, Graph>>();
  evaluation.prepared = [prepared = model.prepared, made, loss](int64_t rows) -> const Graph& {
    const auto found = made->find(rows);
    if (found != made->end()) return found->second;
    Graph graph = prepared(rows);
    graph.outputs = {findValue(graph, loss)};
    setEvaluationMode(graph);
    return made->emplace(rows, std::move(graph)).first->second;
  };
  Graph counted = model.graph;
  drawn = setEvaluationMode(counted).drawn;
  evaluation.graph =
      evaluation.prepared(TrainingFamily(model.batch, model.microbatches, nullptr).largestMicrobatch());
  evaluation.loss = findValue(evaluation.graph, loss);
  return evaluation;
}

// By the name of its first output, the place of every forward node.
std::unordered_map<std::string_view, int64_t> placesOf(const TrainingGraph& training,
                                                       const std::vector<NodeId>& forward) {
  std::unordered_map<std::string_view, int64_t> places;
  for (size_t i = 0; i < forward.size(); ++i) {
    for (const ValueId output : training.graph.node(forward[i]).outputs) {
      if (output.valid()) places.emplace(training.graph.value(output).name, static_cast<int64_t>(i));
    }
  }
  return places;
}

// Layers are positions in the training graph's forward nodes. An evaluation may lack some of these (those
// that keep running statistics); where a plan trains on a batch as a whole it has others, which share the
// loss out and run where the node before them does.
void moveLayers(const TrainingGraph& training, const TrainingGraph& evaluation, Plan& plan) {
  const std::unordered_map<std::string_view, int64_t> places = placesOf(training, forwardNodes(training));
  std::vector<int64_t> place_of;  // by position in the evaluation's forward nodes; never descending
  for (const NodeId id : forwardNodes(evaluation)) {
    const Node& node = evaluation.graph.node(id);
    const auto found = places.find(evaluation.graph.value(node.outputs.at(0)).name);
    const int64_t before = place_of.empty() ? 0 : place_of.back();
    if (found == places.end()) {
      place_of.push_back(before);
      continue;
    }
    if (found->second < before) {
      fail(ErrorCode::kConfiguration,
           "{} has another place in evaluation than in training, so the plan's stages do not say where it "
           "runs",
           describeNode(node));
    }
    place_of.push_back(found->second);
  }
  const auto before = [&](int64_t place) {
    return std::lower_bound(place_of.begin(), place_of.end(), place) - place_of.begin();
  };
  for (LayerPlan& layer : plan.layers) {
    const int64_t first = before(layer.first);
    layer.last = before(layer.last + 1) - 1;
    layer.first = first;
  }
}

// The plan's forward passes, in its own order, or, of more microbatches than it has, in that of its schedule
// for so many. Replicas that take microbatches in turn while they train share the rows of each here.
// Error(kConfiguration) where the schedule cannot have so many.
Schedule forwardPasses(Plan plan, int microbatches) {
  if (microbatches > plan.microbatches) {
    plan.microbatches = microbatches;
    plan.updates_per_step = 1;
    if (!plan.schedule_orders.empty()) plan.schedule = ScheduleSpec{"gpipe"};
    plan.schedule_orders.clear();
  }
  Schedule schedule = scheduleOf(plan);
  schedule.spec = ScheduleSpec{"forward-only"};
  schedule.forward_only = true;
  schedule.microbatches = microbatches;
  schedule.microbatches_per_update = 0;
  schedule.versions = {};
  schedule.replicas = {};
  schedule.update_every = {};
  for (std::vector<Action>& order : schedule.orders) {
    std::erase_if(order, [&](const Action& action) {
      return action.kind != ActionKind::kForward || action.microbatch >= microbatches;
    });
    for (Action& action : order) action.overlaps_next = false;
  }
  verifySchedule(schedule);
  return schedule;
}

// What training changes beside parameters has to be read where training keeps it: as parameters are.
void readStates(const TrainingGraph& training, TrainingGraph& evaluation) {
  for (const ForwardState& state : training.forward_states) {
    const ValueId value = findValue(evaluation.graph, training.graph.value(state.value).name);
    if (value.valid() && evaluation.graph.initializers.contains(value))
      evaluation.parameters.push_back({value, {}, {}, {}, {}});
  }
}

// Of all that training changes.
std::map<std::string, StageId> ownersOf(const TrainingGraph& training, const Plan& plan) {
  std::map<std::string, StageId> owners;
  const Cut cut = cutTraining(training, plan);
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    if (isTrained(training.parameters[p]))
      owners.emplace(training.graph.value(training.parameters[p].value).name, cut.owners[p]);
  }
  for (const ForwardState& state : training.forward_states)
    owners.emplace(training.graph.value(state.value).name, cut.place(state.updated).stage);
  return owners;
}

// What a batch's loss is divided by.
void findDivisor(const TrainingGraph& evaluation, EvaluationPrograms& programs) {
  const auto isTotal = [&](ValueId value) {
    return std::any_of(evaluation.totals.begin(), evaluation.totals.end(),
                       [&](const PrologueTotal& total) { return total.total == value; });
  };
  const std::vector<NodeId> producer = computeUseDef(evaluation.graph).producer;
  NodeId node = producer[evaluation.loss.index()];
  while (node.valid()) {
    const Node& at = evaluation.graph.node(node);
    if (!isView(at) && !at.is("Cast")) break;
    node = producer[at.inputs[0].index()];
  }
  programs.exact = evaluation.totals.empty();
  if (!node.valid() || !evaluation.graph.node(node).is("Div")) return;
  const ValueId divisor = evaluation.graph.node(node).inputs[1];
  if (!isTotal(divisor)) return;
  programs.divisor = evaluation.graph.value(divisor).name;
  programs.exact = evaluation.totals.size() == 1;
}

class EvaluationEmitter {
 public:
  EvaluationEmitter(const ForwardModel& model, const TrainingGraph& training, const Plan& plan)
      : model_(model), training_(training), trained_(plan), owners_(ownersOf(training, plan)) {}

  EmittedPrograms emit(const BatchCut& batch, EvaluationPrograms& programs) const {
    Plan plan = trained_;
    plan.microbatches = batch.microbatches;
    plan.updates_per_step = 1;
    plan.schedule = ScheduleSpec{"forward-only"};
    plan.schedule_orders.clear();
    for (StagePlan& stage : plan.stages) stage.recomputation = Recomputation::kNever;
    BatchCut cut = batch;
    const bool must_cut = cut.cut || hasDataParallelStage(plan) || cut.microbatches > 1;
    cut.cut = must_cut || canBeCut(batch);
    const TrainingFamily forward = trainingFamily(model_, none_, cut);
    const TrainingFamily family(cut.rows, cut.microbatches, [&](int64_t rows) {
      TrainingGraph evaluation = forward.at(rows);
      readStates(training_, evaluation);
      return evaluation;
    });
    moveLayers(training_, family.base(), plan);
    if (hasShardedStage(trained_) && mayRenameFactors(model_, trained_, family))
      renameFactors(training_.graph, family.base().graph, plan);
    findDivisor(family.base(), programs);
    if (family.base().totals.empty() && cut.cut && !model_.batch_dimension.empty())
      askWhetherAdds(family.largestMicrobatch(), programs);
    programs.exact = programs.exact && (cut.cut || model_.batch_dimension.empty());
    EmittedPrograms ranks =
        emitEvaluation(family, plan, forwardPasses(trained_, static_cast<int>(batch.microbatches)), owners_);
    completePrograms(model_, ranks);
    return ranks;
  }

 private:
  // Only a batch that is cut tells what its loss is divided by.
  bool canBeCut(const BatchCut& batch) const {
    if (model_.batch_dimension.empty()) return false;
    try {
      trainingFamily(model_, none_, {batch.rows, batch.microbatches, true}).base();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadModel) throw;
      return false;
    }
  }

  void askWhetherAdds(int64_t rows, EvaluationPrograms& programs) const {
    const auto part = [&](int parts) {
      return TrainingGraph(trainingFamily(model_, none_, {rows * parts, parts, true}).base());
    };
    try {
      const BatchLosses losses = lossesOfBatches(part);
      programs.adds = losses.adds;
      programs.exact = losses.exact;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadModel && error.code() != ErrorCode::kConfiguration) throw;
      programs.exact = false;  // the model takes no larger batch, which would tell
    }
  }

  static OptimizerSpec noOptimizer() {
    OptimizerSpec none;
    none.kind = OptimizerSpec::Kind::kNone;
    return none;
  }

  const OptimizerSpec none_ = noOptimizer();
  const ForwardModel& model_;
  const TrainingGraph& training_;
  const Plan& trained_;
  std::map<std::string, StageId> owners_;
};

// All programs give what batches are weighted by. `size`: of `other`, for people. Error(kConfiguration).
void requireDivisor(const EvaluationPrograms& whole, const EvaluationPrograms& other,
                    const std::string& size) {
  if (whole.divisor.empty() || other.divisor == whole.divisor) return;
  fail(ErrorCode::kConfiguration,
       "the loss of a batch of {} does not tell what it is divided by, as others do, so that they have no "
       "mean together",
       size);
}

// Numbers of microbatches for rows that do not fill a batch, in the order of trying: as few as keep these no
// larger than others, then more of them, then fewer, larger ones.
std::vector<int64_t> microbatchesOfRest(const BatchCut& whole, int64_t rows) {
  const int64_t most_rows = (whole.rows + whole.microbatches - 1) / whole.microbatches;
  const int64_t least = (rows + most_rows - 1) / most_rows;
  std::vector<int64_t> counts;
  for (int64_t count = least; count <= rows; ++count) counts.push_back(count);
  for (int64_t count = least - 1; count >= 1; --count) counts.push_back(count);
  return counts;
}

// In the first number of microbatches that schedule, shardings and devices can take.
void emitRest(const EvaluationEmitter& emitter, const BatchCut& whole, int64_t rows,
              EvaluationPrograms& programs) {
  for (const int64_t count : microbatchesOfRest(whole, rows)) {
    try {
      EvaluationPrograms rest;
      EmittedPrograms emitted = emitter.emit({rows, count, whole.cut}, rest);
      requireDivisor(programs, rest, counted(rows, "row"));
      programs.last = std::move(emitted);
      programs.last_batch = rows;
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration) throw;
    }
  }
  programs.left_out = rows;
}

// The model at the plan's shorter lengths of sequences.
std::vector<ForwardModel> shorterModels(const ForwardModel& model) {
  std::vector<ForwardModel> models;
  for (const int64_t length : model.shorter_lengths) {
    int ignored = 0;
    models.push_back(inEvaluationMode(ofShorterSequences(model, length), ignored));
  }
  return models;
}

// Batches of as many rows as the longest sequences have.
void emitShorter(const std::vector<ForwardModel>& models, const TrainingGraph& training, const Plan& plan,
                 const BatchCut& batch, EvaluationPrograms& programs) {
  programs.shorter.clear();
  for (const ForwardModel& model : models) {
    EvaluationPrograms shorter;
    programs.shorter.push_back(EvaluationEmitter(model, training, plan).emit(batch, shorter));
    requireDivisor(programs, shorter,
                   fmt::format("sequences of length {}", model.dimensions.at(model.length_dimension)));
  }
}

}  // namespace

EvaluationPrograms emitEvaluationPrograms(const ForwardModel& model, const TrainingGraph& training,
                                          const BatchCut& batch, const Plan& plan,
                                          const HeldOutRows& rows_of) {
  EvaluationPrograms programs;
  const ForwardModel evaluation = inEvaluationMode(model, programs.drawn);
  const EvaluationEmitter emitter(evaluation, training, plan);
  BatchCut whole = batch;
  programs.whole = emitter.emit(whole, programs);
  const Program& program = programs.whole.set.kinds.front().program;
  const int64_t of_row = std::max<int64_t>(1, model.fixed_batch);
  programs.batch = batch.rows * of_row;
  const std::vector<ForwardModel> shorter = shorterModels(model);
  emitShorter(shorter, training, plan, whole, programs);
  const bool has_rows = std::any_of(program.inputs.begin(), program.inputs.end(),
                                    [](const ProgramInput& input) { return input.axis >= 0; });
  ShorterInputs shorter_inputs;
  for (const EmittedPrograms& of_length : programs.shorter)
    shorter_inputs.push_back(of_length.set.kinds.front().program.inputs);
  const int64_t examples = rows_of(program, shorter_inputs), rows = examples / of_row;
  if (!has_rows) return programs;
  if (rows < whole.rows) {
    if (rows > 0 && examples % of_row == 0) emitRest(emitter, whole, rows, programs);
    if (!programs.last) {
      fail(ErrorCode::kConfiguration,
           "the held-out data have {}, which the plan's devices cannot share{}; give more: a batch, {}, is "
           "enough",
           counted(examples, "example"),
           of_row > 1 ? fmt::format(" (the file takes {} at a time)", of_row) : "", programs.batch);
    }
    programs.whole = *std::exchange(programs.last, std::nullopt);
    programs.batch = std::exchange(programs.last_batch, 0) * of_row;
    whole.rows = rows;
    whole.microbatches = programs.whole.set.kinds.front().program.microbatches;
    emitShorter(shorter, training, plan, whole, programs);
    return programs;
  }
  if (examples % of_row != 0) {
    programs.left_out = examples % programs.batch;
  } else if (rows % whole.rows != 0) {
    emitRest(emitter, whole, rows % whole.rows, programs);
    programs.last_batch *= of_row;
    programs.left_out *= of_row;
  }
  return programs;
}

}  // namespace pipeshard
