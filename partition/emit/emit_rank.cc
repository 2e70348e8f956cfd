#include "partition/emit/emit_rank.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/emit/gradient_norm.h"
#include "partition/emit/gradient_parts.h"
#include "partition/emit/rank_builder.h"
#include "partition/emit/rank_transfers.h"
#include "partition/emit/shared_parameters.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {
namespace {

// One rank's instructions: first parameters that go from their owners to other groups, then the actions of
// the schedule, then the results.
//
//   a pass      load its batch inputs; copy weights, if it is the first that reads them; make again what it
//   reads, if the stage recomputes; receive what other
//               groups have made; run; send what leaves; add to the sums over microbatches
//   an update   (finishUpdate; under a synchronous schedule once, at the end) sum over the devices of the
//               stage; send parts of gradients to their owners, who add them up; synchronise; add what comes
//               late; run the update
//
// Before the first action of every update its prologue runs. All ranks are emitted by the same rules from the
// same context: so what one sends and what its peer receives are in one order, and collectives meet, though
// no emission looks at another rank's program. Where parts of a gradient come together they are added in the
// order of Parameter::gradient_parts, whoever has made them, so the bits do not depend on the cut.
class RankEmitter {
 public:
  RankEmitter(const EmissionContext& context, RankId rank)
      : context_(context),
        layout_(context.layout),
        training_(context.family.base()),
        rank_(rank),
        place_(layout_.place(rank)),
        stages_(layout_.stagesOf(place_.group)),
        builder_(context, rank),
        transfers_(context, rank, builder_) {}

  EmittedRank run() {
    makePersistentBuffers();
    shareParameters(
        context_, rank_, [this](size_t p) { return changes(p); }, builder_, transfers_);
    const PipelineRankId pipeline_rank = context_.schedule.rank_of_stage[stages_.front()];
    for (const Action& action : context_.schedule.orders[pipeline_rank]) {
      if (context_.beat) context_.beat();
      if (isPass(action.kind) && !layout_.takes(rank_, action.microbatch)) continue;
      const int update = context_.versions.updateOf(action.microbatch);
      for (; prologues_ <= update; ++prologues_) runPrologue(prologues_);
      runAction(action);
      if (action.kind == ActionKind::kUpdate) finishUpdate({action.stage}, update, action.microbatch);
    }
    if (!context_.versions.asynchronous()) finishUpdate(stages_, 0, -1);
    listResults();
    return std::move(builder_).take();
  }

 private:
  // The update of these stages, of gradients that are complete on every device by themselves. `microbatch`:
  // the last one of a window's update.
  void finishUpdate(const std::vector<StageId>& stages, int update, int microbatch) {
    updating_ = stages;
    workForAll();
    sumOverDevices(update);
    joinGradients(update);
    synchronizeGradients();
    joinLateParts(update);
    if (training_.clip_norm > 0)
      takeGradientNorm(context_, rank_, synchronized_, speaksForLoss() ? lossBuffer(update) : BufferId(),
                       builder_);
    for (const StageId stage : stages) runUpdate(stage, update, microbatch);
    forParts([&](size_t p, size_t i) {
      if (!isUpdating(ownerOf(p))) return;
      builder_.forget(partBuffer(p, i, update));
      if (joined_[p]) builder_.forget(gradientBuffer(p));  // else there is none
    });
  }
  bool isUpdating(StageId stage) const {
    return std::find(updating_.begin(), updating_.end(), stage) != updating_.end();
  }
  bool takesAny(int update) const {
    const int count = context_.versions.microbatchesPerUpdate();
    for (int k = update * count; k < (update + 1) * count; ++k) {
      if (layout_.takes(rank_, k)) return true;
    }
    return false;
  }

  const Piece& piece(StageId stage, Phase phase) const { return context_.cut.piece(stage, phase); }
  bool isHere(StageId stage) const { return stage.valid() && layout_.group(stage) == place_.group; }
  // Instructions from here on work for all stages of the rank.
  void workForAll() { builder_.workFor(stages_.size() == 1 ? stages_.front() : StageId()); }

  StageId ownerOf(size_t parameter) const { return context_.cut.owners[parameter]; }
  bool owns(size_t parameter) const { return isHere(ownerOf(parameter)); }
  // From step to step: by this program, or by one that it evaluates.
  bool changes(size_t parameter) const {
    const std::vector<bool>& elsewhere = context_.trained_elsewhere;
    return isTrained(training_.parameters[parameter]) || (!elsewhere.empty() && elsewhere[parameter]);
  }
  bool readsParameter(PipelineRankId group, size_t parameter) const {
    return context_.cut.groupReads(group, training_.parameters[parameter].value);
  }

