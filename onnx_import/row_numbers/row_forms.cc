#include "onnx_import/row_numbers/row_forms.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace pipeshard {
namespace {

bool isStaticallyShaped(const Graph& graph, ValueId id) {
  return id.valid() && graph.value(id).shape && isStatic(*graph.value(id).shape);
}

bool countsUp(const std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

class RowForms {
 public:
  explicit RowForms(Graph& graph) : graph_(graph), builder_(graph), producer_(graph.values.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (ValueId output : graph.nodes[n].outputs) {
        if (output.valid()) producer_[output.index()] = NodeId(n);
      }
    }
  }

  int run() {
    int changes = 0;
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (gatherAllRows(node) || gatherColumns(node) || gatherInRows(node, nodes) || gatherWhole(node) ||
          gatherOfRows(node, nodes) || scatterWhole(node) || scatterColumns(node) || expandTile(node, nodes))
        ++changes;
      nodes.push_back(std::move(node));
    }
    if (changes > 0) graph_.nodes = std::move(nodes);
    return changes;
  }

 private:
  const Node* producerOf(ValueId value) const {
    const bool made = value.valid() && value.index() < producer_.size() && producer_[value.index()].valid();
    return made ? &graph_.node(producer_[value.index()]) : nullptr;
  }
  const Constant* constantInput(const Node& node, size_t input) const {
    return node.inputs[input].valid() ? graph_.constant(node.inputs[input]) : nullptr;
  }
  bool isPlainGatherND(const Node& node) const {
    return node.is("GatherND") && node.inputs.size() == 2 && node.intAttribute("batch_dims", 0) == 0 &&
           isStaticallyShaped(graph_, node.inputs[0]) && graph_.shape(node.inputs[0]).size() >= 2;
  }

  // x[arange(B)]
  bool gatherAllRows(Node& node) const {
    if (!node.is("GatherND") || node.inputs.size() != 2 || !isStaticallyShaped(graph_, node.inputs[0]))
      return false;
    const Constant* indices = constantInput(node, 1);
    const Shape& data = graph_.shape(node.inputs[0]);
    if (indices == nullptr || data.empty() || indices->shape != Shape{data[0], 1} ||
        node.intAttribute("batch_dims", 0) != 0 || !countsUp(integerElements(*indices)))
      return false;
    node.op_type = "Identity";
    node.attributes.clear();
    node.inputs.resize(1);
    return true;
  }

  // Pairs (row, i) with the same i in every row: so exporters write masks.
  bool gatherColumns(Node& node) {
    if (!isPlainGatherND(node)) return false;
    const std::optional<std::vector<int64_t>> columns =
        columnsOf(node.inputs[1], graph_.shape(node.inputs[0])[0]);
    if (!columns) return false;
    const Shape& indices = graph_.shape(node.inputs[1]);
    const Shape shape(indices.begin() + 1, indices.end() - 1);
    node.op_type = "Gather";
    node.attributes = {{"axis", int64_t{1}}};
    node.inputs[1] = builder_.addConstant("columns", makeConstant<int64_t>(shape, *columns));
    return true;
  }

  // The same where such places are written: x[:, 1:] = y.
  bool scatterColumns(Node& node) {
    if (!isPlainScatterND(node) || graph_.shape(node.inputs[0]).size() != 2) return false;
    const Shape data = graph_.shape(node.inputs[0]), updates = graph_.shape(node.inputs[2]);
    const std::optional<std::vector<int64_t>> columns = columnsOf(node.inputs[1], data[0]);
    if (!columns || updates != Shape{data[0], std::ssize(*columns)}) return false;
    std::vector<int64_t> all;
    for (int64_t row = 0; row < data[0]; ++row) all.insert(all.end(), columns->begin(), columns->end());
    node.op_type = "ScatterElements";
    node.attributes = {{"axis", int64_t{1}}};
    node.inputs[1] = builder_.addConstant("columns", makeConstant<int64_t>(updates, all));
    return true;
  }

