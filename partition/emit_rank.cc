#include "partition/emit_rank.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/error.h"
#include "partition/node_stages.h"

namespace pipeshard {
namespace {

constexpr std::string_view kSubgraphNames[kPhaseCount] = {"prologue", "forward", "backward_input", "backward_weight", "update"};

class RankEmitter {
 public:
  RankEmitter(const EmissionContext& context, int rank)
      : context_(context), training_(context.training), graph_(context.training.graph), rank_(rank), taken_(context.cut.stages.size()) {
    program_.rank = rank;
    program_.world_size = static_cast<int>(context.cut.stages.size());
    program_.microbatches = training_.microbatches;
  }

  RankProgram run() {
    listInputs();
    extractSubgraphs();
    makePersistentBuffers();
    shareParameters();
    runPrologue();
    for (const Action& action : context_.orders[static_cast<size_t>(rank_)]) {
      for (Phase phase : phasesOf(action.kind)) runPass(phase, action.microbatch);
    }
    joinGradients();
    runUpdate();
    listResults();
    listForwardStates();
    return {std::move(program_), std::move(subgraphs_)};
  }

 private:
  const Piece& piece(Phase phase) const { return context_.cut.piece(rank_, phase); }
  const std::string& nameOf(ValueId id) const { return graph_.value(id).name; }
  int ownerOf(size_t parameter) const { return context_.cut.owners[parameter]; }
  bool readsParameter(int stage, size_t parameter) const { return context_.cut.reads(stage, training_.parameters[parameter].value); }

  // ---- buffers and instructions ----

  // The buffer of that name, made at its first mention.
  BufferId buffer(const std::string& name, BufferKind kind, ValueId value) {
    const auto [found, is_new] = buffers_.try_emplace(name, program_.buffers.size());
    if (is_new) program_.buffers.push_back({name, kind, graph_.dataType(value), graph_.shape(value), nameOf(value), std::nullopt, {}});
    return found->second;
  }

  std::string microbatchName(ValueId value, int microbatch) const {
    return fmt::format("{}{}{}", nameOf(value), context_.separator, microbatch);
  }

  Instruction& add(InstructionKind kind, int microbatch, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
    Instruction& instruction = program_.instructions.emplace_back();
    instruction.kind = kind;
    instruction.microbatch = microbatch;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    return instruction;
  }

  void send(int peer, BufferId id, int microbatch) { add(InstructionKind::kSend, microbatch, {id}, {}).peer = peer; }
  void receive(int peer, BufferId id, int microbatch) { add(InstructionKind::kReceive, microbatch, {}, {id}).peer = peer; }

  // total := part, or total + part when it has been written before.
  void accumulate(BufferId part, BufferId total, int microbatch) {
    add(InstructionKind::kAccumulate, microbatch, {part}, {total}).overwrite = written_.insert(total).second;
  }

  // The buffer that stands for a value in a piece. `prologue`: its inputs are loaded apart from those of the passes.
  BufferId bufferOf(ValueId value, int microbatch, bool prologue = false) {
    const ValuePlace& place = context_.cut.place(value);
    switch (place.role) {
      case ValueRole::kProduced: return buffer(microbatchName(value, microbatch), BufferKind::kActivation, value);
      case ValueRole::kWeight: return buffer(nameOf(value), BufferKind::kWeight, value);
      case ValueRole::kParameter: return buffer(nameOf(value), BufferKind::kActivation, value);  // made before, or a copy
      case ValueRole::kTotal: return buffer(nameOf(value), BufferKind::kAccumulator, value);
      case ValueRole::kGradient: return buffer(nameOf(value), BufferKind::kGradient, value);
      case ValueRole::kState: return buffer(nameOf(value), BufferKind::kOptimizerState, value);
      case ValueRole::kForwardState: return buffer(nameOf(value), BufferKind::kForwardState, value);
      case ValueRole::kStep: return buffer(nameOf(value), BufferKind::kStep, value);
      case ValueRole::kBatchInput: {
        const bool is_cut = training_.inputs[place.index].axis >= 0;
        if (!is_cut) return buffer(nameOf(value), BufferKind::kInput, value);
        const std::string suffix = prologue ? context_.separator + "prologue" : "";
        return buffer(microbatchName(value, microbatch) + suffix, BufferKind::kInput, value);
      }
      case ValueRole::kConstant:
      case ValueRole::kNone: break;
    }
    PIPESHARD_CHECK(false, "'{}' needs no buffer", nameOf(value));
    return {};
  }