  void makePersistentBuffers() {
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      if (!changes(p) && (owns(p) || readsParameter(place_.group, p)))
        builder_.sourced(parameter.value, BufferKind::kWeight);
      if (!changes(p) || !owns(p)) continue;
      builder_.sourced(parameter.value, BufferKind::kParameter);
      for (const OptimizerState& state : parameter.states) builder_.stateOf(parameter, state);
    }
    for (const StageId stage : stages_) {
      for (size_t p = 0; p < kPhaseCount; ++p) {
        for (ValueId input : piece(stage, static_cast<Phase>(p)).inputs) {
          const ValueRole role = context_.cut.place(input).role;
          if (role == ValueRole::kWeight) builder_.sourced(input, BufferKind::kWeight);
          if (role == ValueRole::kForwardState) builder_.sourced(input, BufferKind::kForwardState);
          if (role != ValueRole::kStep) continue;
          for (int update = 0; update < context_.versions.updates(); ++update) {
            if (context_.versions.endsAtMinibatch(stage, update))
              builder_.ofUpdate(input, BufferKind::kStep, update);
          }
        }
      }
    }
  }

  // Every device computes the totals of the whole batch of an update for itself, once for all its stages.
  void runPrologue(int update) {
    const StageId first = stages_.front();
    if (piece(first, Phase::kPrologue).empty() || !takesAny(update)) return;
    workForAll();
    const int count = context_.versions.microbatchesPerUpdate();
    for (int k = update * count; k < (update + 1) * count; ++k) {
      loadInputs(piece(first, Phase::kPrologue), Phase::kPrologue, k);
      builder_.run(first, Phase::kPrologue, k);
      for (const PrologueTotal& total : training_.totals) {
        if (!context_.cut.groupReads(place_.group, total.total)) continue;
        builder_.accumulate(builder_.bufferOf(total.part, k), builder_.bufferOf(total.total, k), k);
      }
    }
  }

  bool recomputes(StageId stage, int microbatch) const {
    const std::vector<RecomputedPart>& parts = context_.cut.recomputation(stage).parts;
    const bool any = std::any_of(parts.begin(), parts.end(),
                                 [](const RecomputedPart& part) { return !part.again.empty(); });
    return any && (context_.stages[stage].recomputation != Recomputation::kExceptLast ||
                   microbatch + 1 < context_.versions.microbatchesPerUpdate());
  }

  // Backward passes of a stage that recomputes run part by part; where the schedule says B, both halves of a
  // part (or the one piece of it) together.
  void runAction(const Action& action) {
    const auto phases = phasesOf(action.kind);
    const StageId stage = action.stage;
    const bool half = action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kBackwardWeight;
    PIPESHARD_CHECK(!half || piece(stage, Phase::kBackward).empty(), "stage {} has no half for {}", stage,
                    actionToString(action));
    const bool recomputed = isPass(action.kind) && recomputes(stage, action.microbatch);
    if (!recomputed || action.kind == ActionKind::kForward) {
      for (Phase phase : phases)
        runPass(stage, phase, action.microbatch, recomputed ? PassForm::kDiscarding : PassForm::kWhole);
      return;
    }
    for (size_t part = 0; part < context_.cut.recomputation(stage).parts.size(); ++part) {
      for (Phase phase : phases) runPass(stage, phase, action.microbatch, PassForm::kRemade, part);
    }
  }

  void runPass(StageId stage, Phase phase, int microbatch, PassForm form, size_t part = 0) {
    if (piece(stage, phase).empty()) return;
    builder_.beginPass(stage, microbatch);
    const bool forward = phase == Phase::kForward;
    const Piece& running = context_.cut.piece(stage, phase, form, part);
    // a forward pass gets what a recomputation reads, too
    const Piece& reading = forward ? piece(stage, phase) : running;
    loadInputs(reading, phase, microbatch);
    if (form == PassForm::kRemade) recompute(stage, part, running, microbatch);
    for (ValueId input : reading.inputs) {
      const ValuePlace& place = context_.cut.place(input);
      if (place.role == ValueRole::kProduced && !isHere(place.stage))
        transfers_.receiveUntil(layout_.group(place.stage), {input, microbatch});
    }
    if (form == PassForm::kDiscarding) copyStates(stage, microbatch);
    if (!running.empty()) builder_.run(stage, phase, microbatch, form, part);
    const bool complete =
        form != PassForm::kRemade || part + 1 == context_.cut.recomputation(stage).parts.size();
    if (complete) {
      for (const Departure& departure : context_.messages.departures(stage, phase))
        transfers_.sendTo(departure, microbatch);
    }
    if (forward) handStatesOn(stage, microbatch);
    for (ValueId output : running.outputs) accumulateOutput(output, microbatch);
  }

