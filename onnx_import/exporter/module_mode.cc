#include "onnx_import/exporter/module_mode.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/converter_traps.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

void requireMode(const Node& node, int version) {
  if (node.opset_version >= version) return;
  fail(ErrorCode::kBadModel,
       "{}: its opset, {}, has no training mode (--mode training); export the model with opset_version={} or "
       "more",
       describeNode(node), node.opset_version, version);
}

bool isTrueConstant(const Constant* constant) {
  return constant != nullptr && !constant->bytes.empty() && constant->bytes[0] != std::byte{0};
}

bool isTrue(const Graph& graph, ValueId value) { return isTrueConstant(graph.constant(value)); }

// The node that writes a value, or nullptr.
const Node* writerOf(const Graph& graph, const std::vector<NodeId>& producer, ValueId value) {
  const NodeId id = producer[value.index()];
  return id.valid() ? &graph.node(id) : nullptr;
}

// Inputs of a BatchNormalization: its mean and, behind it, its variance; the updated ones are its outputs 1
// and 2.
constexpr size_t kRunningMean = 3;

// PyTorch's momentum of None (an average over all batches) is 0 in the call, and 1 in ONNX; InstanceNorm
// reads what is computed of its statistics. An Identity computes nothing: with one the TorchScript exporter
// merges statistics that are equal.
bool movesStatistics(const Graph& graph, const std::vector<NodeId>& producer, const Node& normalization) {
  ValueId mean = normalization.inputs.at(kRunningMean);
  const Node* writer = writerOf(graph, producer, mean);
  while (writer != nullptr && writer->is("Identity")) {
    mean = writer->inputs.at(0);
    writer = writerOf(graph, producer, mean);
  }
  return normalization.floatAttribute("momentum", 0.9f) != 1 && graph.initializers.contains(mean);
}

// Is a statistic the module's, or computed of one that is?
bool isOfModule(const Graph& graph, const std::vector<NodeId>& producer, ValueId statistic) {
  for (const Node* writer = writerOf(graph, producer, statistic); writer != nullptr;
       writer = writerOf(graph, producer, statistic)) {
    if (normalizesByBatch(*writer) || writer->inputs.empty() || !writer->inputs[0].valid()) return false;
    statistic = writer->inputs[0];
  }
  const Value& value = graph.value(statistic);
  return graph.initializers.contains(statistic) &&
         (exportedKind(value) == "BUFFER" || namesBuffer(value.name));
}

// A folded normalisation has no statistics left: training mode would leave it as it is.
void requireNormalizations(const Graph& graph) {
  constexpr size_t kMost = 4;
  const std::vector<std::string> folded = foldedNormalizations(graph);
  if (folded.empty()) return;
  fail(ErrorCode::kConfiguration,
       "--mode training: tf2onnx has folded the batch normalisations of this file into {}, so that they "
       "cannot follow batches; expected BatchNormalization operators; leave --mode out to train what the "
       "file has",
       listed(folded, kMost));
}

// Which input of a dropout says its mode; 0: the node is no dropout that has one.
size_t modeInput(const Node& node) {
  if (node.is("Dropout") && node.opset_version >= 12) return 2;
  return node.domain == "com.microsoft" && node.op_type == "BiasDropout" ? 4 : 0;
}

// Before opset 7 a dropout that is not said to be a test drops.
bool isOldDropout(const Node& node) {
  return node.is("Dropout") && node.opset_version < 7 && node.intAttribute("is_test", 0) == 0;
}

// As the file has it: the mode may be what a Constant node holds.
bool dropsAtRandom(const Graph& graph, const std::vector<NodeId>& producer, const Node& node) {
  if (isOldDropout(node)) return true;
  const size_t mode = modeInput(node);
  if (mode == 0 || node.inputs.size() <= mode || !node.inputs[mode].valid()) return false;
  if (isTrue(graph, node.inputs[mode])) return true;
  const Node* writer = writerOf(graph, producer, node.inputs[mode]);
  if (writer == nullptr || !writer->is("Constant")) return false;
  const auto content = writer->attributes.find("value");
  return content != writer->attributes.end() && isTrueConstant(std::get_if<Constant>(&content->second));
}

