#include "runtime/kernels/fusion/fused_groups.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ir/operators/operator_facts.h"

namespace pipeshard::kernels {
namespace {

// Fewer elements are done before a loop over tiles has begun.
constexpr int64_t kLeastElements = 256;
constexpr size_t kMostNodes = 32;

// What every kernel takes without a look at its data: an integer may be a divisor, or out of range.
bool isPlain(DataType type) { return isFloatingPoint(type) || type == DataType::kBool; }

bool broadcastsTo(const Shape& shape, const Shape& output) {
  if (shape.size() > output.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t size = shape[shape.size() - 1 - i];
    if (size != 1 && size != output[output.size() - 1 - i]) return false;
  }
  return true;
}

// An element of its one result is made of the elements at the same place of its operands, of nothing else.
bool isByElement(const Graph& graph, const Node& node) {
  const OperatorFacts& facts = operatorFacts(node);
  if (facts.work != WorkClass::kElementwise || facts.is_random || facts.is_update ||
      facts.has_optional_outputs || node.outputs.size() != 1 || node.inputs.empty())
    return false;
  const Value& output = graph.value(node.outputs[0]);
  if (!hasStaticShape(output) || !isPlain(output.data_type)) return false;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    return !id.valid() || (hasStaticShape(graph.value(id)) && isPlain(graph.dataType(id)) &&
                           broadcastsTo(graph.shape(id), *output.shape));
  });
}

// Some operand has fewer elements, but more than one: how it is repeated depends on the shape.
bool hasRepeatedOperand(const Graph& graph, const Node& node) {
  const int64_t count = elementCount(graph.shape(node.outputs[0]));
  return std::ranges::any_of(node.inputs, [&](ValueId id) {
    if (!id.valid()) return false;
    const int64_t own = elementCount(graph.shape(id));
    return own != 1 && own != count;
  });
}

class GroupFinder {
 public:
  GroupFinder(const Graph& graph, std::span<const ValueId> roots)
      : graph_(graph), roots_(roots), group_of_(graph.values.size(), kNone) {}

