// Every merge behind another axis starts a region: values whose axis [outer, rows, rest] is to be held as
// [rows, outer, rest]. The region grows through operators that treat every row of the axis alike, as their
// factor rules say, and ends where the axis is taken apart again, or summed over. If every operator inside
// reads all its rows in the same order, the Reshapes at the border are turned, and nothing else changes.
#include "sharding/batch/merged_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>

#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// Axis `axis` is [outer, rows of the batch, rest] and to be held as [rows, outer, rest].
struct Turned {
  int axis = 0;
  int64_t outer = 1;
  friend bool operator==(const Turned&, const Turned&) = default;
};

// At the border of a region: the axes [first, last] of the input (merged) or output (taken apart), of which
// the last is the batch; `rest` elements of that axis belong to each row, behind it.
struct Border {
  bool merges = true;
  size_t first = 0;
  size_t last = 0;
  int64_t rest = 1;
};

using Borders = std::map<NodeId, Border>;

// Finds the regions. Of more than one row: an axis of one is no factor of any operator.
class MergedRows {
 public:
  MergedRows(const Graph& graph, int64_t rows, const Graph& other)
      : graph_(graph), rows_(rows), other_(other), uses_(computeUseDef(graph)) {
    for (size_t v = 0; v < other.values.size(); ++v) namesakes_.emplace(other.values[v].name, ValueId(v));
  }

