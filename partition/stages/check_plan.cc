#include "partition/stages/check_plan.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/faults.h"
#include "ir/base/ids_format.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/stage_shardings.h"
#include "partition/families/plan_schedule.h"
#include "partition/layers/chain.h"
#include "partition/schedules/schedule.h"
#include "sharding/stage/shard_stage.h"
#include "sharding/stage/sharding_plan.h"

namespace pipeshard {
namespace {

std::string nodeLabel(const Node& node) { return node.name.empty() ? node.op_type : node.name; }

void checkRows(const TrainingGraph& training, const Plan& plan, std::vector<std::string>& faults) {
  int64_t rows = 0;
  const auto batch = plan.dimensions.find(plan.batch_dimension);
  const bool has_batch = std::any_of(training.inputs.begin(), training.inputs.end(),
                                     [](const BatchInput& input) { return input.axis >= 0; });
  if (has_batch && batch != plan.dimensions.end()) rows = batch->second / plan.microbatches;
  for (const StageId s : plan.stages.ids()) {
    const int data = plan.stages[s].mesh_shape.at(0);
    if (plan.stages[s].sharding || data == 1 || data <= rows) continue;
    faults.push_back(
        fmt::format("plan.json.stages[{}].mesh_shape: found a batch that is cut over {} devices; expected at "
                    "most {}, as the smallest microbatch has {}",
                    s, data, std::max<int64_t>(1, rows), counted(rows, "row")));
  }
}

void checkShardings(const TrainingGraph& training, const Plan& plan, std::vector<std::string>& faults) {
  // Of every schedule the halves, so that one which cannot be is a fault of its own.
  const Cut cut = cutTraining(training, plan, IdVector<StageId, bool>(plan.stages.size(), true));
  for (const StageId s : plan.stages.ids()) {
    const std::optional<ShardingPlan>& sharding = plan.stages[s].sharding;
    if (!sharding) continue;
    const std::string field = fmt::format("plan.json.stages[{}].sharding", s);
    keepFault(field + ".method", faults, [&] { meshesFor(plan.stages[s].devices.size(), sharding->method); });
    for (const std::string& fault : shardingFaults(training, shardedNodes(cut, s), *sharding))
      faults.push_back(field + "." + fault);
  }
}

// A stage whose layers are copies of weights alone has nothing to do: they are made where they are read.
void requireNodes(const TrainingGraph& training, const Plan& plan, const std::vector<StageId>& stages) {
  IdVector<StageId, bool> has_node(plan.stages.size(), false);
  for (const NodeId node : forwardNodes(training)) has_node[stages[node.index()]] = true;
  for (const StageId s : plan.stages.ids()) {
    if (has_node[s]) continue;
    fail(ErrorCode::kConfiguration,
         "stage {} would have nothing but copies of weights ({} to {}), which are made in the stages "
         "that read them; ask for fewer stages or other boundaries",
         s, plan.layers.at(plan.stages[s].first_layer).first_node,
         plan.layers.at(plan.stages[s].last_layer).last_node);
  }
}

}  // namespace

std::vector<std::string> planMisfits(const TrainingGraph& training, const Plan& plan) {
  std::vector<std::string> faults;
  const Chain chain = chainOf(training);
  const int64_t nodes = plan.layers.empty() ? 0 : plan.layers.back().last + 1;
  const bool has_layers = nodes == chain.count();
  if (!has_layers) {
    faults.push_back(
        fmt::format("plan.json.layers: found layers of {}, the last of which ends at position {}; expected "
                    "{}, as the model has",
                    counted(nodes, "forward node"), nodes - 1, chain.count()));
  }
  keepFault("plan.json.schedule", faults, [&] { scheduleOf(plan); });
  checkRows(training, plan, faults);
  const bool has_stages = has_layers && keepFault("plan.json.stages", faults, [&] {
                            requireNodes(training, plan, nodeStages(training, plan));
                          });
  if (has_stages) keepFault("plan.json.stages", faults, [&] { checkShardings(training, plan, faults); });
  return faults;
}

void fillNumbers(const TrainingGraph& training, Plan& plan) {
  const Chain chain = chainOf(training);
  const auto label = [&](int64_t position) {
    return nodeLabel(training.graph.node(chain.nodes.at(position)));
  };
  for (LayerPlan& layer : plan.layers) {
    layer.first_node = label(layer.first);
    layer.last_node = label(layer.last);
    layer.flops = sumOver(chain.flops, layer.first, layer.last);
  }
  const std::vector<StageId> stages = nodeStages(training, plan);
  requireNodes(training, plan, stages);
  const std::vector<std::vector<StageId>> readers = parameterReaders(training, stages);
  const Schedule schedule = scheduleOf(plan);
  for (const StageId s : plan.stages.ids()) {
    StagePlan& stage = plan.stages[s];
    const int64_t first = plan.layers.at(stage.first_layer).first;
    const int64_t last = plan.layers.at(stage.last_layer).last;
    stage.forward_flops = sumOver(chain.flops, first, last);
    stage.backward_flops = sumOver(chain.backward_flops, first, last);
    stage.peak_activations = peakActivations(orderOfReplica(schedule, s, 0), s);
    stage.parameter_bytes = 0;
  }
  for (size_t p = 0; p < readers.size(); ++p) {
    for (const StageId s : readers[p])
      plan.stages[s].parameter_bytes += training.graph.bytes(training.parameters[p].value);
  }
}

std::vector<std::string> planOddities(const Plan& plan) {
  std::vector<std::string> notes;
  for (const StageId s : plan.stages.ids()) {
    const std::set<RankId> devices(plan.stages[s].devices.begin(), plan.stages[s].devices.end());
    std::set<int> nodes;
    for (RankId device : devices) nodes.insert(plan.cluster.nodeOf(device.index()));
    int whole = 0;
    for (int node : nodes) whole += plan.cluster.nodes[node].devices;
    if (nodes.size() < 2 || whole == std::ssize(devices)) continue;
    notes.push_back(
        fmt::format("plan.json.stages[{}].devices: devices {} are parts of nodes {}, neither a part of one "
                    "node nor whole nodes",
                    s, fmt::join(devices, ","), fmt::join(nodes, ",")));
  }
  return notes;
}

}  // namespace pipeshard
