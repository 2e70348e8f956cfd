#include "partition/partition.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/ranges.h>

#include "ir/error.h"
#include "partition/layers.h"
#include "partition/node_stages.h"
#include "partition/schedule.h"
#include "partition/stages.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// The forward nodes of a training graph with what the choices below need to know of them.
struct Chain {
  const TrainingGraph& training;
  std::vector<NodeId> nodes;
  std::vector<int64_t> flops;           // forward
  std::vector<int64_t> backward_flops;  // of the backward nodes that differentiate it
  std::vector<int64_t> cut_bytes;
};

Chain chainOf(const TrainingGraph& training) {
  Chain chain{training, forwardNodes(training), {}, {}, {}};
  if (chain.nodes.empty()) fail(ErrorCode::kConfiguration, "the model has no forward nodes; there is nothing to partition");
  chain.flops = forwardFlops(training, chain.nodes);
  chain.cut_bytes = cutBytes(training, chain.nodes);
  std::vector<size_t> position(training.graph.nodes.size());
  for (size_t i = 0; i < chain.nodes.size(); ++i) position[chain.nodes[i].index()] = i;
  chain.backward_flops.resize(chain.nodes.size());
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const NodeId forward = training.forward_node[n];
    if (forward.valid()) chain.backward_flops[position[forward.index()]] += nodeFlops(training.graph, NodeId(n));
  }
  return chain;
}

// How many stages the option asks for.
int stageCount(const PartitionOptions& options, const Chain& chain) {
  const int devices = options.cluster.deviceCount();
  const auto nodes = static_cast<int64_t>(chain.nodes.size());
  if (options.stages == "auto") {
    const int64_t most = options.layers > 0 ? std::min<int64_t>(options.layers, nodes) : nodes;
    return static_cast<int>(std::min<int64_t>(devices, most));
  }
  constexpr std::string_view kUniform = "uniform:";
  int stages = 0;
  if (options.stages.starts_with(kUniform)) {
    const char* end = options.stages.data() + options.stages.size();
    const auto [parsed, error] = std::from_chars(options.stages.data() + kUniform.size(), end, stages);
    if (error != std::errc() || parsed != end) stages = 0;
  }
  if (stages < 1) {
    fail(ErrorCode::kUsage, "--stages \"{}\" is not understood; write auto (one stage per device) or uniform:K (K stages of equal FLOPs)",
         options.stages);
  }
  if (stages > devices) {
    fail(ErrorCode::kConfiguration, "{} stages need {} devices, the cluster has {}; ask for fewer stages or a larger cluster", stages,
         stages, devices);
  }
  if (stages > nodes) fail(ErrorCode::kConfiguration, "{} stages were asked for, but the model has only {} forward nodes", stages, nodes);
  return stages;
}

int layerCount(const PartitionOptions& options, const Chain& chain, int stages) {
  constexpr int64_t kLayersPerStage = 4;  // fine enough for balance, coarse enough to find a narrow place near each cut
  const auto nodes = static_cast<int64_t>(chain.nodes.size());
  if (options.layers < 0)
    fail(ErrorCode::kUsage, "--layers {} is not understood; write a number, or 0 for an automatic choice", options.layers);
  if (options.layers == 0) return static_cast<int>(std::min(nodes, kLayersPerStage * stages));
  if (options.layers < stages) fail(ErrorCode::kConfiguration, "{} layers are too few for {} stages", options.layers, stages);
  if (options.layers > nodes)
    fail(ErrorCode::kConfiguration, "{} layers were asked for, but the model has only {} forward nodes", options.layers, nodes);
  return options.layers;
}

[[noreturn]] void failUnknownBoundary(const Graph& graph, const std::string& name, const Chain& chain) {
  std::vector<std::string> names;
  for (NodeId node : chain.nodes) {
    for (ValueId output : graph.node(node).outputs) {
      if (output.valid()) names.push_back(graph.value(output).name);
    }
  }
  const std::vector<std::string> near = nearMatches(name, names);
  const bool exists = findValue(graph, name).valid();
  fail(ErrorCode::kConfiguration, "boundary \"{}\" {}; a boundary is a value that a forward node makes{}", name,
       exists ? "is an input, a weight or a value of the backward pass" : "is no value of the model",
       near.empty() ? std::string("; `inspect` lists them") : fmt::format(", perhaps \"{}\"", fmt::join(near, "\" or \"")));
}

// The last position of each stage, as the boundaries say.
std::vector<int64_t> boundaryCuts(const PartitionOptions& options, const Chain& chain) {
  const Graph& graph = chain.training.graph;
  if (options.layers > 0) fail(ErrorCode::kUsage, "--layers and --boundary exclude each other: each run between boundaries is one layer");
  const auto needed = static_cast<int64_t>(options.boundaries.size()) + 1;
  if (needed > options.cluster.deviceCount()) {
    fail(ErrorCode::kConfiguration, "{} boundaries make {} stages, but the cluster has {} device(s)", needed - 1, needed,
         options.cluster.deviceCount());
  }
  const auto last = static_cast<int64_t>(chain.nodes.size()) - 1;
  std::vector<int64_t> cuts;
  for (const std::string& name : options.boundaries) {
    const ValueId value = findValue(graph, name);
    const auto makes = [&](NodeId node) {
      const std::vector<ValueId>& outputs = graph.node(node).outputs;
      return value.valid() && std::find(outputs.begin(), outputs.end(), value) != outputs.end();
    };
    const int64_t position = std::find_if(chain.nodes.begin(), chain.nodes.end(), makes) - chain.nodes.begin();
    if (position > last) failUnknownBoundary(graph, name, chain);
    if (position == last)
      fail(ErrorCode::kConfiguration, "boundary \"{}\" is made by the last forward node; the stage behind it would be empty", name);
    if (!cuts.empty() && position <= cuts.back()) {
      fail(ErrorCode::kConfiguration, "boundary \"{}\" does not come after \"{}\"; name boundaries in the model's order, each once", name,
           options.boundaries[cuts.size() - 1]);
    }
    cuts.push_back(position);
  }
  cuts.push_back(last);
  return cuts;
}