// Nodes of the main graph alone.
TrainingModes modesOutside(const Graph& graph) {
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  TrainingModes modes;
  for (const Node& node : graph.nodes) {
    modes.normalizations += normalizesByBatch(node) ? 1 : 0;
    modes.dropouts += dropsAtRandom(graph, producer, node) ? 1 : 0;
  }
  return modes;
}

// Adds those of a body, and of what is inside it.
void addModes(const Graph& body, TrainingModes& modes);

// Of functions, branches and loops.
TrainingModes modesInside(const Graph& graph) {
  TrainingModes modes;
  for (const Function& function : graph.functions) addModes(*function.body, modes);
  for (const Node& node : graph.nodes) {
    for (const auto& [name, attribute] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) addModes(**body, modes);
    }
  }
  return modes;
}

void addModes(const Graph& body, TrainingModes& modes) {
  for (const TrainingModes& more : {modesOutside(body), modesInside(body)}) {
    modes.normalizations += more.normalizations;
    modes.dropouts += more.dropouts;
  }
}

// What an inference would need of a node that is in training mode, and has not.
void requireInferenceForm(const Graph& graph, const UseDef& uses) {
  const TrainingModes inside = modesInside(graph);
  if (inside.any()) {
    fail(ErrorCode::kConfiguration,
         "functions, branches or loops of the file have {} in training mode, which cannot be changed there; "
         "export the module again in evaluation mode",
         trainingModesToString(inside));
  }
  for (const Node& node : graph.nodes) {
    if (!dropsAtRandom(graph, uses.producer, node) || node.outputs.size() < 2 || !node.outputs[1].valid())
      continue;
    if (uses.consumers[node.outputs[1].index()].empty()) continue;
    fail(ErrorCode::kConfiguration,
         "{} has no inference mode in this file: {} reads what it drops (a backward pass); export the module "
         "again in evaluation mode",
         describeNode(node), describeNode(graph.node(uses.consumers[node.outputs[1].index()].front())));
  }
}

// Constants that nothing reads any more.
void removeUnread(Graph& graph, std::set<ValueId> constants) {
  std::vector<std::string> captured;
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) constants.erase(input);
    collectCaptures(node, captured);
  }
  for (const ValueId output : graph.outputs) constants.erase(output);
  std::erase_if(constants, [&](ValueId id) {
    return std::find(captured.begin(), captured.end(), graph.value(id).name) != captured.end();
  });
  for (const ValueId id : constants) graph.initializers.erase(id);
  std::erase_if(graph.nodes, [&](const Node& node) {
    return node.is("Constant") && constants.contains(node.outputs.at(0));
  });
}

}  // namespace

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, ...)
bool losesTraining(const Node& node) {
  constexpr size_t kTraining = 5;
  if (!node.is("BatchNormalization") || normalizesByBatch(node)) return false;
  const ExportedCall call = exportedCall(node);
  if (!isCallOf(call, "batch_norm")) return false;
  const std::vector<std::string> arguments = argumentTexts(call);
  return arguments.size() > kTraining && arguments[kTraining] == "True";
}

ChangedModes setTrainingMode(Graph& graph) {
  ChangedModes changed;
  GraphBuilder builder(graph);
  ValueId yes;
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  const bool tells = std::any_of(graph.nodes.begin(), graph.nodes.end(), losesTraining);
  for (Node& node : graph.nodes) {
    const bool is_idle = node.is("BatchNormalization") && !normalizesByBatch(node);
    if (is_idle && tells && !losesTraining(node)) {
      ++changed.in_evaluation;
    } else if (is_idle) {
      requireMode(node, 14);
      node.attributes["training_mode"] = int64_t{1};
      node.outputs.resize(3);
      for (const size_t statistic : {size_t{1}, size_t{2}}) {  // behind the scale and bias, mean and variance
        const Value state = graph.value(node.inputs.at(kRunningMean + statistic - 1));
        node.outputs[statistic] =
            builder.addValue(state.name + ".updated", state.data_type, state.shape.value_or(Shape{}));
        graph.value(node.outputs[statistic]).shape = state.shape;
      }
      ++changed.normalizations;
      if (!movesStatistics(graph, producer, node)) ++changed.standing;
    }
    if (!node.is("Dropout")) continue;
    const bool has_mode = node.inputs.size() > 2 && node.inputs[2].valid();
    if (has_mode && (graph.constant(node.inputs[2]) == nullptr || isTrue(graph, node.inputs[2]))) continue;
    requireMode(node, 12);
    if (!yes.valid())
      yes = builder.addConstant("training_mode", Constant{DataType::kBool, {}, {std::byte{1}}});
    node.inputs.resize(3);
    node.inputs[2] = yes;
    ++changed.dropouts;
  }
  if (changed.normalizations == 0) requireNormalizations(graph);
  return changed;
}

