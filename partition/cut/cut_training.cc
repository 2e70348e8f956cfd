#include "partition/cut/cut_training.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/weight_copies.h"
#include "ir/operators/operator_facts.h"
#include "partition/cut/layer_recomputation.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/pass_phases.h"
#include "partition/families/plan_schedule.h"

namespace pipeshard {
namespace {

// Fills the Cut in steps, each of which needs those before it:
//
//   findRoles       what every value is to the step; of what nodes make, the stage and the phase
//   placePasses     nodes that something needs go into the piece of their stage and phase, in graph order
//   placePrologues, placeUpdates     these pieces, found backwards from what they have to give
//   placeCopies     copies of weights, of what passes read
//   findInputs      of a piece: what its nodes read and none of them has made
//   findOutputs     of passes: what any piece reads, and the loss, new states and parts of gradients
//   recomputationOf for stages that recompute: their passes once more, in parts
//
// All of it relies on the topological order of graph.nodes. findOutputs needs the inputs of all pieces. Layer
// by layer, the parts of a recomputation are made from the last layer to the first, and what a part reads to
// make its layer again is from then on kept by the forward pass (`kept`).
class Cutter {
 public:
  Cutter(const TrainingGraph& training, const Plan& plan, const IdVector<StageId, bool>& split)
      : training_(training),
        plan_(plan),
        graph_(training.graph),
        uses_(computeUseDef(graph_)),
        stages_(nodeStages(training, plan)),
        layers_(nodeLayers(training, plan, stages_)),
        live_(liveNodes(training, uses_)),
        phases_(passPhases(training, uses_, stages_, live_, split)),
        results_(resultsOfPasses()) {
    cut_.stages.resize(plan.stages.size());
    cut_.copies.resize(plan.stages.size());
    cut_.owners = parameterOwners(training, stages_);
    cut_.groups = deviceGroups(plan);
  }

  Cut run() {
    findRoles();
    placePasses();
    placePrologues();
    placeUpdates();
    for (StagePieces& pieces : cut_.stages) {
      for (Piece& piece : pieces) findInputs(piece);
    }
    placeCopies();
    findOutputs();
    findReadValues();
    cut_.recomputations.resize(plan_.stages.size());
    keepSelectively();
    for (const StageId s : plan_.stages.ids()) {
      if (plan_.stages[s].recomputation != Recomputation::kNever) cut_.recomputations[s] = recomputationOf(s);
    }
    return std::move(cut_);
  }

 private:
  void setRole(ValueId id, ValueRole role, size_t index = 0) {
    if (!id.valid()) return;
    cut_.values[id.index()].role = role;
    cut_.values[id.index()].index = index;
  }

  void findRoles() {
    cut_.values.resize(graph_.values.size());
    for (const auto& [id, initializer] : graph_.initializers) {
      setRole(id, std::holds_alternative<Constant>(initializer) ? ValueRole::kConstant : ValueRole::kWeight);
    }
    for (size_t i = 0; i < training_.inputs.size(); ++i)
      setRole(training_.inputs[i].value, ValueRole::kBatchInput, i);
    for (size_t i = 0; i < training_.totals.size(); ++i)
      setRole(training_.totals[i].total, ValueRole::kTotal, i);
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      setRole(parameter.value, ValueRole::kParameter, p);
      setRole(parameter.gradient, ValueRole::kGradient, p);
      for (const OptimizerState& state : parameter.states) setRole(state.value, ValueRole::kState, p);
    }
    for (size_t i = 0; i < training_.forward_states.size(); ++i) {
      checkStage(training_.forward_states[i]);
      setRole(training_.forward_states[i].value, ValueRole::kForwardState, i);
    }
    setRole(training_.step, ValueRole::kStep);
    setRole(training_.gradient_scale, ValueRole::kGradientScale);
    setRole(training_.loss_scale, ValueRole::kLossScale);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (ValueId output : graph_.nodes[n].outputs) {
        setRole(output, ValueRole::kProduced);
        if (output.valid()) {
          cut_.values[output.index()].stage = stages_[n];
          cut_.values[output.index()].phase = phases_[n];
        }
      }
      if (isWeightCopy(training_, NodeId(n))) {
        setRole(graph_.nodes[n].outputs[0], ValueRole::kWeightCopy);
        cut_.values[graph_.nodes[n].outputs[0].index()].weight = graph_.nodes[n].inputs[0];
      }
    }
  }

