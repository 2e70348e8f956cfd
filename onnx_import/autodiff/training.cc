#include "onnx_import/autodiff/training.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/backward.h"
#include "onnx_import/autodiff/forward_states.h"
#include "onnx_import/autodiff/gradient_rules.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"

namespace pipeshard {
namespace {

std::vector<ValueId> resultsOf(const ForwardGraph& forward) {
  std::vector<ValueId> results;
  if (forward.loss.valid()) results.push_back(forward.loss);
  for (const ModelOutput& output : forward.outputs) results.push_back(output.value);
  return results;
}

void keepWhatIsWanted(ForwardGraph& forward) {
  Graph& graph = forward.graph;
  graph.outputs = resultsOf(forward);
  for (const PrologueTotal& total : forward.totals) graph.outputs.push_back(total.part);
  std::vector<ValueId> keep;
  for (const PrologueTotal& total : forward.totals) keep.push_back(total.total);
  for (const BatchInput& input : forward.inputs) keep.push_back(input.value);
  const std::vector<ValueId> new_id = removeDeadCode(graph, keep);
  if (forward.loss.valid()) forward.loss = new_id[forward.loss.index()];
  for (ModelOutput& output : forward.outputs) output.value = new_id[output.value.index()];
  for (PrologueTotal& total : forward.totals)
    total = {new_id[total.part.index()], new_id[total.total.index()]};
  for (BatchInput& input : forward.inputs) input.value = new_id[input.value.index()];
}

// Puts the prologue's nodes first. Returns how many there are.
size_t movePrologueFirst(ForwardGraph& forward) {
  Graph& graph = forward.graph;
  std::vector<ValueId> parts;
  for (const PrologueTotal& total : forward.totals) parts.push_back(total.part);
  const std::vector<bool> in_prologue = ancestorsOf(graph, parts);
  const std::vector<bool> in_forward = ancestorsOf(graph, resultsOf(forward));
  std::vector<Node> prologue;
  std::vector<Node> rest;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    PIPESHARD_CHECK(!in_prologue[n] || !in_forward[n], "{} is of the prologue and of the forward pass",
                    describeNode(graph.nodes[n]));
    (in_prologue[n] ? prologue : rest).push_back(std::move(graph.nodes[n]));
  }
  const size_t count = prologue.size();
  graph.nodes = std::move(prologue);
  graph.nodes.insert(graph.nodes.end(), std::make_move_iterator(rest.begin()),
                     std::make_move_iterator(rest.end()));
  return count;
}

// An exporter may mark running statistics as parameters. The forward pass replaces them; no gradient does.
std::vector<ValueId> learnedParameters(const TrainingGraph& training) {
  std::vector<ValueId> parameters = trainableParameters(training.graph);
  for (const ForwardState& state : training.forward_states) std::erase(parameters, state.value);
  return parameters;
}

ValueId addLossScale(BackwardBuilder& builder, ValueId loss) {
  const ValueId scale = builder.values().addValue("loss_scale", builder.graph().dataType(loss), {});
  builder.graph().inputs.push_back(scale);
  return scale;
}

void requireOpset(const Graph& graph) {
  const auto opset = graph.opset_imports.find("");
  const int version = opset == graph.opset_imports.end() ? 0 : opset->second;
  if (version >= 16) return;
  fail(ErrorCode::kBadModel,
       "the model uses opset {} of the standard operators, gradients need 16 or later; convert it "
       "(onnx.version_converter) or export it again with a newer opset",
       version);
}

// Of an axis of size 0, in the file or as a size makes it. (An empty cache that is joined to something is
// read by no product.)
[[noreturn]] void failEmpty(const std::string& what, const Graph& graph, ValueId value) {
  fail(ErrorCode::kBadModel,
       "{} '{}' {} has no elements: nothing can be computed or trained with it; export the model with sizes "
       "of "
       "1 at least, or with a name for that axis (dynamic_shapes), whose size --dim says",
       what, graph.value(value).name, shapeToString(graph.shape(value)));
}

void requireElements(const Graph& graph, const std::vector<ValueId>& parameters) {
  for (const ValueId parameter : parameters) {
    if (elementCount(graph.shape(parameter)) == 0) failEmpty("the parameter", graph, parameter);
  }
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    if (!facts.multiplies_matrices && facts.work != WorkClass::kConvolution) continue;
    for (const ValueId input : node.inputs) {
      if (input.valid() && elementCount(graph.shape(input)) == 0)
        failEmpty(describeNode(node) + ": its input", graph, input);
    }
  }
}

}  // namespace

