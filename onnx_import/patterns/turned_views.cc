#include "onnx_import/patterns/turned_views.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/patterns/attention_views.h"

namespace pipeshard {
namespace {

using Axes = std::vector<int64_t>;

// What a Transpose's order is when each axis of its input is several: counts by axis of the input. (1,0) and
// {1,2}: the axes [0], [1,2] come as [1,2], [0].
Axes divided(const Axes& order, const std::vector<int>& counts) {
  std::vector<int64_t> first(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), first.begin() + 1);
  Axes result;
  for (const int64_t axis : order) {
    for (int64_t a = first[axis]; a < first[axis + 1]; ++a) result.push_back(a);
  }
  return result;
}

Shape ordered(const Shape& shape, const Axes& order) {
  Shape result;
  for (const int64_t axis : order) result.push_back(shape[axis]);
  return result;
}

// axesOfEach where the first axis alone is several: of others an axis of one row could go to either side, and
// the graph would be another at that size of a batch.
std::optional<std::vector<int>> axesOfFirst(const Shape& coarse, const Shape& fine) {
  std::optional<std::vector<int>> counts = axesOfEach(coarse, fine);
  const bool is_first = counts && std::all_of(counts->begin() + (counts->empty() ? 0 : 1), counts->end(),
                                              [](int n) { return n == 1; });
  return is_first ? counts : std::nullopt;
}

class ViewTurner {
 public:
  ViewTurner(Graph& graph, MoreRows* more_rows)
      : graph_(graph),
        more_rows_(more_rows),
        builder_(graph),
        uses_(computeUseDef(graph)),
        gone_(graph.nodes.size(), false),
        changed_(graph.nodes.size(), false) {
    for (const ValueId output : graph.outputs) kept_.push_back(output);
  }