  // The columns of indices [B, ..., 2] that are (row, column), if every row has the same.
  std::optional<std::vector<int64_t>> columnsOf(ValueId value, int64_t rows) const {
    if (!isStaticallyShaped(graph_, value) || rows == 0) return std::nullopt;
    const Shape& shape = graph_.shape(value);
    if (shape.size() < 2 || shape.back() != 2 || shape[0] != rows) return std::nullopt;
    std::vector<int64_t> columns;
    if (const Constant* constant = graph_.constant(value)) {
      const std::vector<int64_t> pairs = integerElements(*constant);
      const size_t of_row = pairs.size() / rows;
      for (size_t i = 0; i < pairs.size(); i += 2) {
        const auto row = static_cast<int64_t>(i / of_row);
        if (pairs[i] != row || pairs[i + 1] != pairs[i % of_row + 1]) return std::nullopt;
      }
      for (size_t i = 1; i < of_row; i += 2) columns.push_back(pairs[i]);
      return columns;
    }
    // of a large batch
    const Node* concat = producerOf(value);
    if (concat == nullptr || !concat->is("Concat") || concat->inputs.size() != 2) return std::nullopt;
    const int64_t axis = concat->intAttribute("axis", 0);
    if ((axis != -1 && axis != std::ssize(shape) - 1) || !isRowColumn(concat->inputs[0], rows))
      return std::nullopt;
    const std::optional<Constant> row = oneRow(concat->inputs[1], rows);
    return row ? std::optional(integerElements(*row)) : std::nullopt;
  }

  // What a value of a large batch is made from, where it was too large to be folded: the input of a node that
  // leaves the rows in their order, along axis 0.
  const Node* sameRows(ValueId value, int64_t rows) const {
    const Node* node = producerOf(value);
    const bool known = node != nullptr && (node->is("Unsqueeze") || node->is("Reshape") ||
                                           node->is("Expand") || node->is("Identity"));
    if (!known || !isStaticallyShaped(graph_, value) || !isStaticallyShaped(graph_, node->inputs[0]))
      return nullptr;
    const Shape &from = graph_.shape(node->inputs[0]), &to = graph_.shape(value);
    if (from.empty() || to.empty() || to[0] != rows) return nullptr;
    if (node->is("Expand")) return from.size() == to.size() ? node : nullptr;
    return from[0] == to[0] ? node : nullptr;
  }

  // [B, ..., 1] with b everywhere in row b.
  bool isRowColumn(ValueId value, int64_t rows) const {
    if (!value.valid() || !isStaticallyShaped(graph_, value)) return false;
    const Shape& shape = graph_.shape(value);
    return shape.size() >= 2 && shape.back() == 1 && numbersRows(value, rows);
  }

  bool numbersRows(ValueId value, int64_t rows) const {
    const Constant* constant = value.valid() ? graph_.constant(value) : nullptr;
    if (constant == nullptr) {
      const Node* node = sameRows(value, rows);
      return node != nullptr && graph_.shape(node->inputs[0])[0] == rows &&
             numbersRows(node->inputs[0], rows);
    }
    if (constant->shape.empty() || constant->shape[0] != rows || rows == 0 || !isInteger(constant->data_type))
      return false;
    const std::vector<int64_t> numbers = integerElements(*constant);
    const int64_t of_row = std::ssize(numbers) / rows;
    for (int64_t i = 0; i < std::ssize(numbers); ++i) {
      if (numbers[i] != i / of_row) return false;
    }
    return true;
  }

