#include "partition/chain.h"

#include <numeric>

#include "ir/error.h"
#include "partition/layers.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

std::vector<int64_t> firstReadParameterBytes(const TrainingGraph& training, const std::vector<NodeId>& nodes) {
  std::vector<int64_t> open(training.graph.values.size());  // by value: the bytes of a parameter that nobody has read yet
  for (const Parameter& parameter : training.parameters) open[parameter.value.index()] = training.graph.bytes(parameter.value);
  std::vector<int64_t> bytes(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (ValueId input : training.graph.node(nodes[i]).inputs) {
      if (!input.valid()) continue;
      bytes[i] += open[input.index()];
      open[input.index()] = 0;
    }
  }
  return bytes;
}

}  // namespace

Chain chainOf(const TrainingGraph& training) {
  Chain chain{training, forwardNodes(training), {}, {}, {}, {}};
  if (chain.nodes.empty()) fail(ErrorCode::kConfiguration, "the model has no forward nodes; there is nothing to partition");
  chain.flops = forwardFlops(training, chain.nodes);
  chain.cut_bytes = cutBytes(training, chain.nodes);
  chain.parameter_bytes = firstReadParameterBytes(training, chain.nodes);
  std::vector<size_t> position(training.graph.nodes.size());
  for (size_t i = 0; i < chain.nodes.size(); ++i) position[chain.nodes[i].index()] = i;
  chain.backward_flops.resize(chain.nodes.size());
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const NodeId forward = training.forward_node[n];
    if (forward.valid()) chain.backward_flops[position[forward.index()]] += nodeFlops(training.graph, NodeId(n));
  }
  return chain;
}

int64_t sumOver(const std::vector<int64_t>& amounts, int64_t first, int64_t last) {
  return std::accumulate(amounts.begin() + first, amounts.begin() + last + 1, int64_t{0});
}

std::vector<int64_t> sumsByLayer(const std::vector<int64_t>& amounts, const std::vector<int64_t>& ends) {
  std::vector<int64_t> sums;
  int64_t first = 0;
  for (int64_t last : ends) {
    sums.push_back(sumOver(amounts, first, last));
    first = last + 1;
  }
  return sums;
}

}  // namespace pipeshard