  Initializer sourceOf(ValueId value) const {
    Initializer source = graph_.initializers.at(value);
    if (auto* weight = std::get_if<WeightReference>(&source)) {
      const std::filesystem::path path = std::filesystem::path(graph_.directory) / weight->location;
      weight->location = std::filesystem::absolute(path).lexically_normal().string();
    }
    return source;
  }

  void makeSourced(ValueId value, BufferKind kind) {
    Buffer& made = program_.buffer(buffer(nameOf(value), kind, value));
    made.kind = kind;
    made.source = sourceOf(value);
    made.source_type = made.data_type;
  }

  // ---- the parts of a step ----

  void listInputs() {
    for (const BatchInput& input : training_.inputs) {
      ProgramInput listed{nameOf(input.value), graph_.dataType(input.value), graph_.shape(input.value), input.axis, 0, 0};
      if (input.axis >= 0) listed.shape[static_cast<size_t>(input.axis)] *= training_.microbatches;
      program_.inputs.push_back(std::move(listed));
    }
  }

  void extractSubgraphs() {
    for (size_t p = 0; p < kPhaseCount; ++p) {
      const Phase phase = static_cast<Phase>(p);
      const Piece& part = piece(phase);
      if (part.empty()) continue;
      Subgraph subgraph{std::string(kSubgraphNames[p]), std::string(kSubgraphNames[p]) + ".onnx", phase, {}, {}};
      for (ValueId input : part.inputs) subgraph.inputs.push_back(nameOf(input));
      for (ValueId output : part.outputs) subgraph.outputs.push_back(nameOf(output));
      subgraph_of_[p] = SubgraphId(program_.subgraphs.size());
      program_.subgraphs.push_back(std::move(subgraph));
      subgraphs_.push_back(extractSubgraph(graph_, kSubgraphNames[p], part.nodes, part.inputs, part.outputs));
    }
  }

  void makePersistentBuffers() {
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      if (!isTrained(parameter) && (ownerOf(p) == rank_ || readsParameter(rank_, p))) makeSourced(parameter.value, BufferKind::kWeight);
      if (!isTrained(parameter) || ownerOf(p) != rank_) continue;
      makeSourced(parameter.value, BufferKind::kParameter);
      for (const OptimizerState& state : parameter.states) bufferOf(state.value, -1);
    }
    for (size_t p = 0; p < kPhaseCount; ++p) {
      for (ValueId input : piece(static_cast<Phase>(p)).inputs) {
        const ValueRole role = context_.cut.place(input).role;
        if (role == ValueRole::kWeight) makeSourced(input, BufferKind::kWeight);
        if (role == ValueRole::kForwardState) makeSourced(input, BufferKind::kForwardState);
        if (role == ValueRole::kStep) bufferOf(input, -1);
      }
    }
  }