  // The elements of a row, where all rows are the same constants; as [1, ...].
  std::optional<Constant> oneRow(ValueId value, int64_t rows) const {
    if (const Constant* constant = value.valid() ? graph_.constant(value) : nullptr) {
      if (constant->shape.empty() || !isInteger(constant->data_type)) return std::nullopt;
      Shape shape = constant->shape;
      std::vector<int64_t> numbers = integerElements(*constant);
      const size_t of_row = shape[0] == 0 ? 0 : numbers.size() / shape[0];
      for (size_t i = of_row; i < numbers.size(); ++i) {
        if (numbers[i] != numbers[i % of_row]) return std::nullopt;
      }
      shape[0] = 1;
      numbers.resize(of_row);
      return makeConstant<int64_t>(shape, numbers);
    }
    const Node* node = sameRows(value, rows);
    if (node == nullptr) return std::nullopt;
    std::optional<Constant> row = oneRow(node->inputs[0], rows);
    if (!row) return std::nullopt;
    Shape shape = graph_.shape(value);
    shape[0] = 1;
    if (elementCount(shape) != elementCount(row->shape)) return std::nullopt;  // repeated inside the row
    row->shape = shape;
    return row;
  }

  // Which input of a Concat of indices numbers the rows, and so which axis of the data they are. Others
  // before it index one axis each.
  std::optional<size_t> rowInput(const Node& concat, const Shape& data) const {
    for (size_t i = 0; i < std::min(concat.inputs.size(), data.size()); ++i) {
      const ValueId column = concat.inputs[i];
      if (isRowColumn(column, data[i])) return i;
      if (!isStaticallyShaped(graph_, column) || graph_.shape(column).back() != 1) return std::nullopt;
    }
    return std::nullopt;
  }

  // Row numbers beside indices that depend on data, which is what pooling reads of each row. Rows that are
  // not the first axis (x[i, arange(B)], where time comes first) become it.
  bool gatherInRows(Node& node, std::vector<Node>& nodes) {
    if (!isPlainGatherND(node)) return false;
    const Node* concat = producerOf(node.inputs[1]);
    if (concat == nullptr || !concat->is("Concat") || concat->inputs.size() < 2 ||
        !isStaticallyShaped(graph_, node.inputs[1]))
      return false;
    const Shape& indices = graph_.shape(node.inputs[1]);
    const int64_t axis = concat->intAttribute("axis", 0);
    const bool columns = indices.size() >= 2 && (axis == -1 || axis == std::ssize(indices) - 1);
    const std::optional<size_t> row =
        columns ? rowInput(*concat, graph_.shape(node.inputs[0])) : std::nullopt;
    if (!row) return false;
    std::vector<ValueId> rest = concat->inputs;
    rest.erase(rest.begin() + static_cast<int64_t>(*row));
    ValueId places = rest[0];
    if (rest.size() > 1) {
      Node made = *concat;
      Shape shape = indices;
      --shape.back();
      places = builder_.addValue("places", graph_.dataType(node.inputs[1]), shape);
      made.name = graph_.value(places).name;
      made.inputs = std::move(rest);
      made.outputs = {places};
      nodes.push_back(std::move(made));
    }
    if (*row > 0) nodes.push_back(axisFirst(node, *row));
    node.inputs = {*row > 0 ? nodes.back().outputs[0] : node.inputs[0], places};
    node.attributes["batch_dims"] = int64_t{1};
    return true;
  }

  // The Transpose that puts an axis of a node's data before the others.
  Node axisFirst(const Node& reader, size_t axis) {
    Shape shape = graph_.shape(reader.inputs[0]);
    std::vector<int64_t> permutation(shape.size());
    std::iota(permutation.begin(), permutation.end(), 0);
    const auto from = static_cast<int64_t>(axis);
    std::rotate(permutation.begin(), permutation.begin() + from, permutation.begin() + from + 1);
    std::rotate(shape.begin(), shape.begin() + from, shape.begin() + from + 1);
    Node turn = reader;
    turn.op_type = "Transpose";
    turn.attributes = {{"perm", permutation}};
    turn.inputs = {reader.inputs[0]};
    turn.outputs = {builder_.addValue("rows_first", graph_.dataType(reader.inputs[0]), shape)};
    turn.name = graph_.value(turn.outputs[0]).name;
    return turn;
  }