void requireTrainableTypes(const Graph& graph) {
  for (ValueId parameter : trainableParameters(graph)) {
    const DataType type = graph.dataType(parameter);
    if (type == DataType::kFloat32 || type == DataType::kFloat64) continue;
    fail(ErrorCode::kBadModel,
         "parameter '{}' is {}, but training needs float32 or float64; export the model in float32",
         graph.value(parameter).name, dataTypeName(type));
  }
}

bool hasGradientRule(std::string_view domain, std::string_view op_type) {
  return gradientRules().contains({std::string(domain), std::string(op_type)});
}

TrainingGraph buildTrainingGraph(ForwardGraph forward, const OptimizerSpec& optimizer,
                                 const std::vector<ParameterGroup>& groups, const UpdateExtras& extras) {
  requireOpset(forward.graph);
  const bool trains = optimizer.kind != OptimizerSpec::Kind::kNone;
  if (trains) readStatisticsAtOnce(forward.graph);  // what lay between is dead
  keepWhatIsWanted(forward);
  const size_t prologue_nodes = movePrologueFirst(forward);
  TrainingGraph training;
  training.graph = std::move(forward.graph);
  training.inputs = std::move(forward.inputs);
  training.totals = std::move(forward.totals);
  training.loss = forward.loss;
  training.outputs = std::move(forward.outputs);
  training.microbatches = forward.microbatches;
  Graph& graph = training.graph;
  PIPESHARD_CHECK(!trains || (training.loss.valid() && training.outputs.empty()),
                  "training needs a loss, and gives no outputs");
  if (trains) training.forward_states = findForwardStates(graph, prologue_nodes);
  const size_t first_backward = graph.nodes.size();

  const std::vector<ValueId> parameters = learnedParameters(training);
  if (trains) requireTrainableTypes(graph);
  requireElements(graph, parameters);
  BackwardBuilder builder(graph);
  if (trains && extras.loss_scaling.first > 0) training.loss_scale = addLossScale(builder, training.loss);
  const Gradients gradients = trains ? appendBackward(builder, training.loss, parameters, training.loss_scale)
                                     : Gradients{std::vector<std::vector<ValueId>>(parameters.size()), {}};
  training.node_phase.assign(graph.nodes.size(), Phase::kForward);
  std::fill_n(training.node_phase.begin(), prologue_nodes, Phase::kPrologue);
  splitBackwardPhases(graph, builder.forwardNodes(), gradients.activation_gradients, training.node_phase);
  PIPESHARD_CHECK(!trains || first_backward < graph.nodes.size(), "no backward nodes");

  graph.outputs = forwardResults(training);
  for (const PrologueTotal& total : training.totals) graph.outputs.push_back(total.part);
  for (const ForwardState& state : training.forward_states) graph.outputs.push_back(state.updated);
  for (size_t p = 0; p < parameters.size(); ++p) {
    Parameter& parameter = training.parameters.emplace_back();
    parameter.value = parameters[p];
    parameter.gradient_parts = gradients.parameter_parts[p];
    graph.outputs.insert(graph.outputs.end(), parameter.gradient_parts.begin(),
                         parameter.gradient_parts.end());
  }
  if (trains) appendUpdates(builder, optimizer, groups, extras, training);
  training.node_phase.resize(graph.nodes.size(), Phase::kUpdate);
  training.forward_node = builder.forwardNodes();
  verifyTrainingGraph(training);
  return training;
}

}  // namespace pipeshard
