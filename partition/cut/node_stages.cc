#include "partition/cut/node_stages.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/weight_copies.h"

namespace pipeshard {
namespace {

void placeForward(const TrainingGraph& training, const Plan& plan, std::vector<StageId>& stages) {
  const std::vector<NodeId> forward = forwardNodes(training);
  const int64_t covered = plan.stages.empty() ? 0 : plan.layers.at(plan.stages.back().last_layer).last + 1;
  if (covered != std::ssize(forward)) {
    fail(ErrorCode::kConfiguration,
         "the plan's stages cover {} forward nodes, but the model has {}: it was made for another model; "
         "plan again",
         covered, forward.size());
  }
  for (const StageId s : plan.stages.ids()) {
    const int64_t first = plan.layers.at(plan.stages[s].first_layer).first;
    const int64_t last = plan.layers.at(plan.stages[s].last_layer).last;
    for (int64_t i = first; i <= last; ++i) stages[forward[i].index()] = s;
  }
}

// A copy of a weight is made where it is read first, wherever layers end.
void placeCopiesOfWeights(const TrainingGraph& training, const UseDef& uses, std::vector<StageId>& stages) {
  for (const NodeId node : forwardNodes(training)) {
    if (!isWeightCopy(training, node)) continue;
    StageId first_reader;  // behind all stages
    for (const NodeId reader : uses.consumers[training.graph.node(node).outputs[0].index()]) {
      if (training.node_phase[reader.index()] == Phase::kForward)
        first_reader = std::min(first_reader, stages[reader.index()]);
    }
    if (first_reader.valid()) stages[node.index()] = first_reader;
  }
}

// With the forward node, but never behind the backward nodes that it reads: gradients only travel to earlier
// stages, so that the backward passes of two stages never wait for each other.
void placeBackward(const TrainingGraph& training, const UseDef& uses, std::vector<StageId>& stages) {
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (!isBackward(training.node_phase[n])) continue;
    StageId stage = stages[training.forward_node[n].index()];
    for (ValueId input : training.graph.nodes[n].inputs) {
      if (!input.valid() || !uses.producer[input.index()].valid()) continue;
      const size_t producer = uses.producer[input.index()].index();
      if (isBackward(training.node_phase[producer])) stage = std::min(stage, stages[producer]);
    }
    stages[n] = stage;
  }
}

constexpr StageId kNowhere;  // behind all stages

void placeEarliest(const std::vector<NodeId>& nodes, StageId stage, std::vector<StageId>& stages) {
  for (NodeId node : nodes) stages[node.index()] = std::min(stages[node.index()], stage);
}

void placePrologue(const TrainingGraph& training, const UseDef& uses, std::vector<StageId>& stages) {
  for (const PrologueTotal& total : training.totals) {
    StageId first_reader = kNowhere;
    for (NodeId reader : uses.consumers[total.total.index()])
      first_reader = std::min(first_reader, stages[reader.index()]);
    placeEarliest(nodesBehind(training, uses.producer, {total.part}, Phase::kPrologue), first_reader, stages);
  }
}

}  // namespace

std::vector<LayerId> nodeLayers(const TrainingGraph& training, const Plan& plan,
                                const std::vector<StageId>& node_stages) {
  const Graph& graph = training.graph;
  const UseDef uses = computeUseDef(graph);
  std::vector<LayerId> layers(graph.nodes.size(), LayerId(0));
  const std::vector<NodeId> forward = forwardNodes(training);
  for (const LayerId layer : plan.layers.ids()) {
    for (int64_t i = plan.layers[layer].first; i <= plan.layers[layer].last; ++i)
      layers[forward.at(i).index()] = layer;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool backward = isBackward(training.node_phase[n]);
    if (!backward && training.node_phase[n] != Phase::kForward) continue;
    const StagePlan& stage = plan.stages[node_stages[n]];
    LayerId layer = std::clamp(layers[backward ? training.forward_node[n].index() : n], stage.first_layer,
                               stage.last_layer);
    for (ValueId input : graph.nodes[n].inputs) {
      const NodeId producer = input.valid() ? uses.producer[input.index()] : NodeId();
      if (!producer.valid() || node_stages[producer.index()] != node_stages[n]) continue;
      if (isBackward(training.node_phase[producer.index()]) != backward ||
          training.node_phase[producer.index()] == Phase::kPrologue)
        continue;
      layer =
          backward ? std::min(layer, layers[producer.index()]) : std::max(layer, layers[producer.index()]);
    }
    layers[n] = layer;
  }
  return layers;
}

std::vector<std::vector<StageId>> parameterReaders(const TrainingGraph& training,
                                                   const std::vector<StageId>& node_stages) {
  const UseDef uses = computeUseDef(training.graph);
  std::vector<std::vector<StageId>> readers;
  for (const Parameter& parameter : training.parameters) {
    std::vector<StageId>& stages = readers.emplace_back();
    for (NodeId reader : uses.consumers[parameter.value.index()]) {
      const Phase phase = training.node_phase[reader.index()];
      if (phase == Phase::kForward || isBackward(phase)) stages.push_back(node_stages[reader.index()]);
    }
    std::sort(stages.begin(), stages.end());
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  }
  return readers;
}

std::vector<StageId> parameterOwners(const TrainingGraph& training, const std::vector<StageId>& node_stages) {
  const std::vector<std::vector<StageId>> readers = parameterReaders(training, node_stages);
  const UseDef uses = computeUseDef(training.graph);
  std::vector<StageId> owners;
  for (size_t p = 0; p < readers.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    StageId owner = readers[p].empty() ? StageId() : readers[p].front();
    if (!owner.valid() && isTrained(parameter))
      owner = node_stages[uses.producer[parameter.gradient_parts[0].index()].index()];
    owners.push_back(owner);
  }
  return owners;
}

std::vector<StageId> nodeStages(const TrainingGraph& training, const Plan& plan) {
  const UseDef uses = computeUseDef(training.graph);
  std::vector<StageId> stages(training.graph.nodes.size(), kNowhere);
  placeForward(training, plan, stages);
  placeCopiesOfWeights(training, uses, stages);
  placeBackward(training, uses, stages);
  placePrologue(training, uses, stages);
  const std::vector<StageId> owners = parameterOwners(training, stages);
  for (size_t p = 0; p < owners.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    if (!owners[p].valid() || !parameter.updated.valid()) continue;
    placeEarliest(nodesBehind(training, uses.producer, updatedValues(parameter), Phase::kUpdate), owners[p],
                  stages);
  }
  std::replace(stages.begin(), stages.end(), kNowhere, StageId(0));
  return stages;
}

}  // namespace pipeshard
