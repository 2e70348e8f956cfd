#include "sharding/spmd/work_count.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "sharding/spmd/operator_work.h"

namespace pipeshard {

namespace {

const std::pair<std::string, std::string> kPlacing = {"pipeshard.role", "placing"};

int axisOfGroup(const MeshGroups& groups, const Node& node) {
  const auto& list = groups.group_of_axis;
  const auto found = std::find(list.begin(), list.end(), collectiveGroup(node));
  PIPESHARD_CHECK(found != list.end(), "{} has a group that belongs to no mesh axis", describeNode(node));
  return found - list.begin();
}

// Whose rate it computes at: products that of what they multiply, all else that of the widest float.
DataType typeOf(const Graph& graph, const Node& node) {
  const WorkClass work = operatorFacts(node).work;
  const auto isFloat = [&](ValueId value) { return value.valid() && isFloatingPoint(graph.dataType(value)); };
  if (work == WorkClass::kContraction || work == WorkClass::kConvolution) {
    const auto operand = std::find_if(node.inputs.begin(), node.inputs.end(), isFloat);
    if (operand != node.inputs.end()) return graph.dataType(*operand);
  }
  DataType widest = DataType::kUndefined;
  for (const std::vector<ValueId>* values : {&node.outputs, &node.inputs}) {
    for (ValueId value : *values) {
      if (isFloat(value) && dataTypeSize(graph.dataType(value)) > dataTypeSize(widest))
        widest = graph.dataType(value);
    }
  }
  return widest != DataType::kUndefined || node.outputs.empty() || !node.outputs[0].valid()
             ? widest
             : graph.dataType(node.outputs[0]);
}

}  // namespace

int64_t computeCost(const CostModel& model, const NodeWork& work) {
  return computeCost(model, work.flops, work.bytes, work.work_class, work.type);
}

NodeWork nodeWork(const Graph& graph, const Node& node, const std::optional<FactorRule>& rule) {
  NodeWork work;
  if (rule && rule->flops == 0) return work;
  if (rule) work.flops = rule->flops;
  if (rule) work.work_class = operatorFacts(node).work;
  work.type = typeOf(graph, node);
  for (ValueId input : node.inputs) {
    if (input.valid()) work.bytes += graph.bytes(input);
  }
  for (ValueId output : node.outputs) {
    if (!output.valid()) continue;
    work.bytes += graph.bytes(output);
    if (!rule) work.flops += static_cast<double>(elementCount(graph.shape(output)));
  }
  return work;
}

void markPlacing(Node& node) { node.metadata.push_back(kPlacing); }
bool isPlacing(const Node& node) {
  return std::find(node.metadata.begin(), node.metadata.end(), kPlacing) != node.metadata.end();
}

WorkCount countWork(const Graph& local, const LogicalMesh& mesh, const MeshGroups& groups,
                    const CostModel& model) {
  WorkCount count;
  for (const Node& node : local.nodes) {
    if (const auto kind = collectiveKind(node)) {
      const int64_t bytes = collectiveBytes(*kind, local.bytes(node.inputs[0]), local.bytes(node.outputs[0]));
      count.collective_bytes[static_cast<size_t>(*kind)] += bytes;
      ++count.collectives[static_cast<size_t>(*kind)];
      count.communication_ns += collectiveCost(model, mesh, *kind, axisOfGroup(groups, node), bytes);
    } else if (!isPlacing(node)) {
      const std::optional<FactorRule> rule = factorRule(local, node);
      const NodeWork work = nodeWork(local, node, rule);
      count.flops += work.flops;
      count.compute_ns += nodeTime(model, local, node, rule, work);
    }
  }
  return count;
}

std::vector<WorkPart> workParts(const Graph& local, const IdVector<GroupId, int>& group_sizes,
                                const CostModel& model) {
  std::vector<WorkPart> parts(1);
  for (const Node& node : local.nodes) {
    if (const auto kind = collectiveKind(node)) {
      WorkPart& part = parts.back();
      part.group = collectiveGroup(node);
      PIPESHARD_CHECK(part.group < group_sizes.nextId(), "{} has a group that does not exist",
                      describeNode(node));
      part.bytes = collectiveBytes(*kind, local.bytes(node.inputs[0]), local.bytes(node.outputs[0]));
      part.exchange =
          collectiveCost(groupModel(model, part.group), {{group_sizes[part.group]}}, *kind, 0, part.bytes);
      parts.emplace_back();
    } else {
      const std::optional<FactorRule> rule = factorRule(local, node);
      parts.back().compute += nodeTime(model, local, node, rule, nodeWork(local, node, rule));
    }
  }
  return parts;
}

}  // namespace pipeshard
