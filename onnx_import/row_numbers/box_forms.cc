#include "onnx_import/row_numbers/box_forms.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "onnx_import/row_numbers/index_grid.h"

namespace pipeshard {
namespace {

using Places = std::vector<int64_t>;  // along one axis of the data, from 0

bool isRun(const Places& places) {
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i] != places[i - 1] + 1) return false;
  }
  return true;
}

bool isWholeAxis(const Places& places, int64_t size) {
  return std::ssize(places) == size && places[0] == 0 && isRun(places);
}

bool hasRepeats(Places places) {
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end()) != places.end();
}

class BoxForms {
 public:
  explicit BoxForms(Graph& graph)
      : graph_(graph), builder_(graph), producer_(computeUseDef(graph).producer) {}

  int run() {
    int changes = 0;
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (read(node, nodes) || write(node, nodes)) ++changes;
      nodes.push_back(std::move(node));
    }
    if (changes > 0) graph_.nodes = std::move(nodes);
    return changes;
  }

 private:
  bool read(Node& node, std::vector<Node>& nodes) {
    if (!node.is("GatherND") || node.inputs.size() != 2 || node.intAttribute("batch_dims", 0) != 0)
      return false;
    const std::optional<std::vector<Places>> box = boxOf(node);
    if (!box || box->size() < 3) return false;
    ValueId result = node.inputs[0];
    for (size_t axis = 0; axis < box->size(); ++axis) result = part(node, result, axis, (*box)[axis], nodes);
    become(node, result);
    return true;
  }

  bool write(Node& node, std::vector<Node>& nodes) {
    if (!node.is("ScatterND") || node.inputs.size() != 3 ||
        node.stringAttribute("reduction", "none") != "none" || !isKnown(node.inputs[2]) ||
        !isKnown(node.inputs[0]))
      return false;
    const std::optional<std::vector<Places>> box = boxOf(node);
    const Shape data = graph_.shape(node.inputs[0]);
    if (!box || data.size() < 3 || box->size() < 2 || std::any_of(box->begin(), box->end(), hasRepeats))
      return false;
    Shape written = data;
    std::vector<size_t> cut;  // the axes that are not whole
    for (size_t axis = 0; axis < box->size(); ++axis) {
      written[axis] = std::ssize((*box)[axis]);
      if (!isWholeAxis((*box)[axis], data[axis])) cut.push_back(axis);
    }
    if (graph_.shape(node.inputs[2]) != written) return false;
    // What is around the updates along an axis is what the axes before it have in the box.
    std::vector<ValueId> around{node.inputs[0]};
    for (size_t i = 0; i + 1 < cut.size(); ++i)
      around.push_back(part(node, around.back(), cut[i], (*box)[cut[i]], nodes));
    ValueId result = node.inputs[2];
    for (size_t i = cut.size(); i-- > 0;)
      result = merged(node, around[i], result, cut[i], (*box)[cut[i]], nodes);
    become(node, result);
    return true;
  }

  bool isKnown(ValueId value) const { return value.valid() && hasStaticType(graph_.value(value)); }

  // The places along each axis that the indices address, if they are a grid of these, axis by axis, and one
  // of the axes is whole.
  std::optional<std::vector<Places>> boxOf(const Node& node) const {
    if (!isKnown(node.inputs[0]) || !isKnown(node.inputs[1])) return std::nullopt;
    const std::optional<std::vector<IndexLine>> grid = indexGrid(graph_, producer_, node.inputs[1]);
    const Shape& data = graph_.shape(node.inputs[0]);
    const Shape& indices = graph_.shape(node.inputs[1]);
    if (!grid || grid->size() > data.size() || indices.size() != grid->size() + 1) return std::nullopt;
    bool any_whole = false;
    std::vector<Places> box;
    for (size_t axis = 0; axis < grid->size(); ++axis) {
      const IndexLine& line = (*grid)[axis];
      const bool own = line.axis < 0 ? indices[axis] == 1 : line.axis == static_cast<int>(axis);
      if (!own) return std::nullopt;
      box.push_back(line.numbers);
      for (int64_t& place : box.back()) {
        if (place < 0) place += data[axis];
        if (place < 0 || place >= data[axis]) return std::nullopt;
      }
      any_whole = any_whole || isWholeAxis(box.back(), data[axis]);
    }
    return any_whole ? std::optional(std::move(box)) : std::nullopt;
  }

  // x at these places of an axis; x itself for all of them.
  ValueId part(const Node& like, ValueId x, size_t axis, const Places& places, std::vector<Node>& nodes) {
    if (isWholeAxis(places, graph_.shape(x)[axis])) return x;
    if (isRun(places)) return slice(like, x, axis, places.front(), places.back() + 1, nodes);
    return emit(like, "Gather", {x, integers(like, places)}, x, axis, std::ssize(places), nodes);
  }

  ValueId slice(const Node& like, ValueId x, size_t axis, int64_t from, int64_t to,
                std::vector<Node>& nodes) {
    const ValueId made =
        emit(like, "Slice",
             {x, integers(like, {from}), integers(like, {to}), integers(like, {static_cast<int64_t>(axis)})},
             x, axis, to - from, nodes);
    nodes.back().attributes.clear();
    return made;
  }

  // x with the updates at these places of an axis.
  ValueId merged(const Node& like, ValueId x, ValueId updates, size_t axis, const Places& places,
                 std::vector<Node>& nodes) {
    const int64_t size = graph_.shape(x)[axis];
    if (!isRun(places)) {
      Places from(size);
      std::iota(from.begin(), from.end(), 0);
      for (size_t i = 0; i < places.size(); ++i) from[places[i]] = size + static_cast<int64_t>(i);
      const ValueId both = emit(like, "Concat", {x, updates}, x, axis, size + std::ssize(places), nodes);
      return emit(like, "Gather", {both, integers(like, from)}, x, axis, size, nodes);
    }
    std::vector<ValueId> parts;
    if (places.front() > 0) parts.push_back(slice(like, x, axis, 0, places.front(), nodes));
    parts.push_back(updates);
    if (places.back() + 1 < size) parts.push_back(slice(like, x, axis, places.back() + 1, size, nodes));
    return emit(like, "Concat", std::move(parts), x, axis, size, nodes);
  }

  // Adds an operator along an axis. Its output is like x, of another size along the axis. Names are those of
  // the node: the same for every size of the batch.
  ValueId emit(const Node& like, const char* op_type, std::vector<ValueId> inputs, ValueId x, size_t axis,
               int64_t size, std::vector<Node>& nodes) {
    Shape shape = graph_.shape(x);
    shape[axis] = size;
    const std::string name = graph_.value(like.outputs[0]).name + "/" + op_type;
    Node node = like;
    node.op_type = op_type;
    node.attributes = {{"axis", static_cast<int64_t>(axis)}};
    node.inputs = std::move(inputs);
    node.outputs = {builder_.addValue(name, graph_.dataType(x), std::move(shape))};
    node.name = graph_.value(node.outputs[0]).name;
    nodes.push_back(std::move(node));
    return nodes.back().outputs[0];
  }

  ValueId integers(const Node& like, const std::vector<int64_t>& numbers) {
    return builder_.addConstant(graph_.value(like.outputs[0]).name + "/places",
                                makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }

  static void become(Node& node, ValueId result) {
    node.op_type = "Identity";
    node.attributes.clear();
    node.inputs = {result};
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::vector<NodeId> producer_;  // by value, of the graph as given
};

}  // namespace

int writeBoxes(Graph& graph) {
  const bool any = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                               [](const Node& node) { return node.is("GatherND") || node.is("ScatterND"); });
  return any ? BoxForms(graph).run() : 0;
}

}  // namespace pipeshard
