#include "partition/cut/pass_phases.h"

namespace pipeshard {
namespace {

// From the end, so that a weight node that only a hastened one reads is hastened, too.
void hasten(const TrainingGraph& training, const UseDef& uses, const std::vector<StageId>& stages,
            std::vector<Phase>& phases) {
  const std::vector<Node>& nodes = training.graph.nodes;
  for (size_t n = nodes.size(); n-- > 0;) {
    if (phases[n] != Phase::kBackwardWeight) continue;
    for (ValueId output : nodes[n].outputs) {
      if (!output.valid()) continue;
      for (NodeId reader : uses.consumers[output.index()]) {
        const bool backward = isPass(training.node_phase[reader.index()]);
        if (backward &&
            (stages[reader.index()] != stages[n] || phases[reader.index()] == Phase::kBackwardInput))
          phases[n] = Phase::kBackwardInput;
      }
    }
  }
}

void joinHalves(const TrainingGraph& training, const UseDef& uses, const std::vector<StageId>& stages,
                const std::vector<bool>& live, IdVector<StageId, bool> in_halves,
                std::vector<Phase>& phases) {
  const std::vector<Node>& nodes = training.graph.nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!isBackward(phases[n]) || !live[n]) continue;
    for (ValueId input : nodes[n].inputs) {
      const NodeId maker = input.valid() ? uses.producer[input.index()] : NodeId();
      if (maker.valid() && isBackward(phases[maker.index()]) && stages[maker.index()] != stages[n])
        in_halves[stages[maker.index()]] = true;  // another stage waits for a gradient
    }
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (isBackward(phases[n]) && !in_halves[stages[n]]) phases[n] = Phase::kBackward;
  }
}

}  // namespace

std::vector<bool> liveNodes(const TrainingGraph& training, const UseDef& uses) {
  std::vector<ValueId> open = forwardResults(training);
  for (const ForwardState& state : training.forward_states) open.push_back(state.updated);
  for (const Parameter& parameter : training.parameters) {
    if (isTrained(parameter))
      open.insert(open.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  }
  std::vector<bool> live(training.graph.nodes.size());
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    const NodeId node = value.valid() ? uses.producer[value.index()] : NodeId();
    if (!node.valid() || live[node.index()]) continue;
    live[node.index()] = true;
    const std::vector<ValueId>& inputs = training.graph.node(node).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return live;
}

std::vector<Phase> passPhases(const TrainingGraph& training, const UseDef& uses,
                              const std::vector<StageId>& stages, const std::vector<bool>& live,
                              const IdVector<StageId, bool>& split) {
  std::vector<Phase> phases = training.node_phase;
  hasten(training, uses, stages, phases);
  joinHalves(training, uses, stages, live, split, phases);
  return phases;
}

}  // namespace pipeshard