  // Empty: there are none, or some operator needs the rows in their order.
  Borders find() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) seed(NodeId(n));
    for (size_t i = 0; i < order_.size(); ++i) {
      for (NodeId reader : uses_.consumers[order_[i].index()]) {
        if (!follow(reader)) return {};
      }
    }
    for (ValueId output : graph_.outputs) {
      if (region_.contains(output)) return {};
    }
    return std::move(borders_);
  }

 private:
  // The only axis that is longer in the other batch; nothing for none or several.
  std::optional<size_t> batchAxis(ValueId value) const {
    const auto found = namesakes_.find(graph_.value(value).name);
    if (found == namesakes_.end()) return std::nullopt;
    const Shape& mine = graph_.shape(value);
    const Shape& theirs = other_.shape(found->second);
    if (mine.size() != theirs.size()) return std::nullopt;
    std::optional<size_t> axis;
    for (size_t a = 0; a < mine.size(); ++a) {
      if (mine[a] == theirs[a]) continue;
      if (axis) return std::nullopt;
      axis = a;
    }
    return axis;
  }

  bool add(ValueId value, Turned turned) {
    const auto [found, fresh] = region_.try_emplace(value, turned);
    if (fresh) order_.push_back(value);
    return found->second == turned;
  }

  // A Reshape that merges whole axes, the batch among them but not first.
  void seed(NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.is("Reshape")) return;
    const std::optional<size_t> from = batchAxis(node.inputs[0]);
    const std::optional<size_t> to = batchAxis(node.outputs[0]);
    if (!from || !to || graph_.shape(node.inputs[0])[*from] % rows_ != 0) return;
    const std::optional<FactorRule> rule = factorRule(graph_, id);
    if (!rule || rule->inputs[0][*from].empty()) return;
    const std::vector<int>& merged = rule->outputs[0][*to];
    const int batch = rule->inputs[0][*from][0];
    const auto place = std::find(merged.begin(), merged.end(), batch) - merged.begin();
    if (place == 0 || place == std::ssize(merged)) return;
    int64_t outer = 1;
    for (int64_t k = 0; k < place; ++k) {
      const auto axis = static_cast<int64_t>(*from) - place + k;
      if (axis < 0 || rule->inputs[0][axis] != std::vector<int>{merged[k]}) return;
      outer *= rule->factors[merged[k]].size;
    }
    if (outer == 1) return;
    const int64_t rest = rule->inputs[0][*from].size() == 1
                             ? 1
                             : graph_.shape(node.inputs[0])[*from] / rule->factors[batch].size;
    borders_[id] = {true, *from - static_cast<size_t>(place), *from, rest};
    add(node.outputs[0], {static_cast<int>(*to), outer});
  }

  // What the operator makes of rows in another order; false where it needs them as they were.
  bool follow(NodeId id) {
    const Node& node = graph_.node(id);
    const std::optional<FactorRule> rule = factorRule(graph_, id);
    if (!rule) return false;
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      const auto turned = region_.find(node.inputs[input]);
      if (!node.inputs[input].valid() || turned == region_.end()) continue;
      const std::vector<int>& factors = rule->inputs[input][turned->second.axis];
      if (factors.empty()) return false;
      const bool followed = factors.size() == 1 ? followFactor(node, *rule, factors[0], turned->second)
                                                : takeApart(id, *rule, factors, turned->second);
      if (!followed) return false;
    }
    return true;
  }

  bool followFactor(const Node& node, const FactorRule& rule, int factor, Turned turned) {
    if (rule.factors[factor].kind == FactorKind::kWhole) return false;
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      for (size_t axis = 0; node.inputs[input].valid() && axis < rule.inputs[input].size(); ++axis) {
        const std::vector<int>& factors = rule.inputs[input][axis];
        if (std::find(factors.begin(), factors.end(), factor) == factors.end()) continue;
        const auto other = region_.find(node.inputs[input]);
        // An input that is not in the region (yet) is not in its order.
        if (other == region_.end() || other->second != Turned{static_cast<int>(axis), turned.outer})
          return false;
      }
    }
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      for (size_t axis = 0; node.outputs[output].valid() && axis < rule.outputs[output].size(); ++axis) {
        const std::vector<int>& factors = rule.outputs[output][axis];
        const auto place = std::find(factors.begin(), factors.end(), factor) - factors.begin();
        if (place == std::ssize(factors)) continue;
        if (place > 0 || !add(node.outputs[output], {static_cast<int>(axis), turned.outer})) return false;
      }
    }
    return true;
  }

  // The axis consists of several factors: a Reshape takes it apart, or keeps them together.
  bool takeApart(NodeId id, const FactorRule& rule, const std::vector<int>& factors, Turned turned) {
    const Node& node = graph_.node(id);
    if (!node.is("Reshape")) return false;
    size_t before = 0;
    int64_t outer = 1;
    while (before < factors.size() && outer < turned.outer) outer *= rule.factors[factors[before++]].size;
    if (outer != turned.outer || before == factors.size()) return false;
    const TensorFactors& output = rule.outputs[0];
    for (size_t axis = 0; axis < output.size(); ++axis) {
      if (output[axis].empty() || output[axis][0] != factors[0]) continue;
      if (output[axis].size() > before) {  // still together
        const bool same = std::equal(factors.begin(), factors.begin() + static_cast<int64_t>(before) + 1,
                                     output[axis].begin());
        return same && add(node.outputs[0], {static_cast<int>(axis), turned.outer});
      }
      for (size_t k = 0; k < before; ++k) {
        if (axis + k >= output.size() || output[axis + k] != std::vector<int>{factors[k]}) return false;
      }
      const size_t batch = axis + before;
      if (batch >= output.size() || output[batch].empty() || output[batch][0] != factors[before])
        return false;
      borders_[id] = {false, axis, batch, 1};
      return true;
    }
    return false;
  }

  const Graph& graph_;
  int64_t rows_;
  const Graph& other_;
  const UseDef uses_;
  std::unordered_map<std::string, ValueId> namesakes_;  // of the other graph
  std::map<ValueId, Turned> region_;
  std::vector<ValueId> order_;  // of the region, as found
  Borders borders_;
};

// Turns the Reshapes at the borders.
class RowsFirst {
 public:
  RowsFirst(Graph& graph, const Borders& borders) : graph_(graph), borders_(borders) {}