  bool gatherWhole(Node& node) {
    if (!node.is("Gather") || node.inputs.size() != 2 || node.intAttribute("axis", 0) != 0) return false;
    const Constant* indices = constantInput(node, 1);
    const Node* flat = producerOf(node.inputs[0]);
    if (indices == nullptr || flat == nullptr || !flat->is("Reshape") ||
        !isStaticallyShaped(graph_, node.inputs[0]))
      return false;
    const Shape& data = graph_.shape(node.inputs[0]);
    if (data.size() != 1 || elementCount(indices->shape) != data[0] || !countsUp(integerElements(*indices)))
      return false;
    node.op_type = "Reshape";
    node.attributes.clear();
    node.inputs = {
        flat->inputs[0],
        builder_.addConstant("sizes", makeConstant<int64_t>({std::ssize(indices->shape)}, indices->shape))};
    return true;
  }

  // What a flat tensor (its first axes merged) is made from, if its rows are the first axis there.
  const Node* mergedRows(ValueId flat, int64_t rows) const {
    const Node* node = producerOf(flat);
    const bool merges = node != nullptr && (node->is("Reshape") || node->is("Flatten"));
    if (!merges || !isStaticallyShaped(graph_, flat) || !isStaticallyShaped(graph_, node->inputs[0]))
      return nullptr;
    const Shape &x = graph_.shape(node->inputs[0]), &merged = graph_.shape(flat);
    const bool whole = x.size() >= 2 && x[0] == rows && rows > 0 && !merged.empty() && elementCount(x) > 0;
    return whole && merged[0] % rows == 0 ? node : nullptr;
  }

  // Elements of the flat tensor: row * size + place, the same places of every row or those that data give.
  bool gatherOfRows(Node& node, std::vector<Node>& nodes) {
    if (!node.is("Gather") || node.inputs.size() != 2 || node.intAttribute("axis", 0) != 0 ||
        !isStaticallyShaped(graph_, node.inputs[1]) || graph_.shape(node.inputs[1]).empty())
      return false;
    const Shape indices = graph_.shape(node.inputs[1]);
    const Node* flat = mergedRows(node.inputs[0], indices[0]);
    if (flat == nullptr) return false;
    const int64_t size = graph_.shape(node.inputs[0])[0] / indices[0];
    const std::optional<std::vector<int64_t>> places = placesOf(node.inputs[1], indices[0], size);
    const ValueId given = places ? ValueId() : givenPlaces(node.inputs[1], size);
    if (!places && !given.valid()) return false;
    Shape shape = graph_.shape(node.inputs[0]);
    shape[0] = size;
    shape.insert(shape.begin(), indices[0]);
    const ValueId rows = builder_.addValue("rows", graph_.dataType(node.inputs[0]), shape);
    nodes.push_back(withShape(node, "Reshape", flat->inputs[0], shape, rows));
    if (places) {
      const Shape of_row(indices.begin() + 1, indices.end());
      node.inputs = {rows, builder_.addConstant("places", makeConstant<int64_t>(of_row, *places))};
      node.attributes["axis"] = int64_t{1};
    } else {
      Shape column = indices;
      column.push_back(1);
      const ValueId index = builder_.addValue("places", graph_.dataType(given), column);
      nodes.push_back(withShape(node, "Reshape", given, column, index));
      node.op_type = "GatherND";
      node.inputs = {rows, index};
      node.attributes = {{"batch_dims", int64_t{1}}};
    }
    return true;
  }

  // What is added to row * size, if it is of the indices' shape and no constant; invalid for other indices.
  ValueId givenPlaces(ValueId value, int64_t size) const {
    const Node* sum = producerOf(value);
    if (sum == nullptr || !sum->is("Add")) return {};
    const Shape& shape = graph_.shape(value);
    for (const size_t first : {0, 1}) {
      const ValueId places = sum->inputs[1 - first];
      const Constant* starts = constantInput(*sum, first);
      if (starts != nullptr && startsRows(*starts, shape, size) && isStaticallyShaped(graph_, places) &&
          graph_.shape(places) == shape)
        return places;
    }
    return {};
  }