  // A microbatch must read what the one before gave: a stage that updates a state for another one would hold
  // that up.
  void checkStage(const ForwardState& state) const {
    const NodeId updater = uses_.producer[state.updated.index()];
    const StageId updated = stages_[updater.index()];
    const StageId read = stages_[uses_.consumers[state.value.index()].at(0).index()];
    if (read == updated) return;
    fail(ErrorCode::kConfiguration,
         "'{}' is read in stage {} and updated in stage {}: every microbatch would wait for the one before; "
         "choose stages that keep all uses of this normalisation together ({}), or one stage (--stages "
         "uniform:1 --method auto)",
         graph_.value(state.value).name, read, updated, boundaryBehind(updater));
  }

  // The first boundary from an update of a running statistic on that no other statistic lies across: read
  // before it, and updated behind it.
  std::string boundaryBehind(NodeId updater) const {
    for (bool is_across = true; is_across;) {
      is_across = false;
      for (const ForwardState& state : training_.forward_states) {
        const NodeId by = uses_.producer[state.updated.index()];
        const NodeId reader = uses_.consumers[state.value.index()].at(0);
        if (reader.index() > updater.index() || by.index() <= updater.index()) continue;
        updater = by;
        is_across = true;
      }
    }
    const auto begin = training_.node_phase.begin();
    if (std::find(begin + updater.index() + 1, training_.node_phase.end(), Phase::kForward) ==
        training_.node_phase.end())
      return "no boundary is behind them";
    return fmt::format(
        "the first boundary behind them, and behind others that are used across it, is "
        "--boundary {}",
        graph_.value(graph_.node(updater).outputs.at(0)).name);
  }

  Piece& piece(StageId stage, Phase phase) { return cut_.stages[stage][static_cast<size_t>(phase)]; }