  // A trained parameter that several stages read goes from its owner to the others, afresh in every step.
  void shareParameters() {
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) != rank_) continue;
      for (int stage = 0; stage < program_.world_size; ++stage) {
        if (stage != rank_ && readsParameter(stage, p)) send(stage, bufferOf(training_.parameters[p].value, -1), -1);
      }
    }
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) == rank_ || !readsParameter(rank_, p)) continue;
      receive(ownerOf(p), bufferOf(training_.parameters[p].value, -1), -1);
    }
  }

  void runPrologue() {
    if (piece(Phase::kPrologue).empty()) return;
    for (int k = 0; k < static_cast<int>(training_.microbatches); ++k) {
      loadInputs(Phase::kPrologue, k);
      runPiece(Phase::kPrologue, k);
      for (const PrologueTotal& total : training_.totals) {
        if (context_.cut.reads(rank_, total.total)) accumulate(bufferOf(total.part, k), bufferOf(total.total, -1), k);
      }
    }
  }

  void runPass(Phase phase, int microbatch) {
    if (piece(phase).empty()) return;
    loadInputs(phase, microbatch);
    for (ValueId input : piece(phase).inputs) {
      const ValuePlace& place = context_.cut.place(input);
      if (place.role == ValueRole::kProduced && place.stage != rank_) receiveUntil(place.stage, {input, microbatch});
    }
    runPiece(phase, microbatch);
    for (const Departure& departure : context_.messages.departures(rank_, phase)) {
      send(departure.receiver, bufferOf(departure.value, microbatch), microbatch);
    }
    for (ValueId output : piece(phase).outputs) accumulateOutput(output, microbatch);
    if (phase == Phase::kForward) handOnStates(microbatch);
  }

  bool updatesState(const ForwardState& state) const { return context_.cut.place(state.updated).stage == rank_; }

  // To the next microbatch, or the next step's first.
  void handOnStates(int microbatch) {
    for (const ForwardState& state : training_.forward_states) {
      if (!updatesState(state)) continue;
      add(InstructionKind::kAccumulate, microbatch, {bufferOf(state.updated, microbatch)}, {bufferOf(state.value, -1)}).overwrite = true;
    }
  }

  void loadInputs(Phase phase, int microbatch) {
    for (ValueId input : piece(phase).inputs) {
      const ValuePlace& place = context_.cut.place(input);
      if (place.role != ValueRole::kBatchInput) continue;
      const BufferId id = bufferOf(input, microbatch, phase == Phase::kPrologue);
      const bool is_cut = training_.inputs[place.index].axis >= 0;
      if (loaded_.insert(id).second) add(InstructionKind::kLoadInput, is_cut ? microbatch : 0, {}, {id});
    }
  }

  void receiveUntil(int sender, const Message& wanted) {
    const std::vector<Message>& channel = context_.messages.channel(sender, rank_);
    const auto found = std::find(channel.begin(), channel.end(), wanted);
    PIPESHARD_CHECK(found != channel.end(), "stage {} never sends '{}' to stage {}", sender, nameOf(wanted.value), rank_);
    size_t& taken = taken_[static_cast<size_t>(sender)];
    for (; taken <= static_cast<size_t>(found - channel.begin()); ++taken) {
      receive(sender, bufferOf(channel[taken].value, channel[taken].microbatch), channel[taken].microbatch);
    }
  }

  void runPiece(Phase phase, int microbatch) {
    const bool prologue = phase == Phase::kPrologue;
    std::vector<BufferId> inputs, outputs;
    for (ValueId input : piece(phase).inputs) inputs.push_back(bufferOf(input, microbatch, prologue));
    for (ValueId output : piece(phase).outputs) outputs.push_back(bufferOf(output, microbatch));
    add(InstructionKind::kRun, microbatch, std::move(inputs), std::move(outputs)).subgraph = subgraph_of_[static_cast<size_t>(phase)];
  }

  BufferId lossBuffer() { return buffer(nameOf(training_.loss), BufferKind::kAccumulator, training_.loss); }

  // Where part i of a gradient is summed over the microbatches: in the gradient itself for the first part, when the owner
  // makes it; else in a buffer of its own.
  BufferId partBuffer(size_t parameter, size_t part) {
    const ValueId gradient = training_.parameters[parameter].gradient;
    const bool is_gradient = part == 0 && partStage(parameter, part) == ownerOf(parameter);
    if (is_gradient) return bufferOf(gradient, -1);
    return buffer(fmt::format("{}{}part{}", nameOf(gradient), context_.separator, part), BufferKind::kGradient, gradient);
  }

  int partStage(size_t parameter, size_t part) const {
    return context_.cut.place(training_.parameters[parameter].gradient_parts[part]).stage;
  }

  // Sums over microbatches: the loss, and each part of each gradient.
  void accumulateOutput(ValueId output, int microbatch) {
    if (output == training_.loss) accumulate(bufferOf(output, microbatch), lossBuffer(), microbatch);
    const auto [first, last] = parts_of_.equal_range(output);
    for (auto it = first; it != last; ++it) {
      accumulate(bufferOf(output, microbatch), partBuffer(it->second.first, it->second.second), microbatch);
    }
  }

  // The parts of a gradient, each summed over all microbatches, are added in their order: the result does not depend on
  // which stage made which part.
  void joinGradients() {
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) == rank_) continue;
      for (size_t i = 0; i < training_.parameters[p].gradient_parts.size(); ++i) {
        if (partStage(p, i) == rank_) send(ownerOf(p), partBuffer(p, i), -1);
      }
    }
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) != rank_) continue;
      const BufferId gradient = bufferOf(training_.parameters[p].gradient, -1);
      for (size_t i = 0; i < training_.parameters[p].gradient_parts.size(); ++i) {
        const BufferId part = partBuffer(p, i);
        if (partStage(p, i) != rank_) receive(partStage(p, i), part, -1);
        if (part != gradient) accumulate(part, gradient, -1);
      }
    }
  }

  void runUpdate() {
    const Piece& update = piece(Phase::kUpdate);
    if (update.empty()) return;
    std::vector<BufferId> inputs, outputs;
    for (ValueId input : update.inputs) inputs.push_back(bufferOf(input, -1));
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      if (!isTrained(training_.parameters[p]) || ownerOf(p) != rank_) continue;
      outputs.push_back(bufferOf(training_.parameters[p].value, -1));
      for (const OptimizerState& state : training_.parameters[p].states) outputs.push_back(bufferOf(state.value, -1));
    }
    add(InstructionKind::kUpdate, -1, std::move(inputs), std::move(outputs)).subgraph = subgraph_of_[static_cast<size_t>(Phase::kUpdate)];
  }

  void listResults() {
    if (context_.cut.place(training_.loss).stage == rank_) program_.results.push_back({Result::Kind::kLoss, "loss", "", lossBuffer()});
    for (size_t p = 0; p < training_.parameters.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      if (ownerOf(p) != rank_) continue;
      const std::string& name = nameOf(parameter.value);
      if (isTrained(parameter)) program_.results.push_back({Result::Kind::kGradient, name, "", bufferOf(parameter.gradient, -1)});
      program_.results.push_back({Result::Kind::kParameter, name, "", bufferOf(parameter.value, -1)});
      if (!isTrained(parameter)) continue;
      for (const OptimizerState& state : parameter.states) {
        program_.results.push_back({Result::Kind::kOptimizerState, name, state.name, bufferOf(state.value, -1)});
      }
    }
  }

  void listForwardStates() {
    for (const ForwardState& state : training_.forward_states) {
      if (updatesState(state))
        program_.results.push_back({Result::Kind::kForwardState, nameOf(state.value), "", bufferOf(state.value, -1)});
    }
  }

  static std::multimap<ValueId, std::pair<size_t, size_t>> partsOf(const TrainingGraph& training) {
    std::multimap<ValueId, std::pair<size_t, size_t>> parts;
    for (size_t p = 0; p < training.parameters.size(); ++p) {
      if (!isTrained(training.parameters[p])) continue;
      for (size_t i = 0; i < training.parameters[p].gradient_parts.size(); ++i)
        parts.emplace(training.parameters[p].gradient_parts[i], std::pair{p, i});
    }
    return parts;
  }

  const EmissionContext& context_;
  const TrainingGraph& training_;
  const Graph& graph_;
  const int rank_;
  Program program_;
  std::vector<Graph> subgraphs_;
  std::array<SubgraphId, kPhaseCount> subgraph_of_;
  std::map<std::string, BufferId> buffers_;
  std::set<BufferId> loaded_;                                                              // batch inputs
  std::set<BufferId> written_;                                                             // accumulators
  std::vector<size_t> taken_;                                                              // by sender: messages received
  const std::multimap<ValueId, std::pair<size_t, size_t>> parts_of_ = partsOf(training_);  // value to parameter and part
};

}  // namespace

RankProgram emitRank(const EmissionContext& context, int rank) { return RankEmitter(context, rank).run(); }

}  // namespace pipeshard