  // The places of indices into rows of `size`; of a large batch the indices may be a sum that is not folded.
  std::optional<std::vector<int64_t>> placesOf(ValueId value, int64_t rows, int64_t size) const {
    if (const Constant* constant = graph_.constant(value)) {
      if (!isInteger(constant->data_type)) return std::nullopt;
      return placesInRows(integerElements(*constant), rows, size);
    }
    std::vector<const Constant*> addends;
    if (!collectAddends(value, addends)) return std::nullopt;
    Shape shape = graph_.shape(value);
    shape[0] = 1;
    std::vector<int64_t> places(elementCount(shape));
    bool counts_rows = false;
    for (const Constant* addend : addends) {
      const std::optional<Constant> of_row =
          counts_rows ? std::nullopt : withoutRows(*addend, rows, size, shape.size());
      counts_rows = counts_rows || of_row;
      if (!addBroadcast(of_row ? *of_row : *addend, shape, places)) return std::nullopt;
    }
    if (!counts_rows) return std::nullopt;
    return placesInRows(std::move(places), 1, size);
  }

  // Of row * size + place, with the same places in each row: the places, as [1, ...].
  static std::optional<Constant> withoutRows(const Constant& addend, int64_t rows, int64_t size,
                                             size_t rank) {
    if (addend.shape.size() != rank || addend.shape[0] != rows) return std::nullopt;
    const std::optional<std::vector<int64_t>> places = placesInRows(integerElements(addend), rows, size);
    if (!places) return std::nullopt;
    Shape shape = addend.shape;
    shape[0] = 1;
    return makeConstant<int64_t>(shape, *places);
  }

  // The constants that sums of sums add up; false if something else is among them.
  bool collectAddends(ValueId value, std::vector<const Constant*>& addends, size_t depth = 0) const {
    constexpr size_t kMost = 8;
    if (const Constant* constant = value.valid() ? graph_.constant(value) : nullptr) {
      addends.push_back(constant);
      return isInteger(constant->data_type) && addends.size() <= kMost;
    }
    const Node* sum = producerOf(value);
    return sum != nullptr && sum->is("Add") && depth < kMost &&
           collectAddends(sum->inputs[0], addends, depth + 1) &&
           collectAddends(sum->inputs[1], addends, depth + 1);
  }

  // numbers, of `shape`, += the constant, if it can be broadcast to it.
  static bool addBroadcast(const Constant& constant, const Shape& shape, std::vector<int64_t>& numbers) {
    const size_t rank = constant.shape.size();
    if (rank > shape.size()) return false;
    const size_t added = shape.size() - rank;
    for (size_t axis = 0; axis < rank; ++axis) {
      if (constant.shape[axis] != 1 && constant.shape[axis] != shape[axis + added]) return false;
    }
    const std::vector<int64_t> elements = integerElements(constant);
    for (int64_t i = 0; i < std::ssize(numbers); ++i) {
      int64_t rest = i, at = 0, stride = 1;
      for (size_t axis = rank; axis-- > 0; rest /= shape[axis + added]) {
        if (constant.shape[axis] > 1) at += rest % shape[axis + added] * stride;
        stride *= constant.shape[axis];
      }
      numbers[i] += elements[at];
    }
    return true;
  }

  // Whether it holds row * size, as [B, 1, ..., 1], for indices of that shape.
  static bool startsRows(const Constant& starts, const Shape& indices, int64_t size) {
    Shape shape(indices.size(), 1);
    shape[0] = indices[0];
    return starts.shape == shape && isInteger(starts.data_type) &&
           placesInRows(integerElements(starts), indices[0], size) == std::vector<int64_t>{0};
  }