int64_t sumOver(const std::vector<int64_t>& amounts, int64_t first, int64_t last) {
  return std::accumulate(amounts.begin() + first, amounts.begin() + last + 1, int64_t{0});
}

std::string nodeLabel(const Node& node) { return node.name.empty() ? node.op_type : node.name; }

void fillLayers(const Chain& chain, const std::vector<int64_t>& cuts, Plan& plan) {
  plan.layers.clear();
  int64_t first = 0;
  for (int64_t last : cuts) {
    const Graph& graph = chain.training.graph;
    plan.layers.push_back({nodeLabel(graph.node(chain.nodes[static_cast<size_t>(first)])),
                           nodeLabel(graph.node(chain.nodes[static_cast<size_t>(last)])), first, last, sumOver(chain.flops, first, last)});
    first = last + 1;
  }
}

// By stage the last layer, balanced by forward and backward FLOPs.
std::vector<int> balancedStages(const Chain& chain, const Plan& plan, int stages) {
  std::vector<int64_t> cost, bytes;
  for (const LayerPlan& layer : plan.layers) {
    cost.push_back(layer.flops + sumOver(chain.backward_flops, layer.first, layer.last));
    bytes.push_back(chain.cut_bytes[static_cast<size_t>(layer.last)]);
  }
  return assignStages(cost, bytes, stages);
}

void fillStages(const Chain& chain, const std::vector<int>& last_layers, Plan& plan) {
  const auto microbatches = static_cast<int>(chain.training.microbatches);
  const ScheduleOrders orders = makeSchedule(plan.schedule, static_cast<int>(last_layers.size()), microbatches);
  plan.stages.clear();
  int first_layer = 0;
  for (size_t s = 0; s < last_layers.size(); ++s) {
    StagePlan stage;
    stage.first_layer = first_layer;
    stage.last_layer = last_layers[s];
    stage.devices = {static_cast<int>(s)};
    const int64_t first = plan.layers[static_cast<size_t>(stage.first_layer)].first;
    const int64_t last = plan.layers[static_cast<size_t>(stage.last_layer)].last;
    stage.forward_flops = sumOver(chain.flops, first, last);
    stage.backward_flops = sumOver(chain.backward_flops, first, last);
    stage.peak_activations = peakActivations(orders[s]);
    plan.stages.push_back(std::move(stage));
    first_layer = last_layers[s] + 1;
  }
  const std::vector<std::vector<int>> readers = parameterReaders(chain.training, nodeStages(chain.training, plan));
  for (size_t p = 0; p < readers.size(); ++p) {
    for (int s : readers[p]) {
      plan.stages[static_cast<size_t>(s)].parameter_bytes += chain.training.graph.bytes(chain.training.parameters[p].value);
    }
  }
}

void addNotes(const Chain& chain, const PartitionOptions& options, Plan& plan) {
  const int devices = options.cluster.deviceCount();
  if (static_cast<int>(plan.stages.size()) < devices) {
    plan.notes.push_back(fmt::format("{} of {} devices are used, one per stage", plan.stages.size(), devices));
  }
  std::vector<std::string> untrained;
  for (const Parameter& parameter : chain.training.parameters) {
    if (!isTrained(parameter)) untrained.push_back(chain.training.graph.value(parameter.value).name);
  }
  constexpr size_t kMost = 5;
  if (untrained.empty()) return;
  const size_t shown = std::min(kMost, untrained.size());
  std::string names = fmt::format("{}", fmt::join(untrained.begin(), untrained.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (untrained.size() > shown) names += fmt::format(" and {} more", untrained.size() - shown);
  plan.notes.push_back(fmt::format("no gradient reaches {} parameter(s), which stay as they are: {}", untrained.size(), names));
}

}  // namespace

void partitionTraining(const TrainingGraph& training, const PartitionOptions& options, Plan& plan) {
  const Chain chain = chainOf(training);
  plan.schedule = options.schedule;
  std::vector<int> last_layers;
  if (options.boundaries.empty()) {
    const int stages = stageCount(options, chain);
    fillLayers(chain, formLayers(chain.flops, chain.cut_bytes, layerCount(options, chain, stages)), plan);
    last_layers = balancedStages(chain, plan, stages);
  } else {
    fillLayers(chain, boundaryCuts(options, chain), plan);
    last_layers.resize(plan.layers.size());
    std::iota(last_layers.begin(), last_layers.end(), 0);
  }
  fillStages(chain, last_layers, plan);
  addNotes(chain, options, plan);
}

}  // namespace pipeshard