  std::vector<FusedGroup> find() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (isNameOnly(graph_, node)) continue;
      if (!isByElement(graph_, node)) {
        endThoseReadBy(node, kNone);
        endThoseBefore(node);
        continue;
      }
      const size_t group = groupFor(node);
      endThoseReadBy(node, group);
      groups_[group].nodes.push_back(n);
      if (hasRepeatedOperand(graph_, node)) groups_[group].shape = graph_.shape(node.outputs[0]);
      group_of_[node.outputs[0].index()] = group;
    }
    return finished();
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Growing {
    std::vector<size_t> nodes;
    int64_t count = 0;           // elements of what every node makes
    std::optional<Shape> shape;  // once an operand is repeated
    bool open = true;
  };

  size_t groupOf(ValueId id) const { return id.valid() ? group_of_[roots_[id.index()].index()] : kNone; }

  // The group that a node goes on with: all whose results it reads as one, where they can be one.
  size_t groupFor(const Node& node) {
    const Shape& shape = graph_.shape(node.outputs[0]);
    const bool is_bound = hasRepeatedOperand(graph_, node);
    size_t chosen = kNone;
    for (const ValueId id : node.inputs) {
      const size_t group = groupOf(id);
      if (group == kNone || group == chosen || !groups_[group].open) continue;
      const Growing& found = groups_[group];
      const bool fits = found.count == elementCount(shape) && found.nodes.size() < kMostNodes &&
                        (!is_bound || !found.shape || *found.shape == shape);
      if (!fits) continue;
      if (chosen == kNone) {
        chosen = group;
      } else if (mayMerge(groups_[chosen], found)) {
        merge(chosen, group);
      }
    }
    if (chosen != kNone) return chosen;
    const bool is_large = elementCount(shape) >= kLeastElements;
    groups_.push_back({{}, elementCount(shape), std::nullopt, is_large});
    if (is_large) open_.push_back(groups_.size() - 1);
    return groups_.size() - 1;
  }

  static bool mayMerge(const Growing& a, const Growing& b) {
    return a.nodes.size() + b.nodes.size() < kMostNodes && (!a.shape || !b.shape || *a.shape == *b.shape);
  }

  void merge(size_t into, size_t from) {
    Growing& a = groups_[into];
    Growing& b = groups_[from];
    a.nodes.insert(a.nodes.end(), b.nodes.begin(), b.nodes.end());
    std::sort(a.nodes.begin(), a.nodes.end());
    if (!a.shape) a.shape = b.shape;
    for (const size_t n : b.nodes) group_of_[graph_.nodes[n].outputs[0].index()] = into;
    b = {{}, 0, std::nullopt, false};
  }

  // Whoever reads a group's results from outside wants them made before.
  void endThoseReadBy(const Node& node, size_t but) {
    for (const ValueId id : node.inputs) {
      const size_t group = groupOf(id);
      if (group != kNone && group != but) groups_[group].open = false;
    }
  }

  void endThoseBefore(const Node& node) {
    int64_t most = 0;
    for (const ValueId id : node.outputs) {
      if (id.valid() && hasStaticShape(graph_.value(id)))
        most = std::max(most, elementCount(graph_.shape(id)));
    }
    std::erase_if(open_, [&](size_t group) {
      if (most * 4 > groups_[group].count) groups_[group].open = false;
      return !groups_[group].open;
    });
  }

  std::vector<FusedGroup> finished() const {
    std::vector<std::set<size_t>> readers(graph_.values.size());  // by root: groups, kNone for others
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (isNameOnly(graph_, node)) continue;
      const size_t group =
          node.outputs.empty() || !isByElement(graph_, node) ? kNone : groupOf(node.outputs[0]);
      for (const ValueId id : node.inputs) {
        if (id.valid()) readers[roots_[id.index()].index()].insert(group);
      }
    }
    for (const ValueId id : graph_.outputs) readers[roots_[id.index()].index()].insert(kNone);
    std::vector<FusedGroup> result;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].nodes.size() > 1) result.push_back(finish(g, readers));
    }
    return result;
  }

  FusedGroup finish(size_t group, const std::vector<std::set<size_t>>& readers) const {
    FusedGroup result{
        groups_[group].nodes, groups_[group].shape.value_or(Shape{groups_[group].count}), {}, {}};
    for (const size_t n : result.nodes) {
      for (const ValueId id : graph_.nodes[n].inputs) {
        if (!id.valid() || groupOf(id) == group) continue;
        const ValueId root = roots_[id.index()];
        if (std::ranges::find(result.inputs, root) == result.inputs.end()) result.inputs.push_back(root);
      }
      const ValueId made = graph_.nodes[n].outputs[0];
      if (readers[made.index()] != std::set{group}) result.outputs.push_back(made);
    }
    return result;
  }

  const Graph& graph_;
  std::span<const ValueId> roots_;
  std::vector<size_t> group_of_;  // by root
  std::vector<Growing> groups_;
  std::vector<size_t> open_;  // those that may be, among them all that are
};

}  // namespace

bool hasStaticShape(const Value& value) {
  return value.data_type != DataType::kUndefined && value.shape && isStatic(*value.shape);
}

bool isNameOnly(const Graph& graph, const Node& node) {
  if (!isView(node)) return false;
  if (node.inputs.empty() || node.outputs.empty() || !node.inputs[0].valid() || !node.outputs[0].valid())
    return false;
  const Value& from = graph.value(node.inputs[0]);
  const Value& to = graph.value(node.outputs[0]);
  if (!hasStaticShape(from) || !hasStaticShape(to)) return false;
  return from.data_type == to.data_type && elementCount(*from.shape) == elementCount(*to.shape);
}

std::vector<ValueId> memoryRoots(const Graph& graph) {
  std::vector<ValueId> roots(graph.values.size());
  for (size_t v = 0; v < roots.size(); ++v) roots[v] = ValueId(v);
  for (const Node& node : graph.nodes) {
    if (isNameOnly(graph, node)) roots[node.outputs[0].index()] = roots[node.inputs[0].index()];
  }
  return roots;
}

std::vector<FusedGroup> findFusedGroups(const Graph& graph, std::span<const ValueId> roots) {
  return GroupFinder(graph, roots).find();
}

}  // namespace pipeshard::kernels