  int run() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        if (!gone_[n] && turn(NodeId(n))) changed = true;
      }
    }
    size_t n = 0;
    const auto removed = std::erase_if(graph_.nodes, [&](const Node&) { return gone_[n++]; });
    return static_cast<int>(removed);
  }

 private:
  Node& node(NodeId id) { return graph_.node(id); }
  const Shape& shape(ValueId value) const { return graph_.shape(value); }
  bool isTranspose(NodeId id) {
    return node(id).is("Transpose") && !node(id).intsAttribute("perm").empty() && node(id).opaque.empty();
  }
  // Not an Identity: it may stop a gradient.
  bool isShown(NodeId id) {
    return node(id).domain.empty() && isView(node(id)) && !node(id).is("Identity") && node(id).opaque.empty();
  }

  // The node whose only output this one reads, if nobody else does.
  NodeId before(NodeId id) {
    const ValueId value = node(id).inputs[0];
    const NodeId maker = uses_.producer[value.index()];
    const bool is_kept = std::ranges::find(kept_, value) != kept_.end();
    return maker.valid() && !is_kept && uses_.consumers[value.index()].size() == 1 ? maker : NodeId();
  }

  bool turn(NodeId id) {
    const bool is_transpose = isTranspose(id);
    if (!is_transpose && !isShown(id)) return false;
    if (!is_transpose && leaveOut(id)) return true;
    const NodeId first = before(id);
    if (!first.valid() || node(first).outputs.size() != 1) return false;
    if (isTranspose(first)) return is_transpose ? joinTransposes(first, id) : divideBefore(first, id);
    if (!isShown(first)) return false;
    return is_transpose ? mergeBehind(first, id) : joinViews(first, id);
  }

  // A view of the same shape, which it has become here: what the file has may be one at some sizes alone. So
  // may this one at a single row: [1,bh,s,d] viewed as [b,h,s,d].
  bool leaveOut(NodeId id) {
    const ValueId source = node(id).inputs[0], shown = node(id).outputs[0];
    if (!changed_[id.index()] || shape(source) != shape(shown) ||
        std::ranges::find(kept_, shown) != kept_.end())
      return false;
    if (more_rows_ != nullptr && std::ranges::find(shape(shown), 1) != shape(shown).end() &&
        more_rows_->keeps(graph_.value(shown).name).value_or(false))
      return false;
    std::vector<NodeId>& readers = uses_.consumers[source.index()];
    std::erase(readers, id);
    for (const NodeId reader : uses_.consumers[shown.index()]) {
      std::ranges::replace(node(reader).inputs, shown, source);
      if (std::ranges::find(readers, reader) == readers.end()) readers.push_back(reader);
    }
    gone_[id.index()] = true;
    return true;
  }

  void takeAway(NodeId id, NodeId reader) {
    const ValueId source = node(id).inputs[0];
    node(reader).inputs[0] = source;
    std::vector<NodeId>& consumers = uses_.consumers[source.index()];
    std::ranges::replace(consumers, id, reader);
    gone_[id.index()] = true;
  }

  bool joinTransposes(NodeId first, NodeId second) {
    node(second).attributes["perm"] =
        ordered(node(first).intsAttribute("perm"), node(second).intsAttribute("perm"));
    takeAway(first, second);
    return true;
  }

  bool joinViews(NodeId first, NodeId second) {
    takeAway(first, second);
    viewAs(second, shape(node(second).outputs[0]));
    return true;
  }

  // View, Transpose, and a view that divides axes: the first view divides them.
  bool divideBefore(NodeId transpose, NodeId view) {
    const NodeId first = before(transpose);
    if (!first.valid() || !isShown(first)) return false;
    const Shape& fine = shape(node(view).outputs[0]);
    const auto counts = axesOfFirst(shape(node(view).inputs[0]), fine);
    if (!counts) return false;
    // Back through the Transpose: which axes of `fine` the first view makes, in its order.
    const Axes order = node(transpose).intsAttribute("perm");
    Axes inverse(order.size());
    for (size_t axis = 0; axis < order.size(); ++axis) inverse[order[axis]] = static_cast<int64_t>(axis);
    const Axes back = divided(inverse, *counts);
    Axes forward(back.size());
    for (size_t axis = 0; axis < back.size(); ++axis) forward[back[axis]] = static_cast<int64_t>(axis);
    viewAs(first, ordered(fine, back));
    node(transpose).attributes["perm"] = forward;
    // The Transpose gives what the view gave.
    const ValueId result = node(view).outputs[0];
    node(transpose).outputs = {result};
    uses_.producer[result.index()] = transpose;
    gone_[view.index()] = true;
    return true;
  }

  // A view that merges axes, Transpose, and another view: that one merges them.
  bool mergeBehind(NodeId view, NodeId transpose) {
    const ValueId turned = node(transpose).outputs[0];
    const bool is_kept = std::ranges::find(kept_, turned) != kept_.end();
    const std::vector<NodeId>& readers = uses_.consumers[turned.index()];
    if (is_kept || readers.size() != 1 || !isShown(readers[0])) return false;
    const Shape& fine = shape(node(view).inputs[0]);
    const auto counts = axesOfFirst(shape(node(view).outputs[0]), fine);
    if (!counts) return false;
    const Axes order = divided(node(transpose).intsAttribute("perm"), *counts);
    node(transpose).attributes["perm"] = order;
    setShape(turned, ordered(fine, order));
    takeAway(view, transpose);
    viewAs(readers[0], shape(node(readers[0]).outputs[0]));
    return true;
  }

  // The node is a Reshape to this shape from now on.
  void viewAs(NodeId id, const Shape& to) {
    setShape(node(id).outputs[0], to);
    const ValueId sizes =
        builder_.addConstant(node(id).name + "/sizes", makeConstant<int64_t>({std::ssize(to)}, to));
    markMade(graph_.value(sizes));
    changed_[id.index()] = true;
    node(id).op_type = "Reshape";
    node(id).opset_version = graph_.opset_imports.at("");
    node(id).attributes.clear();
    node(id).inputs.resize(1);
    node(id).inputs.push_back(sizes);
  }

  void setShape(ValueId value, const Shape& shape) {
    if (graph_.shape(value) == shape) return;
    graph_.value(value).shape = shape;
    graph_.value(value).symbols.clear();
  }

  Graph& graph_;
  MoreRows* more_rows_;
  GraphBuilder builder_;
  UseDef uses_;
  std::vector<ValueId> kept_;  // the graph's outputs
  std::vector<bool> gone_;     // by node
  std::vector<bool> changed_;  // by node: a view to another shape, or of another value, than in the file
};

}  // namespace

int turnViews(Graph& graph, MoreRows* more_rows) { return ViewTurner(graph, more_rows).run(); }

}  // namespace pipeshard