  // Of `rows` times as many indices: row * size + place, with the same places in each; nothing for others.
  static std::optional<std::vector<int64_t>> placesInRows(std::vector<int64_t> indices, int64_t rows,
                                                          int64_t size) {
    const size_t count = indices.size() / rows;
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0) indices[i] += rows * size;
      indices[i] -= static_cast<int64_t>(i / count) * size;
      if (indices[i] < 0 || indices[i] >= size || indices[i] != indices[i % count]) return std::nullopt;
    }
    indices.resize(count);
    return indices;
  }

  // Every axis that is repeated as (repeats, size). Where nothing is repeated the first one may be the batch,
  // of one row.
  bool expandTile(Node& node, std::vector<Node>& nodes) {
    if (!node.is("Tile") || node.inputs.size() != 2 || !isStaticallyShaped(graph_, node.inputs[0]))
      return false;
    const Constant* constant = constantInput(node, 1);
    const Shape from = graph_.shape(node.inputs[0]);
    if (constant == nullptr || constant->shape != Shape{std::ssize(from)}) return false;
    const std::vector<int64_t> repeats = integerElements(*constant);
    const bool nothing =
        std::all_of(repeats.begin(), repeats.end(), [](int64_t count) { return count == 1; });
    Shape apart, repeated, whole;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] != 1 && (repeats[i] > 1 || (nothing && i == 0))) {
        apart.push_back(1);
        repeated.push_back(repeats[i]);
      }
      apart.push_back(from[i]);
      repeated.push_back(from[i] == 1 ? repeats[i] : from[i]);
      whole.push_back(from[i] * repeats[i]);
    }
    if (elementCount(whole) == 0) return false;
    const DataType type = graph_.dataType(node.inputs[0]);
    if (apart != from) {
      const ValueId given = builder_.addValue("apart", type, apart);
      nodes.push_back(withShape(node, "Reshape", node.inputs[0], apart, given));
      const ValueId many = builder_.addValue("repeated", type, repeated);
      nodes.push_back(withShape(node, "Expand", given, repeated, many));
      node = withShape(node, "Reshape", many, whole, node.outputs[0]);
    } else {
      node = withShape(node, "Expand", node.inputs[0], whole, node.outputs[0]);
    }
    return true;
  }

  Node withShape(const Node& like, const char* op_type, ValueId input, const Shape& shape, ValueId output) {
    Node node = like;
    node.op_type = op_type;
    node.attributes.clear();
    const ValueId sizes = builder_.addConstant("sizes", makeConstant<int64_t>({std::ssize(shape)}, shape));
    node.inputs = {input, sizes};
    node.outputs = {output};
    if (output != like.outputs[0]) node.name = graph_.value(output).name;
    return node;
  }

  bool isPlainScatterND(const Node& node) const {
    return node.is("ScatterND") && node.inputs.size() == 3 &&
           node.stringAttribute("reduction", "none") == "none" &&
           isStaticallyShaped(graph_, node.inputs[0]) && isStaticallyShaped(graph_, node.inputs[2]);
  }

  bool scatterWhole(Node& node) const {
    if (!isPlainScatterND(node)) return false;
    const Constant* indices = constantInput(node, 1);
    if (indices == nullptr || indices->shape.size() != 2 || indices->shape[1] != 1) return false;
    const Shape& data = graph_.shape(node.inputs[0]);
    if (data.empty() || data[0] != indices->shape[0] || graph_.shape(node.inputs[2]) != data ||
        !countsUp(integerElements(*indices)))
      return false;
    node.op_type = "Identity";
    node.attributes.clear();
    node.inputs = {node.inputs[2]};
    return true;
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::vector<NodeId> producer_;  // by value, of the graph as given
};

}  // namespace

int writeWithoutRowNumbers(Graph& graph) { return RowForms(graph).run(); }

}  // namespace pipeshard
