#include "planning/programs/imported_gradients.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/weight_files.h"
#include "ir/program/program_verify.h"
#include "onnx_import/prepare/prepare.h"
#include "planning/model/operator_support.h"

namespace pipeshard {
namespace {

std::string whyNotCompared(const Graph& graph, const TrainingGraph& training, const Program& reference) {
  if (!training.forward_states.empty())
    return "the model normalises over microbatches, the file over the whole batch";
  if (reference.updates_per_step > 1) return "the schedule makes several updates of a batch";
  for (const Node& node : graph.nodes) {
    if (!canRun(node)) return fmt::format("{} has no CPU kernel", describeNode(node));
  }
  for (ValueId input : graph.inputs) {
    const std::string& name = graph.value(input).name;
    const auto is_it = [&](const ProgramInput& listed) {
      return listed.name == name && listed.shape == graph.shape(input);
    };
    if (std::none_of(reference.inputs.begin(), reference.inputs.end(), is_it))
      return fmt::format("only the backward pass reads the input '{}'", name);
  }
  return "";
}

class GradientProgram {
 public:
  GradientProgram(const ForwardModel& model, const Graph& graph, const Program& reference)
      : model_(model), graph_(graph) {
    program_.inputs = reference.inputs;
  }

  RankProgram make() {
    std::vector<ValueId> inputs;
    std::vector<BufferId> read, loaded, written;
    for (ValueId input : graph_.inputs) {
      inputs.push_back(input);
      loaded.push_back(add(input, BufferKind::kInput, graph_.value(input).name));
      Instruction& load = instruction(InstructionKind::kLoadInput);
      load.outputs = {loaded.back()};
    }
    read = loaded;
    for (const auto& [id, initializer] : graph_.initializers) {
      if (std::holds_alternative<Constant>(initializer)) continue;
      inputs.push_back(id);
      read.push_back(addWeight(id));
    }
    std::vector<ValueId> outputs;
    for (const ImportedGradient& gradient : model_.imported->backward.gradients) {
      outputs.push_back(findValue(graph_, gradient.output));
      written.push_back(add(outputs.back(), BufferKind::kGradient, gradient.parameter));
      program_.results.push_back({Result::Kind::kGradient, gradient.parameter, "", written.back()});
    }
    outputs.push_back(findValue(graph_, model_.imported->loss));
    written.push_back(add(outputs.back(), BufferKind::kAccumulator, "loss"));
    program_.results.push_back({Result::Kind::kLoss, "loss", "", written.back()});
    return finish(inputs, outputs, std::move(read), std::move(written), loaded);
  }

 private:
  RankProgram finish(const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
                     std::vector<BufferId> read, std::vector<BufferId> written,
                     const std::vector<BufferId>& loaded) {
    std::vector<NodeId> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) nodes.emplace_back(n);
    Subgraph subgraph{.name = "gradients",
                      .file = "gradients.onnx",
                      .phase = Phase::kBackwardInput,
                      .inputs = {},
                      .outputs = {}};
    for (ValueId id : inputs) subgraph.inputs.push_back(graph_.value(id).name);
    for (ValueId id : outputs) subgraph.outputs.push_back(graph_.value(id).name);
    program_.subgraphs.push_back(std::move(subgraph));
    Instruction& run = instruction(InstructionKind::kRun);
    run.subgraph = SubgraphId(0);
    run.inputs = std::move(read);
    run.outputs = std::move(written);
    for (BufferId id : loaded) instruction(InstructionKind::kFree).inputs = {id};
    verifyPrograms({program_});
    return {program_, {extractSubgraph(graph_, "gradients", nodes, inputs, outputs)}};
  }

  BufferId add(ValueId id, BufferKind kind, const std::string& value) {
    Buffer& made = program_.buffers.emplace_back();
    made.name = graph_.value(id).name;
    made.kind = kind;
    made.data_type = graph_.dataType(id);
    made.shape = graph_.shape(id);
    made.value = value;
    return BufferId(program_.buffers.size() - 1);
  }

  BufferId addWeight(ValueId id) {
    const BufferId made = add(id, BufferKind::kWeight, graph_.value(id).name);
    Buffer& buffer = program_.buffers[made.index()];
    buffer.source = absoluteSource(graph_, id);
    const auto original = model_.source_types.find(buffer.value);
    buffer.source_type = original != model_.source_types.end() ? original->second : buffer.data_type;
    return made;
  }

  Instruction& instruction(InstructionKind kind) {
    Instruction& made = program_.instructions.emplace_back();
    made.kind = kind;
    made.stage = StageId(0);
    made.microbatch = 0;
    return made;
  }

  const ForwardModel& model_;
  const Graph& graph_;
  Program program_;
};

}  // namespace

std::optional<RankProgram> importedGradients(const ForwardModel& model, const TrainingGraph& training,
                                             const Program& reference, std::vector<std::string>& notes) {
  if (!model.imported) return std::nullopt;
  const ImportedBackward& backward = model.imported->backward;
  PrepareOptions options;
  options.dimensions = model.dimensions;
  options.supported = canRun;
  Graph graph;
  std::string reason;
  try {
    graph = prepareModel(model.imported->graph, options);
    reason = whyNotCompared(graph, training, reference);
    if (reason.empty() && !model.shorter_lengths.empty())
      reason = "they are of one length of sequences, and the plan has several";
    if (model.fixed_batch > 0 && model.microbatches > 1)
      reason = "they are of one batch of a fixed size, and a step has several";
  } catch (const Error& error) {
    reason = error.message();
  }
  notes.push_back(fmt::format(
      "the model has a backward pass of its own ({} operators, {} gradients): it is made anew from the loss; "
      "{}",
      backward.operators, backward.gradients.size(),
      reason.empty() ? "validate compares the gradients" : "the gradients are not compared: " + reason));
  if (!reason.empty()) return std::nullopt;
  return GradientProgram(model, graph, reference).make();
}

}  // namespace pipeshard