  // Before the first backward piece that reads what the forward pass has not kept.
  void recompute(StageId stage, size_t part, const Piece& reader, int microbatch) {
    const RecomputedPart& of = context_.cut.recomputation(stage).parts[part];
    if (std::none_of(reader.inputs.begin(), reader.inputs.end(),
                     [&](ValueId input) { return of.remakes(input); }))
      return;
    if (remade_.insert({stage, microbatch, part}).second)
      builder_.run(stage, Phase::kForward, microbatch, PassForm::kAgain, part);
  }

  // The recomputation reads what the forward pass reads, and states change in between.
  void copyStates(StageId stage, int microbatch) {
    std::set<BufferId> copied;
    for (const RecomputedPart& part : context_.cut.recomputation(stage).parts) {
      for (ValueId input : part.again.inputs) {
        if (context_.cut.place(input).role != ValueRole::kForwardState) continue;
        const BufferId copy = builder_.stateBefore(input, microbatch);
        if (!copied.insert(copy).second) continue;
        builder_.add(InstructionKind::kAccumulate, microbatch, {builder_.bufferOf(input, kWholeStep)}, {copy})
            .overwrite = true;
      }
    }
  }

  void loadInputs(const Piece& piece, Phase phase, int microbatch) {
    for (ValueId input : piece.inputs) {
      if (context_.cut.place(input).role == ValueRole::kBatchInput)
        builder_.load(input, microbatch, phase == Phase::kPrologue);
    }
  }

  // ---- sums over microbatches ----

  void handStatesOn(StageId stage, int microbatch) {
    const std::vector<ValueId>& outputs = piece(stage, Phase::kForward).outputs;
    for (const ForwardState& state : training_.forward_states) {
      if (std::find(outputs.begin(), outputs.end(), state.updated) == outputs.end()) continue;
      const BufferId lasting = builder_.bufferOf(state.value, kWholeStep);
      builder_
          .add(InstructionKind::kAccumulate, microbatch, {builder_.produced(state.updated, microbatch)},
               {lasting})
          .overwrite = true;
    }
  }

  bool speaksForLoss() const {
    const ValueId loss = training_.loss;
    return loss.valid() && isHere(context_.cut.place(loss).stage) && place_.position == DeviceId(0);
  }
  BufferId lossBuffer(int update) {
    return builder_.ofUpdate(training_.loss, BufferKind::kAccumulator, update);
  }

  // Where part i of a gradient is summed over the microbatches: in the gradient itself for the first part
  // that is not added late, when a stage on the owner's devices makes it; else in a buffer of its own.
  BufferId partBuffer(size_t parameter, size_t part, int update) {
    const ValueId gradient = training_.parameters[parameter].gradient;
    bool is_gradient = partGroup(parameter, part) == layout_.group(ownerOf(parameter));
    for (size_t before = 0; before < part; ++before)
      is_gradient = is_gradient && comesLate(parameter, before);
    if (is_gradient) return gradientBuffer(parameter);
    std::string name = fmt::format("{}{}part{}", builder_.nameOf(gradient), context_.separator, part);
    if (context_.versions.updates() > 1) name += fmt::format("{}update{}", context_.separator, update);
    return builder_.buffer(name, BufferKind::kGradient, gradient,
                           training_.parameters[parameter].gradient_parts[part]);
  }

  // Where the parts of a gradient come together, kept as the parts are.
  BufferId gradientBuffer(size_t parameter) {
    const Parameter& of = training_.parameters[parameter];
    return builder_.buffer(builder_.nameOf(of.gradient), BufferKind::kGradient, of.gradient,
                           firstPartHere(parameter));
  }

