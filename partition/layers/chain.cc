#include "partition/layers/chain.h"

#include <numeric>

#include "ir/base/error.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/spmd/operator_work.h"

namespace pipeshard {
namespace {

template <typename F>
std::vector<int64_t> firstReadParameterBytes(const Chain& chain, const F& bytes_of) {
  const TrainingGraph& training = chain.training;
  // by value: the bytes of a parameter that nobody has read yet
  std::vector<int64_t> open(training.graph.values.size());
  for (const Parameter& parameter : training.parameters) open[parameter.value.index()] = bytes_of(parameter);
  std::vector<int64_t> bytes(chain.nodes.size());
  for (size_t i = 0; i < chain.nodes.size(); ++i) {
    for (ValueId input : training.graph.node(chain.nodes[i]).inputs) {
      if (!input.valid()) continue;
      bytes[chain.counting[i]] += open[input.index()];
      open[input.index()] = 0;
    }
  }
  return bytes;
}

// By node index, of forward nodes.
std::vector<size_t> positions(const TrainingGraph& training, const std::vector<NodeId>& nodes) {
  std::vector<size_t> position(training.graph.nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) position[nodes[i].index()] = i;
  return position;
}

}  // namespace

std::vector<int64_t> nodeTimes(const Chain& chain, const CostModel& model) {
  const Graph& graph = chain.training.graph;
  const std::vector<size_t> position = positions(chain.training, chain.nodes);
  std::vector<int64_t> times(chain.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool is_forward = chain.training.node_phase[n] == Phase::kForward;
    const NodeId forward = is_forward ? NodeId(n) : chain.training.forward_node[n];
    if (!forward.valid()) continue;
    const std::optional<FactorRule> rule = factorRule(graph, NodeId(n));
    times[chain.counting[position[forward.index()]]] +=
        nodeTime(model, graph, graph.nodes[n], rule, nodeWork(graph, graph.nodes[n], rule));
  }
  return times;
}

std::vector<int64_t> nodeSizes(const Chain& chain) {
  const Graph& graph = chain.training.graph;
  std::vector<int64_t> sizes = firstReadParameterBytes(chain, [&](const Parameter& parameter) {
    int64_t bytes = graph.bytes(parameter.value) * (parameter.gradient_parts.empty() ? 1 : 2);
    for (const OptimizerState& state : parameter.states) bytes += graph.bytes(state.value);
    return bytes;
  });
  std::vector<bool> read_again(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Phase phase = chain.training.node_phase[n];
    if (!isBackward(phase)) continue;
    for (ValueId input : graph.nodes[n].inputs) {
      if (input.valid()) read_again[input.index()] = true;
    }
  }
  for (size_t i = 0; i < chain.nodes.size(); ++i) {
    for (ValueId output : graph.node(chain.nodes[i]).outputs) {
      if (output.valid() && read_again[output.index()]) sizes[chain.counting[i]] += graph.bytes(output);
    }
  }
  return sizes;
}

Chain chainOf(const TrainingGraph& training) {
  Chain chain{training, forwardNodes(training), {}, {}, {}, {}, {}, {}};
  if (chain.nodes.empty())
    fail(ErrorCode::kConfiguration, "the model has no forward nodes; there is nothing to partition");
  chain.flops = forwardFlops(training, chain.nodes);
  chain.cut_bytes = cutBytes(training, chain.nodes);
  chain.counting = countingPositions(training, chain.nodes);
  chain.beside_statistics = endsBesideStatistics(training, chain.nodes);
  chain.parameter_bytes = firstReadParameterBytes(
      chain, [&](const Parameter& parameter) { return training.graph.bytes(parameter.value); });
  const std::vector<size_t> position = positions(training, chain.nodes);
  chain.backward_flops.resize(chain.nodes.size());
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const NodeId forward = training.forward_node[n];
    if (forward.valid())
      chain.backward_flops[position[forward.index()]] += nodeFlops(training.graph, NodeId(n));
  }
  return chain;
}

std::vector<bool> stageEnds(const Chain& chain) {
  std::vector<bool> ends = possibleEnds(chain.counting);
  for (size_t i = 0; i < ends.size(); ++i) ends[i] = ends[i] && chain.beside_statistics[i];
  return ends;
}

LayerEnds layersOf(const Chain& chain, int layers) {
  return formLayers(chain.flops, chain.cut_bytes, layers, chain.beside_statistics);
}

int64_t sumOver(const std::vector<int64_t>& amounts, int64_t first, int64_t last) {
  return std::accumulate(amounts.begin() + first, amounts.begin() + last + 1, int64_t{0});
}

IdVector<LayerId, int64_t> sumsByLayer(const std::vector<int64_t>& amounts, const LayerEnds& ends) {
  IdVector<LayerId, int64_t> sums;
  int64_t first = 0;
  for (int64_t last : ends) {
    sums.push_back(sumOver(amounts, first, last));
    first = last + 1;
  }
  return sums;
}

}  // namespace pipeshard
