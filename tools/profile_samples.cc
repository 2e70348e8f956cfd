#include "tools/profile_samples.h"

#include <algorithm>

#include "ir/error.h"
#include "runtime/subgraph.h"
#include "sharding/operator_work.h"

namespace pipeshard {
namespace {

// The node alone; its inputs are the graph's, but for constants.
OperatorSample sampleOf(const Graph& graph, NodeId id, const std::map<ValueId, ValueId>& in_place) {
  const Node& node = graph.node(id);
  std::vector<ValueId> inputs, outputs;
  for (const ValueId input : node.inputs) {
    const bool listed = std::find(inputs.begin(), inputs.end(), input) != inputs.end();
    if (input.valid() && graph.constant(input) == nullptr && !listed) inputs.push_back(input);
  }
  OperatorSample sample;
  for (const ValueId output : node.outputs) {
    if (!output.valid()) continue;
    outputs.push_back(output);
    const auto shared = in_place.find(output);
    const auto input = shared == in_place.end() ? inputs.end() : std::find(inputs.begin(), inputs.end(), shared->second);
    sample.in_place.push_back(input == inputs.end() ? -1 : static_cast<int>(input - inputs.begin()));
  }
  sample.graph = extractSubgraph(graph, "sample", {id}, inputs, outputs);
  return sample;
}

}  // namespace

void ProfileSamples::add(const Graph& graph, const std::map<ValueId, ValueId>& in_place) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (collectiveKind(node) || isPlacing(node)) continue;
    const auto rule = factorRule(graph, node);
    if (rule && rule->flops == 0) continue;
    const OperatorWork work = operatorWork(graph, node, rule, nodeWork(graph, node, rule));
    if (!known_.emplace(work, works_.size()).second) continue;
    works_.push_back(work);
    samples_.push_back(sampleOf(graph, NodeId(n), in_place));
  }
}

void ProfileSamples::add(const Program& program, const std::vector<Graph>& subgraphs) {
  for (size_t s = 0; s < subgraphs.size(); ++s) {
    const Graph graph = runnableGraph(subgraphs[s], cpuKernels());
    std::map<ValueId, ValueId> in_place;
    const auto runs = [&](const Instruction& instruction) { return instruction.subgraph.valid() && instruction.subgraph.index() == s; };
    const auto found = std::find_if(program.instructions.begin(), program.instructions.end(), runs);
    if (found == program.instructions.end()) continue;
    for (size_t o = 0; o < found->outputs.size(); ++o) {
      const auto input = std::find(found->inputs.begin(), found->inputs.end(), found->outputs[o]);
      if (input != found->inputs.end()) in_place[graph.outputs[o]] = graph.inputs[static_cast<size_t>(input - found->inputs.begin())];
    }
    add(graph, in_place);
  }
}

std::vector<ProfilePoint> ProfileSamples::points(const std::vector<OperatorTime>& times) const {
  PIPESHARD_CHECK(times.size() == works_.size(), "{} times of {} samples", times.size(), works_.size());
  std::vector<ProfilePoint> points;
  for (size_t i = 0; i < times.size(); ++i) points.push_back({works_[i], times[i].ns, times[i].busy_ns});
  return points;
}

}  // namespace pipeshard