  void rewrite() {
    GraphBuilder builder(graph_);
    std::vector<Node> nodes;
    std::vector<Node> old;
    old.swap(graph_.nodes);
    for (size_t n = 0; n < old.size(); ++n) {
      const auto border = borders_.find(NodeId(n));
      if (border == borders_.end()) {
        nodes.push_back(std::move(old[n]));
      } else if (border->second.merges) {
        mergeFirst(builder, std::move(old[n]), border->second, nodes);
      } else {
        apartFirst(builder, std::move(old[n]), border->second, nodes);
      }
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  static Node transposition(const Node& like, const std::vector<int64_t>& permutation, ValueId from,
                            ValueId to, const std::string& name) {
    Node node;
    node.op_type = "Transpose";
    node.opset_version = like.opset_version;
    node.name = name;
    node.metadata = like.metadata;
    node.inputs = {from};
    node.outputs = {to};
    node.attributes = {{"perm", permutation}};
    return node;
  }

  // Axis `border.last` before axis `border.first`.
  void mergeFirst(GraphBuilder& builder, Node node, const Border& border, std::vector<Node>& nodes) {
    const std::string name = fmt::format("{}/rows_first", graph_.value(node.outputs[0]).name);
    ValueId from = node.inputs[0];
    Shape shape = graph_.shape(from);
    if (border.rest > 1) {  // the batch as an axis of its own
      shape[border.last] /= border.rest;
      shape.insert(shape.begin() + static_cast<int64_t>(border.last) + 1, border.rest);
      Node apart = node;
      apart.outputs = {builder.addValue(name + "/rows", graph_.dataType(from), shape)};
      apart.name = graph_.value(apart.outputs[0]).name;
      setSizes(builder, apart, shape);
      from = apart.outputs[0];
      nodes.push_back(std::move(apart));
    }
    std::vector<int64_t> permutation;
    Shape turned;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const size_t old = axis == border.first                         ? border.last
                         : axis > border.first && axis <= border.last ? axis - 1
                                                                      : axis;
      permutation.push_back(static_cast<int64_t>(old));
      turned.push_back(shape[old]);
    }
    const ValueId first = builder.addValue(name, graph_.dataType(from), turned);
    nodes.push_back(transposition(node, permutation, from, first, name));
    node.inputs[0] = first;
    setSizes(builder, node, graph_.shape(node.outputs[0]));
    nodes.push_back(std::move(node));
  }

  void apartFirst(GraphBuilder& builder, Node node, const Border& border, std::vector<Node>& nodes) {
    const ValueId to = node.outputs[0];
    const Shape shape = graph_.shape(to);
    std::vector<int64_t> permutation(shape.size());
    Shape turned;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const size_t old = axis == border.first                         ? border.last
                         : axis > border.first && axis <= border.last ? axis - 1
                                                                      : axis;
      permutation[old] = static_cast<int64_t>(axis);
      turned.push_back(shape[old]);
    }
    const std::string name = fmt::format("{}/rows_first", graph_.value(to).name);
    const ValueId first = builder.addValue(name, graph_.dataType(to), turned);
    node.outputs[0] = first;
    setSizes(builder, node, turned);
    Node back = transposition(node, permutation, first, to, name);
    nodes.push_back(std::move(node));
    nodes.push_back(std::move(back));
  }

  void setSizes(GraphBuilder& builder, Node& node, const Shape& sizes) {
    const std::string name = fmt::format("{}/sizes", graph_.value(node.outputs[0]).name);
    node.inputs[1] = builder.addConstant(name, makeConstant<int64_t>({std::ssize(sizes)}, sizes));
    node.attributes.erase("allowzero");
  }

  Graph& graph_;
  const Borders& borders_;
};

// Do both graphs consist of the same operators, which make the same values?
bool sameNodes(const Graph& one, const Graph& other) {
  const auto name = [](const Graph& graph, ValueId value) {
    return value.valid() ? graph.value(value).name : std::string();
  };
  return std::equal(one.nodes.begin(), one.nodes.end(), other.nodes.begin(), other.nodes.end(),
                    [&](const Node& a, const Node& b) {
                      return a.op_type == b.op_type && a.outputs.size() == b.outputs.size() &&
                             name(one, a.outputs[0]) == name(other, b.outputs[0]);
                    });
}

}  // namespace

bool mayMergeRows(const Graph& graph, int64_t rows) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (!node.is("Reshape") || !node.inputs[0].valid()) return false;
    const Shape& from = graph.shape(node.inputs[0]);
    if (from.size() <= graph.shape(node.outputs[0]).size() && from.size() < 3) return false;
    return std::any_of(from.begin() + (from.empty() ? 0 : 1), from.end(),
                       [&](int64_t size) { return size >= rows && size % rows == 0; });
  });
}

int mergeRowsFirst(Graph& graph, int64_t rows, const Graph& other, int64_t other_rows) {
  if (rows == 1 && !sameNodes(graph, other)) return 0;
  const Borders borders =
      rows == 1 ? MergedRows(other, other_rows, graph).find() : MergedRows(graph, rows, other).find();
  if (!borders.empty()) RowsFirst(graph, borders).rewrite();
  return static_cast<int>(borders.size());
}

}  // namespace pipeshard