  StageId partStage(size_t parameter, size_t part) const {
    return context_.cut.place(training_.parameters[parameter].gradient_parts[part]).stage;
  }
  PipelineRankId partGroup(size_t parameter, size_t part) const {
    return layout_.group(partStage(parameter, part));
  }
  bool makesPart(size_t parameter, size_t part) const { return partGroup(parameter, part) == place_.group; }
  // All parts that the group makes are kept alike.
  ValueId firstPartHere(size_t parameter) const {
    const std::vector<ValueId>& parts = training_.parameters[parameter].gradient_parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (makesPart(parameter, i)) return parts[i];
    }
    return parts.front();
  }
  // It comes to the owner as its update reads the gradient, and is added to what has been synchronized.
  bool comesLate(size_t parameter, size_t part) const {
    const PipelineRankId from = partGroup(parameter, part), to = layout_.group(ownerOf(parameter));
    return from != to &&
           transfers_.planBetween(from, to, training_.parameters[parameter].gradient_parts[part]) != nullptr;
  }

  // Sums over microbatches: the loss, and each part of each gradient.
  void accumulateOutput(ValueId output, int microbatch) {
    const int update = context_.versions.updateOf(microbatch);
    if (output == training_.loss)
      builder_.accumulate(builder_.produced(output, microbatch), lossBuffer(update), microbatch);
    const auto [first, last] = parts_of_.equal_range(output);
    for (auto it = first; it != last; ++it) {
      builder_.accumulate(builder_.produced(output, microbatch),
                          partBuffer(it->second.first, it->second.second, update), microbatch);
    }
  }

  // What the devices of the group have summed over their rows, or replicas over their microbatches, becomes
  // the sum over all of them.
  void sumOverDevices(int update) {
    const StageId loss_stage = training_.loss.valid() ? context_.cut.place(training_.loss).stage : StageId();
    if (isUpdating(loss_stage)) {
      for (int of = update - context_.versions.averaged(loss_stage) + 1; of <= update; ++of) {
        if (!takesAny(of)) builder_.add(InstructionKind::kZero, -1, {}, {lossBuffer(of)});
        builder_.sumOverDevices(lossBuffer(of), training_.loss);
      }
    }
    if (context_.shardings.isChosen(stages_.front())) return;  // synchronizeGradients
    forParts([&](size_t p, size_t i) {
      if (isUpdating(partStage(p, i)))
        builder_.sumOverDevices(partBuffer(p, i, update), training_.parameters[p].gradient_parts[i]);
    });
  }

  // From the spec of the accumulators to the one that the update reads; from a sum over minibatches to their
  // mean.
  void synchronizeGradients() {
    synchronized_.resize(training_.parameters.size());
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      if (!isTrained(parameter) || !isUpdating(ownerOf(p))) continue;
      synchronized_[p] =
          joined_[p]
              ? builder_.synchronize(gradientBuffer(p), firstPartHere(p), parameter.gradient)
              : builder_.buffer(builder_.nameOf(parameter.gradient) + context_.separator + "synchronized",
                                BufferKind::kGradient, parameter.gradient);
      const int averaged = context_.versions.averaged(ownerOf(p));
      if (averaged > 1) builder_.average(averaged, synchronized_[p]);
    }
    builder_.flushSynchronization();
  }

  void joinLateParts(int update) {
    forParts([&](size_t p, size_t i) {
      if (!isUpdating(ownerOf(p)) || !comesLate(p, i)) return;
      const BufferId part = partBuffer(p, i, update);
      transfers_.receiveFrom(partGroup(p, i), part, training_.parameters[p].gradient_parts[i]);
      builder_.accumulate(part, synchronized_[p], -1);
    });
  }

  template <typename Visit>
  void forParts(const Visit& visit) const {
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p])) continue;
      for (size_t i = 0; i < training_.parameters[p].gradient_parts.size(); ++i) visit(p, i);
    }
  }

  // The parts of a gradient, each summed over all microbatches, are added in their order: the result does not
  // depend on which stage made which part. (But where shards travel: these are added last.)
  void joinGradients(int update) {
    joined_.assign(training_.parameters.size(), false);
    forParts([&](size_t p, size_t i) {
      if (owns(p) || !isUpdating(partStage(p, i))) return;
      transfers_.sendTo(layout_.group(ownerOf(p)), partBuffer(p, i, update),
                        training_.parameters[p].gradient_parts[i]);
    });
    forParts([&](size_t p, size_t i) {
      if (!isUpdating(ownerOf(p)) || comesLate(p, i)) return;
      joined_[p] = true;
      const BufferId part = partBuffer(p, i, update);
      const BufferId gradient = gradientBuffer(p);
      if (!makesPart(p, i)) builder_.receive(transfers_.counterpart(partGroup(p, i)), part, -1);
      if (part != gradient) builder_.accumulate(part, gradient, -1);
    });
  }

  void runUpdate(StageId stage, int update, int microbatch) {
    const Piece& pieces = piece(stage, Phase::kUpdate);
    if (pieces.empty()) return;
    builder_.workFor(stage);
    const int number = update / context_.versions.averaged(stage);  // of the stage's updates
    std::vector<BufferId> inputs, outputs;
    for (ValueId input : pieces.inputs) inputs.push_back(updateReads(input, update, number));
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) != stage) continue;
      outputs.push_back(builder_.version(p, context_.versions.asynchronous() ? number + 1 : 0));
      for (const OptimizerState& state : training_.parameters[p].states)
        outputs.push_back(builder_.bufferOf(state.value, kWholeStep));
    }
    builder_.runUpdate(stage, microbatch, std::move(inputs), std::move(outputs));
  }

  BufferId updateReads(ValueId input, int update, int number) {
    const ValuePlace& place = context_.cut.place(input);
    switch (place.role) {
      case ValueRole::kGradient: return synchronized_[place.index];
      case ValueRole::kParameter:
        return builder_.version(place.index, context_.versions.asynchronous() ? number : 0);
      case ValueRole::kStep: return builder_.ofUpdate(input, BufferKind::kStep, update);
      default: return builder_.bufferOf(input, kWholeStep);
    }
  }

  // Of devices that hold the same, one speaks for the others.
  void listResults() {
    const int updates = context_.versions.updates();
    const auto forUpdates = [&](StageId stage, const auto& add) {
      for (int update = 0; update < updates; ++update) {
        if (stage.valid() && !context_.versions.endsAtMinibatch(stage, update)) continue;
        add(update);
        if (updates > 1) builder_.program().results.back().update = update;
      }
    };
    if (speaksForLoss()) {
      forUpdates(StageId(), [&](int update) { addResult(Result::Kind::kLoss, "loss", lossBuffer(update)); });
    }
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      if (!owns(p)) continue;
      const std::string& name = builder_.nameOf(parameter.value);
      const bool trained = isTrained(parameter);
      if (trained && builder_.speaksFor(parameter.gradient)) {
        forUpdates(ownerOf(p), [&](int) { addResult(Result::Kind::kGradient, name, synchronized_[p]); });
      }
      if (builder_.speaksFor(parameter.value))
        addResult(Result::Kind::kParameter, name, builder_.bufferOf(parameter.value, kWholeStep));
      for (const OptimizerState& state : parameter.states) {
        if (!trained || !builder_.speaksFor(state.value)) continue;
        addResult(Result::Kind::kOptimizerState, name, builder_.bufferOf(state.value, kWholeStep),
                  state.name);
      }
    }
    listOutputs();
    for (const ForwardState& state : training_.forward_states) {
      if (!isHere(context_.cut.place(state.updated).stage) || !builder_.speaksFor(state.value)) continue;
      addResult(Result::Kind::kForwardState, builder_.nameOf(state.value),
                builder_.bufferOf(state.value, kWholeStep));
    }
  }

  // Of every microbatch; of the first one where all give the same.
  void listOutputs() {
    for (const ModelOutput& output : training_.outputs) {
      if (!isHere(context_.cut.place(output.value).stage) || !builder_.speaksFor(output.value)) continue;
      const int count = output.axis < 0 ? 1 : context_.versions.microbatchesPerUpdate();
      for (int k = 0; k < count; ++k) {
        if (!layout_.takes(rank_, k)) continue;
        addResult(Result::Kind::kOutput, output.name, builder_.produced(output.value, k));
        builder_.program().results.back().microbatch = k;
        builder_.program().results.back().axis = output.axis;
      }
    }
  }

  void addResult(Result::Kind kind, const std::string& name, BufferId buffer, const std::string& state = "") {
    builder_.program().results.push_back({kind, name, state, buffer});
  }

  const EmissionContext& context_;
  const Layout& layout_;
  const TrainingGraph& training_;
  const RankId rank_;
  const Place& place_;
  const std::vector<StageId>& stages_;  // that the rank runs
  RankBuilder builder_;
  RankTransfers transfers_;
  std::vector<StageId> updating_;  // stages that finishUpdate works for
  // by parameter: joinGradients has added up parts of its gradient
  std::vector<bool> joined_;
  std::vector<BufferId> synchronized_;                 // by parameter: the gradient that its update reads
  std::set<std::tuple<StageId, int, size_t>> remade_;  // stage, microbatch, part: recomputed
  int prologues_ = 0;                                  // run, one per update
  const GradientParts parts_of_ = gradientParts(training_);
};

}  // namespace

EmittedRank emitRank(const EmissionContext& context, RankId rank) { return RankEmitter(context, rank).run(); }

}  // namespace pipeshard