  void placePasses() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (live_[n] && isPass(phases_[n]) && !isWeightCopy(training_, NodeId(n)))
        piece(stages_[n], phases_[n]).nodes.emplace_back(n);
    }
  }

  bool readsInPass(const StagePieces& pieces, ValueId value) const {
    const auto reads = [&](NodeId node) {
      const std::vector<ValueId>& inputs = graph_.node(node).inputs;
      return std::find(inputs.begin(), inputs.end(), value) != inputs.end();
    };
    return std::any_of(kPassPhases.begin(), kPassPhases.end(), [&](Phase phase) {
      const std::vector<NodeId>& nodes = pieces[static_cast<size_t>(phase)].nodes;
      return std::any_of(nodes.begin(), nodes.end(), reads);
    });
  }

  // Prologues are cheap: each group of devices that reads a total computes it for itself.
  void placePrologues() {
    for (const StageId s : cut_.stages.ids()) {
      const auto first = std::find(cut_.groups.begin(), cut_.groups.end(), cut_.groups[s]);
      Piece& prologue = piece(StageId(first - cut_.groups.begin()), Phase::kPrologue);
      for (const PrologueTotal& total : training_.totals) {
        const bool listed =
            std::find(prologue.outputs.begin(), prologue.outputs.end(), total.part) != prologue.outputs.end();
        if (!listed && readsInPass(cut_.stages[s], total.total)) prologue.outputs.push_back(total.part);
      }
      prologue.nodes = nodesBehind(training_, uses_.producer, prologue.outputs, Phase::kPrologue);
    }
  }

  void placeUpdates() {
    for (const StageId s : cut_.stages.ids()) {
      std::vector<ValueId> updated;
      for (size_t p = 0; p < training_.parameters.size(); ++p) {
        if (cut_.owners[p] != s || !isTrained(training_.parameters[p])) continue;
        const std::vector<ValueId> values = updatedValues(training_.parameters[p]);
        updated.insert(updated.end(), values.begin(), values.end());
      }
      Piece& update = cut_.stages[s][static_cast<size_t>(Phase::kUpdate)];
      update.nodes = nodesBehind(training_, uses_.producer, updated, Phase::kUpdate);
      update.outputs = updated;
    }
  }

  void placeCopies() {
    for (const StageId s : cut_.stages.ids()) {
      std::set<ValueId> read;
      for (Phase phase : kPassPhases) {
        for (ValueId input : piece(s, phase).inputs) {
          if (cut_.place(input).role == ValueRole::kWeightCopy) read.insert(input);
        }
      }
      std::vector<NodeId> casts;
      for (ValueId copy : read) casts.push_back(uses_.producer[copy.index()]);
      std::sort(casts.begin(), casts.end());
      std::set<std::pair<ValueId, DataType>> made;
      for (NodeId cast : casts) {
        const ValueId copy = graph_.node(cast).outputs[0];
        if (!made.emplace(graph_.node(cast).inputs[0], graph_.dataType(copy)).second) continue;
        cut_.copies[s].nodes.push_back(cast);
        cut_.copies[s].outputs.push_back(copy);
      }
      findInputs(cut_.copies[s]);
    }
  }

  void findInputs(Piece& piece) const {
    std::vector<bool> known(graph_.values.size());
    for (NodeId node : piece.nodes) {
      for (ValueId input : graph_.node(node).inputs) {
        if (!input.valid() || known[input.index()]) continue;
        known[input.index()] = true;
        const ValueRole role = cut_.place(input).role;
        PIPESHARD_CHECK(role != ValueRole::kNone, "{} reads '{}', which has no role in the training step",
                        describeNode(graph_.node(node)), graph_.value(input).name);
        if (role != ValueRole::kConstant) piece.inputs.push_back(input);
      }
      for (ValueId output : graph_.node(node).outputs) {
        if (output.valid()) known[output.index()] = true;
      }
    }
  }

  // By value: what a step takes from its passes, whoever reads it besides.
  std::vector<bool> resultsOfPasses() const {
    std::vector<bool> results(graph_.values.size());
    for (const ValueId result : forwardResults(training_)) results[result.index()] = true;
    for (const ForwardState& state : training_.forward_states) results[state.updated.index()] = true;
    for (const Parameter& parameter : training_.parameters) {
      if (!isTrained(parameter)) continue;
      for (ValueId part : parameter.gradient_parts) results[part.index()] = true;
    }
    return results;
  }

  void findOutputs() {
    std::vector<bool> needed = results_;
    for (const StagePieces& pieces : cut_.stages) {
      for (const Piece& piece : pieces) {
        for (ValueId input : piece.inputs) needed[input.index()] = true;
      }
    }
    for (StagePieces& pieces : cut_.stages) {
      for (Phase phase : kPassPhases) {
        Piece& piece = pieces[static_cast<size_t>(phase)];
        for (NodeId node : piece.nodes) {
          for (ValueId output : graph_.node(node).outputs) {
            if (output.valid() && needed[output.index()]) piece.outputs.push_back(output);
          }
        }
      }
    }
  }

  void findReadValues() {
    for (const StagePieces& pieces : cut_.stages) {
      std::vector<bool>& read = cut_.read_values.emplace_back(graph_.values.size());
      for (size_t phase = 0; phase < static_cast<size_t>(Phase::kUpdate); ++phase) {
        for (ValueId input : pieces[phase].inputs) read[input.index()] = true;
      }
    }
    for (const StageId s : cut_.copies.ids()) {
      for (ValueId input : cut_.copies[s].inputs) cut_.read_values[s][input.index()] = true;
    }
  }

  void keepSelectively() {
    const bool any = std::any_of(plan_.stages.begin(), plan_.stages.end(), [](const StagePlan& stage) {
      return stage.recomputation == Recomputation::kSelective;
    });
    if (any) kept_selectively_ = selectiveRecomputation(training_, layers_).kept;
  }

  // Of the stage's nodes in these layers. Values that are `kept` are there.
  RecomputedPart partOf(StageId stage, LayerId first_layer, LayerId last_layer,
                        const std::vector<bool>& kept) const {
    RecomputedPart part;
    part.layer = last_layer;
    const auto inPhase = [&](Phase phase) {
      std::vector<NodeId> nodes = cut_.piece(stage, phase).nodes;
      std::erase_if(nodes, [&](NodeId node) {
        return layers_[node.index()] < first_layer || layers_[node.index()] > last_layer;
      });
      return nodes;
    };
    std::vector<bool> read(graph_.values.size());
    for (Phase phase : kBackwardPhases) {
      Piece& piece = part.backward[static_cast<size_t>(phase)];
      piece.nodes = inPhase(phase);
      findInputs(piece);
      for (ValueId input : piece.inputs) read[input.index()] = true;
    }
    const std::vector<NodeId> forward = inPhase(Phase::kForward);
    for (ValueId output : outputsOf(forward)) {
      if (read[output.index()] && !kept[output.index()]) part.again.outputs.push_back(output);
    }
    part.again.nodes = nodesFor(part.again.outputs, forward, kept);
    findInputs(part.again);
    for (NodeId node : part.again.nodes) requireRepeatable(graph_.node(node), stage);
    return part;
  }

  // What backward nodes of one layer of the stage read of another layer's forward pass.
  std::vector<bool> readByOtherLayers(StageId stage) const {
    std::vector<bool> read(graph_.values.size());
    for (ValueId value : outputsOf(cut_.piece(stage, Phase::kForward).nodes)) {
      const LayerId layer = layers_[uses_.producer[value.index()].index()];
      const std::vector<NodeId>& readers = uses_.consumers[value.index()];
      read[value.index()] = std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
        return stages_[reader.index()] == stage && live_[reader.index()] &&
               isBackward(phases_[reader.index()]) && layers_[reader.index()] != layer;
      });
    }
    return read;
  }

  void keepProducts(StageId stage, std::vector<bool>& kept) const {
    for (ValueId value : outputsOf(cut_.piece(stage, Phase::kForward).nodes))
      kept[value.index()] = kept[value.index()] || kept_selectively_[value.index()];
  }

  RecomputedStage recomputationOf(StageId stage) const {
    const StagePlan& plan = plan_.stages[stage];
    RecomputedStage result;
    std::vector<bool> kept(graph_.values.size());
    if (isByLayers(plan.recomputation)) {
      kept = readByOtherLayers(stage);
      if (plan.recomputation == Recomputation::kSelective) keepProducts(stage, kept);
      for (LayerId layer = plan.last_layer; layer.valid() && layer >= plan.first_layer;
           layer = layer.previous()) {
        RecomputedPart part = partOf(stage, layer, layer, kept);
        for (ValueId input : part.again.inputs) kept[input.index()] = true;
        const auto isEmpty = [](const Piece& piece) { return piece.empty(); };
        if (!std::all_of(part.backward.begin(), part.backward.end(), isEmpty))
          result.parts.push_back(std::move(part));
      }
    } else {
      result.parts.push_back(partOf(stage, plan.first_layer, plan.last_layer, kept));
    }
    findOutputs(stage, result.parts);
    const std::vector<NodeId>& forward = cut_.piece(stage, Phase::kForward).nodes;
    for (ValueId output : outputsOf(forward)) {
      if (kept[output.index()] || isNeededByOthers(output, stage)) result.forward.outputs.push_back(output);
    }
    result.forward.nodes = nodesFor(result.forward.outputs, forward, std::vector<bool>(graph_.values.size()));
    findInputs(result.forward);
    return result;
  }

  // Of backward pieces of parts: what the stage's whole passes give, and what other pieces read.
  void findOutputs(StageId stage, std::vector<RecomputedPart>& parts) const {
    std::vector<bool> needed(graph_.values.size());
    for (Phase phase : kBackwardPhases) {
      for (ValueId output : cut_.piece(stage, phase).outputs) needed[output.index()] = true;
    }
    for (const RecomputedPart& part : parts) {
      for (const Piece& piece : part.backward) {
        for (ValueId input : piece.inputs) needed[input.index()] = true;
      }
    }
    for (RecomputedPart& part : parts) {
      for (Piece& piece : part.backward) {
        for (ValueId output : outputsOf(piece.nodes)) {
          if (needed[output.index()]) piece.outputs.push_back(output);
        }
      }
    }
  }

  std::vector<ValueId> outputsOf(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> outputs;
    for (NodeId node : nodes) {
      const std::vector<ValueId>& of_node = graph_.node(node).outputs;
      std::copy_if(of_node.begin(), of_node.end(), std::back_inserter(outputs),
                   [](ValueId output) { return output.valid(); });
    }
    return outputs;
  }

  // Those of the nodes that the values depend on, where some values are there.
  std::vector<NodeId> nodesFor(const std::vector<ValueId>& values, const std::vector<NodeId>& nodes,
                               const std::vector<bool>& there) const {
    std::vector<bool> needed(graph_.values.size());
    for (ValueId value : values) needed[value.index()] = true;
    std::vector<NodeId> result;
    for (size_t i = nodes.size(); i-- > 0;) {
      const Node& node = graph_.node(nodes[i]);
      const auto is_needed = [&](ValueId output) { return output.valid() && needed[output.index()]; };
      if (std::none_of(node.outputs.begin(), node.outputs.end(), is_needed)) continue;
      result.push_back(nodes[i]);
      for (ValueId input : node.inputs) {
        if (input.valid() && !there[input.index()]) needed[input.index()] = true;
      }
    }
    std::reverse(result.begin(), result.end());
    return result;
  }

  // Of a forward output, by anything but the stage's own backward pass.
  bool isNeededByOthers(ValueId output, StageId stage) const {
    if (results_[output.index()]) return true;
    const std::vector<NodeId>& readers = uses_.consumers[output.index()];
    return std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return stages_[reader.index()] != stage && live_[reader.index()] && isPass(phases_[reader.index()]);
    });
  }

  void requireRepeatable(const Node& node, StageId stage) const {
    if (!operatorFacts(node).is_random) return;
    fail(ErrorCode::kConfiguration,
         "stage {} recomputes its forward pass, but {} would give other random numbers the second time; "
         "leave the stage out of --recompute",
         stage, describeNode(node));
  }

  const TrainingGraph& training_;
  const Plan& plan_;
  const Graph& graph_;
  const UseDef uses_;
  const std::vector<StageId> stages_;   // by node
  const std::vector<LayerId> layers_;   // by node
  const std::vector<bool> live_;        // by node: its piece has it
  const std::vector<Phase> phases_;     // by node
  const std::vector<bool> results_;     // by value: as resultsOfPasses
  std::vector<bool> kept_selectively_;  // by value; empty: no stage does
  Cut cut_;
};

}  // namespace

const Piece& Cut::piece(StageId stage, Phase phase, PassForm form, size_t part) const {
  switch (form) {
    case PassForm::kWhole: break;
    case PassForm::kDiscarding: return recomputation(stage).forward;
    case PassForm::kAgain: return recomputation(stage).parts.at(part).again;
    case PassForm::kRemade: return recomputation(stage).parts.at(part).piece(phase);
  }
  return piece(stage, phase);
}

bool RecomputedPart::remakes(ValueId id) const {
  return std::find(again.outputs.begin(), again.outputs.end(), id) != again.outputs.end();
}

bool Cut::groupReads(PipelineRankId group, ValueId id) const {
  for (const StageId stage : stages.ids()) {
    if (groups[stage] == group && reads(stage, id)) return true;
  }
  return false;
}

Cut cutTraining(const TrainingGraph& training, const Plan& plan) {
  return cutTraining(training, plan, splitStages(plan));
}

Cut cutTraining(const TrainingGraph& training, const Plan& plan, const IdVector<StageId, bool>& split) {
  return Cutter(training, plan, split).run();
}

}  // namespace pipeshard