int standingNormalizations(const Graph& graph) {
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  const auto stands = [&](const Node& node) {
    if (!normalizesByBatch(node) || node.inputs.size() <= kRunningMean) return false;
    const ValueId mean = node.inputs[kRunningMean];
    return mean.valid() && isOfModule(graph, producer, mean) && !movesStatistics(graph, producer, node);
  };
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), stands));
}

TrainingModes trainingModes(const Graph& graph) {
  TrainingModes modes;
  addModes(graph, modes);
  for (const ValueId input : graph.inputs) {
    const std::optional<RandomNumbers>& drawn = graph.value(input).drawn;
    if (drawn && drawn->kind == RandomNumbers::Kind::kTrue && drawn->probability < 1) ++modes.dropouts;
  }
  return modes;
}

std::string trainingModesToString(const TrainingModes& modes) {
  const std::string normalizations = counted(modes.normalizations, "batch normalization");
  const std::string dropouts = counted(modes.dropouts, "dropout");
  if (modes.dropouts == 0) return normalizations;
  return modes.normalizations == 0 ? dropouts : normalizations + " and " + dropouts;
}

void dropUpdatedStatistics(Graph& graph) {
  std::map<ValueId, ValueId> kept;
  const auto of = [&](ValueId value) {
    const auto found = kept.find(value);
    return found == kept.end() ? value : found->second;
  };
  for (Node& node : graph.nodes) {
    const bool hands_on = node.is("Identity") && kept.contains(node.inputs.at(0));
    for (ValueId& input : node.inputs) input = of(input);
    if (hands_on) kept[node.outputs.at(0)] = node.inputs[0];
    if (!normalizesByBatch(node)) continue;
    for (size_t o = 1; o < node.outputs.size() && o <= 2; ++o) {
      if (node.outputs[o].valid()) kept[node.outputs[o]] = node.inputs.at(kRunningMean + o - 1);
    }
    node.attributes.erase("training_mode");
    node.outputs.resize(1);
  }
  std::vector<std::string> captured;
  for (const Node& node : graph.nodes) collectCaptures(node, captured);
  for (const auto& [updated, statistic] : kept) {
    const std::string& name = graph.value(updated).name;
    if (std::find(captured.begin(), captured.end(), name) == captured.end()) continue;
    fail(ErrorCode::kConfiguration,
         "a branch or loop of the file reads '{}', a running statistic as updated by a step; export the "
         "module again in evaluation mode",
         name);
  }
  std::erase_if(graph.nodes,
                [&](const Node& node) { return node.is("Identity") && kept.contains(node.outputs.at(0)); });
  std::erase_if(graph.outputs, [&](ValueId output) { return kept.contains(output); });
}

TrainingModes setInferenceMode(Graph& graph) {
  const UseDef uses = computeUseDef(graph);
  requireInferenceForm(graph, uses);
  const TrainingModes changed = modesOutside(graph);
  std::set<ValueId> modes;
  for (Node& node : graph.nodes) {
    if (!dropsAtRandom(graph, uses.producer, node)) continue;
    if (isOldDropout(node)) {
      node.attributes["is_test"] = int64_t{1};
    } else {
      modes.insert(node.inputs[modeInput(node)]);
      node.inputs.resize(modeInput(node));
    }
  }
  dropUpdatedStatistics(graph);
  removeUnread(graph, std::move(modes));
  return changed;
}

}  // namespace pipeshard
