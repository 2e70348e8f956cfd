#include "partition/cut/shipments.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// The axis in which two shapes of one value differ; -1 if they do not.
int differingAxis(const Value& value, const Shape& a, const Shape& b) {
  PIPESHARD_CHECK(a.size() == b.size(), "'{}' has {} and {} axes", value.name, a.size(), b.size());
  int axis = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    PIPESHARD_CHECK(axis < 0, "'{}' has shapes {} and {}", value.name, shapeToString(a), shapeToString(b));
    axis = i;
  }
  return axis;
}

// A constant that depends on how many rows the graph has (not as an argument that is a size): the rows
// themselves, or their share of the batch. What is made of it and of invariant values adds up over the
// devices.
bool dependsOnRows(const Graph& graph, ValueId id, const Graph& other_graph, ValueId other_id) {
  const Constant* constant = id.valid() ? graph.constant(id) : nullptr;
  const Constant* other = constant != nullptr ? other_graph.constant(other_id) : nullptr;
  if (other == nullptr) return false;
  return constant->shape != other->shape ||
         (isFloatingPoint(constant->data_type) && constant->bytes != other->bytes);
}

// Whole microbatches, from the replica that has it to the one that takes it.
std::vector<Shipment> shipmentsInTurn(const Layout& layout, int64_t k, StageId from_stage, StageId to_stage) {
  std::vector<Shipment> result;
  for (int model = 0; model < layout.modelWidth(to_stage); ++model) {
    result.push_back(
        {layout.rankAt(from_stage, layout.replicaOf(from_stage, k), model % layout.modelWidth(from_stage)),
         layout.rankAt(to_stage, layout.replicaOf(to_stage, k), model), layout.microbatch(k)});
  }
  return result;
}

}  // namespace

std::vector<TimeKind> batchKinds(const TrainingFamily& family, int64_t rows) {
  using Kind = TimeKind::Kind;
  const TrainingGraph& base = family.base();
  const TrainingGraph& other = family.at(rows);
  const Graph& graph = base.graph;
  std::vector<TimeKind> kinds(graph.values.size());
  for (const BatchInput& input : base.inputs) {
    if (input.axis >= 0) kinds[input.value.index()] = {Kind::kSplit, input.axis};
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!isPass(base.node_phase[n])) continue;
    const Node& node = graph.nodes[n];
    const Node& other_node = other.graph.nodes[n];
    bool depends = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      depends = depends || (input.valid() && kinds[input.index()].kind != Kind::kInvariant) ||
                dependsOnRows(graph, input, other.graph, other_node.inputs[i]);
    }
    for (ValueId output : node.outputs) {
      if (!output.valid()) continue;
      const int axis = differingAxis(graph.value(output), graph.shape(output),
                                     other.graph.shape(family.valueAt(rows, output)));
      TimeKind& kind = kinds[output.index()];
      if (axis >= 0)
        kind = {Kind::kSplit, axis};
      else if (depends)
        kind = {Kind::kSum, -1};
    }
  }
  return kinds;
}

std::vector<Shipment> shipments(const Layout& layout, TimeKind::Kind kind, int64_t k, StageId from_stage,
                                StageId to_stage) {
  if (layout.inTurn()) return shipmentsInTurn(layout, k, from_stage, to_stage);
  const int senders = layout.dataWidth(from_stage);
  std::vector<Shipment> result;
  for (int data = 0; data < layout.dataWidth(to_stage); ++data) {
    const Rows wanted = layout.cell(to_stage, data, k);
    for (int model = 0; model < layout.modelWidth(to_stage); ++model) {
      const RankId receiver = layout.rankAt(to_stage, data, model);
      for (int from = 0; from < senders; ++from) {
        Rows rows = layout.cell(from_stage, from, k);
        if (kind == TimeKind::Kind::kSplit) {
          const int64_t first = std::max(rows.first, wanted.first);
          rows = {first, std::min(rows.end(), wanted.end()) - first};
          if (rows.count <= 0) continue;
        } else if (kind == TimeKind::Kind::kSum) {
          if (from % layout.dataWidth(to_stage) != data) continue;
        } else if (from != data % senders) {
          continue;
        }
        result.push_back(
            {layout.rankAt(from_stage, from, model % layout.modelWidth(from_stage)), receiver, rows});
      }
    }
  }
  return result;
}

}  // namespace pipeshard
