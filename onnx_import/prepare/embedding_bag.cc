#include "onnx_import/prepare/embedding_bag.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/evaluator.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

constexpr int kLongestChain = 16;  // nodes that are followed from a value to where it comes from

// A product of a number and symbolic dimensions, before they are bound: 5 * batch.
struct Extent {
  int64_t factor = 1;
  std::multiset<std::string> symbols;
  friend bool operator==(const Extent&, const Extent&) = default;
};
using MaybeExtent = std::optional<Extent>;

MaybeExtent times(const MaybeExtent& a, const MaybeExtent& b) {
  Extent product;
  if (!a || !b || __builtin_mul_overflow(a->factor, b->factor, &product.factor)) return std::nullopt;
  product.symbols = a->symbols;
  product.symbols.insert(b->symbols.begin(), b->symbols.end());
  return product;
}

// Nothing if it does not go without a rest whatever the symbols stand for.
MaybeExtent dividedBy(const Extent& whole, const Extent& part) {
  if (part.factor <= 0 || whole.factor % part.factor != 0 ||
      !std::includes(whole.symbols.begin(), whole.symbols.end(), part.symbols.begin(), part.symbols.end()))
    return std::nullopt;
  Extent quotient{whole.factor / part.factor, {}};
  std::set_difference(whole.symbols.begin(), whole.symbols.end(), part.symbols.begin(), part.symbols.end(),
                      std::inserter(quotient.symbols, quotient.symbols.end()));
  return quotient;
}

std::optional<int64_t> wholeNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// "5*batch"; any other arithmetic is one symbol.
Extent symbolicExtent(const std::string& symbol) {
  Extent product;
  for (size_t begin = 0; begin <= symbol.size();) {
    const size_t end = std::min(symbol.find('*', begin), symbol.size());
    const std::string part = symbol.substr(begin, end - begin);
    const std::optional<int64_t> number = wholeNumber(part);
    const bool name = std::all_of(part.begin(), part.end(),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (part.empty() || !name || (number && (product.factor != 1 || *number <= 0))) return {1, {symbol}};
    if (number) {
      product.factor = *number;
    } else {
      product.symbols.insert(part);
    }
    begin = end + 1;
  }
  return product;
}

// embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
//               include_last_offset, padding_idx)
struct BagCall {
  enum class Mode { kSum, kMean, kMax };
  std::string offsets;  // their name in the call
  Mode mode = Mode::kSum;
  bool scales_gradient = false;
  bool weighted = false;
  bool lists_end = false;  // the last offset is where the last bag ends
  std::optional<int64_t> padding;
};

std::optional<BagCall> parseBagCall(const ExportedCall& call) {
  std::vector<std::string> given;
  for (size_t begin = 0; begin < call.text.size();) {
    const size_t end = std::min(call.text.find(", ", begin), call.text.size());
    given.push_back(call.text.substr(begin, end - begin));
    begin = end + 2;
  }
  const auto argument = [&](size_t place, std::string_view unsaid) {
    return place < given.size() ? std::string_view(given[place]) : unsaid;
  };
  const std::optional<int64_t> mode = wholeNumber(argument(4, "0"));
  if (!argument(2, "").starts_with('%') || !mode || *mode < 0 || *mode > 2) return std::nullopt;
  BagCall bag;
  bag.offsets = argument(2, "").substr(1);
  bag.mode = static_cast<BagCall::Mode>(*mode);
  bag.scales_gradient = argument(3, "False") == "True";
  bag.weighted = argument(6, "None") != "None";
  bag.lists_end = argument(7, "False") == "True";
  bag.padding = wholeNumber(argument(8, "None"));
  // There -1 stands for none.
  if (call.function.find("._embedding_bag") != std::string::npos && bag.padding.value_or(0) < 0)
    bag.padding.reset();
  return bag;
}

bool hasOperands(const Node& node, size_t count) {
  return node.inputs.size() >= count &&
         std::all_of(node.inputs.begin(), node.inputs.begin() + count, [](ValueId id) { return id.valid(); });
}

bool isBagCall(const ExportedCall& call) { return call.function.find("embedding_bag") != std::string::npos; }

// What the offsets say of bags of equal size.
struct BagLayout {
  Extent count;
  MaybeExtent size;  // nothing: the offsets are not in memory, and the indices must tell
};

// Where values of the graph come from, and how large they are.
class BagSources {
 public:
  explicit BagSources(const Graph& graph) : graph_(graph), producer_(computeUseDef(graph).producer) {}

  const Node* producerOf(ValueId value) const {
    const bool made = value.valid() && value.index() < producer_.size() && producer_[value.index()].valid();
    return made ? &graph_.node(producer_[value.index()]) : nullptr;
  }

  // The extents of its axes; empty too where they are not known.
  std::vector<Extent> axesOf(ValueId id) const {
    if (!id.valid()) return {};
    const Value& value = graph_.value(id);
    std::vector<Extent> axes;
    for (size_t axis = 0; value.shape && axis < value.shape->size(); ++axis) {
      const bool symbolic = axis < value.symbols.size() && !value.symbols[axis].empty();
      if (value.shape->at(axis) < 0 && !symbolic) return {};
      axes.push_back(value.shape->at(axis) >= 0 ? Extent{value.shape->at(axis), {}}
                                                : symbolicExtent(value.symbols[axis]));
    }
    return axes;
  }

  // Of a tensor that is not a scalar.
  MaybeExtent elementsOf(ValueId id) const {
    const std::vector<Extent> axes = axesOf(id);
    MaybeExtent elements;
    for (size_t axis = 0; axis < axes.size(); ++axis)
      elements = axis == 0 ? MaybeExtent(axes[0]) : times(elements, axes[axis]);
    return elements;
  }

  // The whole number that a scalar is, in terms of the sizes of the inputs.
  MaybeExtent numberIn(ValueId id, int depth = 0) const {
    if (const Constant* constant = id.valid() ? graph_.constant(id) : nullptr) return numberOf(*constant);
    const Node* node = producerOf(id);
    if (node == nullptr || depth == kLongestChain) return std::nullopt;
    if (node->is("Constant")) {
      const std::optional<std::vector<Constant>> content = evaluateNode(*node, {});
      return content ? numberOf(content->front()) : std::nullopt;
    }
    if (!hasOperands(*node, node->is("Where") ? 3 : node->is("Mul") ? 2 : 1)) return std::nullopt;
    const ValueId input = node->inputs[0];
    if (node->is("Mul")) return times(numberIn(input, depth + 1), numberIn(node->inputs[1], depth + 1));
    if (node->is("Size")) return elementsOf(input);
    if (node->is("Shape")) return oneAxis(*node);
    if (node->is("Where")) {
      const MaybeExtent one = numberIn(node->inputs[1], depth + 1);
      return one == numberIn(node->inputs[2], depth + 1) ? one : std::nullopt;
    }
    const bool same = node->is("Cast") || node->is("Identity") || node->is("Squeeze") ||
                      node->is("Unsqueeze") || node->is("Reshape") || node->is("Floor") || node->is("Ceil") ||
                      (node->is("Concat") && node->inputs.size() == 1);
    return same ? numberIn(input, depth + 1) : std::nullopt;
  }

 private:
  static MaybeExtent numberOf(const Constant& constant) {
    constexpr double kMost = 1e15;
    const DataType type = constant.data_type;
    const bool known = type == DataType::kInt64 || type == DataType::kInt32 || type == DataType::kFloat32 ||
                       type == DataType::kFloat64;
    if (!known || elementCount(constant.shape) != 1) return std::nullopt;
    const double number = numericElements(constant)[0];
    if (!(number >= 0 && number <= kMost) || number != std::floor(number)) return std::nullopt;
    return Extent{static_cast<int64_t>(number), {}};
  }

  MaybeExtent oneAxis(const Node& shape) const {
    const std::vector<Extent> axes = axesOf(shape.inputs[0]);
    const int64_t rank = std::ssize(axes);
    int64_t first = shape.intAttribute("start", 0), last = shape.intAttribute("end", rank);
    if (first < 0) first += rank;
    if (last < 0) last += rank;
    return first >= 0 && last == first + 1 && last <= rank ? MaybeExtent(axes[first]) : std::nullopt;
  }

  const Graph& graph_;
  std::vector<NodeId> producer_;
};

// Writes the nodes that take the place of one call's ConcatFromSequence.
class BagWriter {
 public:
  BagWriter(Graph& graph, GraphBuilder& builder, const Node& replaced)
      : graph_(graph), builder_(builder), replaced_(replaced) {}

  // A call's names begin with the name of what it gives.
  ValueId add(const char* op_type, std::vector<ValueId> inputs, DataType type,
              std::map<std::string, Attribute> attributes = {}) {
    const ValueId made = value(op_type, type);
    addTo(made, op_type, std::move(inputs), std::move(attributes));
    return made;
  }
  void addLast(const char* op_type, std::vector<ValueId> inputs,
               std::map<std::string, Attribute> attributes = {}) {
    addTo(replaced_.outputs[0], op_type, std::move(inputs), std::move(attributes));
  }
  ValueId number(DataType type, double number) { return constant("number", makeScalar(type, number)); }
  ValueId integers(const std::vector<int64_t>& numbers) {
    return constant("integers", makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }
  std::vector<Node> take() { return std::move(nodes_); }

 private:
  std::string prefixed(const char* name) const {
    return graph_.value(replaced_.outputs[0]).name + "_" + name;
  }
  ValueId value(const char* op_type, DataType type) {
    const ValueId made = builder_.addValue(prefixed(op_type), type, {});
    graph_.value(made).shape.reset();
    return made;
  }
  ValueId constant(const char* name, Constant content) {
    const ValueId id = builder_.addConstant(prefixed(name), std::move(content));
    graph_.value(id).metadata.emplace_back(kConstantMark, "made");
    return id;
  }
  void addTo(ValueId output, const char* op_type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes) {
    Node node;
    node.op_type = op_type;
    node.opset_version = replaced_.opset_version;
    node.name = graph_.value(output).name;
    node.metadata = replaced_.metadata;
    node.inputs = std::move(inputs);
    node.outputs = {output};
    node.attributes = std::move(attributes);
    nodes_.push_back(std::move(node));
  }

  Graph& graph_;
  GraphBuilder& builder_;
  const Node& replaced_;
  std::vector<Node> nodes_;
};

class EmbeddingBags {
 public:
  explicit EmbeddingBags(Graph& graph) : graph_(graph), builder_(graph), sources_(graph) {}

  int run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!node.is("ConcatFromSequence") || !hasOperands(node, 1)) continue;
      const ExportedCall call = exportedCall(node);
      if (isBagCall(call)) rewrite(n, call);
    }
    if (!written_.empty()) replace();
    return static_cast<int>(written_.size());
  }

 private:
  // The rows of all bags, one after the other.
  struct Rows {
    const Node* gather = nullptr;
    const Node* product = nullptr;  // with per_sample_weights, or with ones
  };

  [[noreturn]] static void refuse(const Node& node, std::string_view reason) {
    fail(ErrorCode::kBadModel, "{}: a call of embedding_bag {}", describeNode(node), reason);
  }

  void rewrite(size_t place, const ExportedCall& call) {
    constexpr int kAxesAreInputs = 18;  // of reductions, from this opset on
    const Node& node = graph_.nodes[place];
    const std::optional<BagCall> bag = parseBagCall(call);
    const Node* loop = sources_.producerOf(node.inputs[0]);
    const std::vector<ValueId> read = loop != nullptr ? capturesOf(*loop) : std::vector<ValueId>();
    const Rows rows = rowsAmong(read);
    if (!bag || rows.gather == nullptr || (bag->weighted && rows.product == nullptr))
      refuse(node, "in a form that pipeshard does not know; write it as torch.nn.Embedding and a reduction");
    if (node.opset_version < kAxesAreInputs)
      refuse(node, "of an old opset; export the model with opset_version=18 or newer");
    if (bag->scales_gradient) {
      refuse(
          node,
          "with scale_grad_by_freq, which the file does not have, so that it would be trained otherwise than "
          "in PyTorch; set it to False");
    }
    const std::optional<BagLayout> layout =
        bag->lists_end ? std::nullopt : layoutOf(offsetsAmong(read, *bag));
    if (!layout) refuseSizes(node);
    BagWriter writer(graph_, builder_, node);
    const ValueId indices = inBags(rows.gather->inputs[1], *layout, node, writer);
    const ValueId weights =
        bag->weighted ? inBags(rows.product->inputs[1], *layout, node, writer) : ValueId();
    write(*bag, {rows.gather->inputs[0], indices, weights}, node, writer);
    written_[place] = writer.take();
  }

  [[noreturn]] static void refuseSizes(const Node& node) {
    refuse(node,
           "with bags whose sizes depend on data (a 1-D input with offsets); give the module a 2-D input "
           "[batch, n] and no offsets, so that every bag has n indices (padding_idx fills up shorter ones)");
  }

  std::vector<ValueId> capturesOf(const Node& node) {
    std::vector<std::string> names;
    collectCaptures(node, names);
    std::vector<ValueId> ids;
    for (const std::string& name : names) {
      if (const std::optional<ValueId> id = builder_.find(name)) ids.push_back(*id);
    }
    return ids;
  }

  Rows rowsAmong(const std::vector<ValueId>& read) const {
    for (ValueId id : read) {
      Rows rows;
      for (int step = 0; step < kLongestChain; ++step) {
        const Node* node = sources_.producerOf(id);
        if (node == nullptr || !hasOperands(*node, 1)) break;
        if (node->is("Gather") && hasOperands(*node, 2) && node->intAttribute("axis", 0) == 0 &&
            isBagCall(exportedCall(*node))) {
          rows.gather = node;
          return rows;
        }
        if (node->is("Mul") && hasOperands(*node, 2)) {
          rows.product = node;
        } else if (!node->is("Cast") && !node->is("Identity")) {
          break;
        }
        id = node->inputs[0];
      }
    }
    return {};
  }

  // With the end of the last bag behind them, where that has been computed before.
  ValueId offsetsAmong(const std::vector<ValueId>& read, const BagCall& bag) const {
    for (ValueId id : read) {
      const Node* node = sources_.producerOf(id);
      if (node != nullptr && node->is("Concat") && hasOperands(*node, 2) && isBagCall(exportedCall(*node)))
        return node->inputs[0];
      const Value& value = graph_.value(id);
      const bool integers = value.data_type == DataType::kInt64 || value.data_type == DataType::kInt32;
      if (graph_.initializers.contains(id) && integers && value.shape && value.shape->size() == 1 &&
          value.shape->at(0) > 1)
        return id;
    }
    return findValue(graph_, bag.offsets);
  }

  std::optional<BagLayout> layoutOf(ValueId offsets) const {
    const Node* node = sources_.producerOf(offsets);
    for (int step = 0; step < kLongestChain && node != nullptr; ++step) {
      if ((!node->is("Cast") && !node->is("Identity")) || !hasOperands(*node, 1)) break;
      offsets = node->inputs[0];
      node = sources_.producerOf(offsets);
    }
    if (!offsets.valid()) return std::nullopt;
    if (graph_.initializers.contains(offsets)) return layoutOfConstant(offsets);
    if (node == nullptr || !node->is("Range") || !hasOperands(*node, 3)) return std::nullopt;
    const MaybeExtent first = sources_.numberIn(node->inputs[0]), limit = sources_.numberIn(node->inputs[1]);
    const MaybeExtent size = sources_.numberIn(node->inputs[2]);
    if (first != Extent{0, {}} || !limit || !size) return std::nullopt;
    const MaybeExtent count = dividedBy(*limit, *size);
    return count ? std::optional(BagLayout{*count, size}) : std::nullopt;
  }

  // Offsets that the exporter has computed; the end is the last one.
  std::optional<BagLayout> layoutOfConstant(ValueId offsets) const {
    const int64_t bags = graph_.shape(offsets).at(0) - 1;
    const Constant* constant = graph_.constant(offsets);
    if (constant == nullptr) {  // too many to be in memory
      const std::vector<std::string> sources = foldedFrom(graph_.value(offsets));
      const bool from_range = std::any_of(sources.begin(), sources.end(),
                                          [](const std::string& name) { return name.starts_with("arange"); });
      return from_range ? std::optional(BagLayout{{bags, {}}, std::nullopt}) : std::nullopt;
    }
    const std::vector<int64_t> numbers = integerElements(*constant);
    for (int64_t i = 0; i <= bags; ++i) {
      if (numbers[i] != i * numbers[1]) return std::nullopt;
    }
    return BagLayout{{bags, {}}, Extent{numbers[1], {}}};
  }

  // The list by bags, [count, size]: the value that it was made from, or the list in that shape.
  ValueId inBags(ValueId list, const BagLayout& layout, const Node& node, BagWriter& writer) const {
    bool complete = false;  // it has as many elements as the bags
    for (int step = 0; step < kLongestChain; ++step) {
      const std::vector<Extent> axes = sources_.axesOf(list);
      if (axes.size() == 2 && axes[0] == layout.count && axes[1] == layout.size.value_or(axes[1]))
        return list;
      const MaybeExtent elements = sources_.elementsOf(list);
      complete = complete || (elements && elements == times(layout.count, layout.size));
      const Node* source = sources_.producerOf(list);
      const bool same_list = source != nullptr && (source->is("Reshape") || source->is("Unsqueeze") ||
                                                   source->is("Identity") || source->is("Flatten"));
      if (!same_list || !hasOperands(*source, 1)) break;
      list = source->inputs[0];
    }
    if (!complete || !layout.size->symbols.empty()) refuseSizes(node);
    return writer.add("Reshape", {list, writer.integers({-1, layout.size->factor})}, graph_.dataType(list));
  }

  struct Operands {
    ValueId table, indices, weights;
  };

  // Sums in float32, as the exporter does.
  void write(const BagCall& bag, const Operands& operands, const Node& node, BagWriter& writer) const {
    constexpr DataType kFloat = DataType::kFloat32;
    const DataType type = graph_.dataType(operands.table);
    ValueId rows = writer.add("Gather", {operands.table, operands.indices}, type, {{"axis", int64_t{0}}});
    if (operands.weights.valid()) {
      const ValueId by_row = writer.add("Unsqueeze", {operands.weights, writer.integers({-1})}, type);
      rows = writer.add("Mul", {rows, by_row}, type);
    }
    if (type != kFloat) rows = writer.add("Cast", {rows}, kFloat, {{"to", static_cast<int64_t>(kFloat)}});
    if (bag.padding) return writeWithoutPadding(bag, operands, rows, node, writer);
    const char* reduction = bag.mode == BagCall::Mode::kSum    ? "ReduceSum"
                            : bag.mode == BagCall::Mode::kMean ? "ReduceMean"
                                                               : "ReduceMax";
    writer.addLast(reduction, {rows, writer.integers({1})}, {{"keepdims", int64_t{0}}});
  }

  // Rows of the padding do not count; a bag of nothing else gives zeros.
  void writeWithoutPadding(const BagCall& bag, const Operands& operands, ValueId rows, const Node& node,
                           BagWriter& writer) const {
    constexpr DataType kFloat = DataType::kFloat32;
    const bool max = bag.mode == BagCall::Mode::kMax;
    const std::map<std::string, Attribute> flat = {{"keepdims", int64_t{0}}};
    const ValueId is_padding = paddingAmong(operands, *bag.padding, node, writer);
    const ValueId axis = writer.integers({1}), zero = writer.number(kFloat, 0);
    const ValueId neutral = max ? writer.number(kFloat, std::numeric_limits<float>::lowest()) : zero;
    rows = writer.add("Where", {is_padding, neutral, rows}, kFloat);
    if (bag.mode == BagCall::Mode::kSum) return writer.addLast("ReduceSum", {rows, axis}, flat);
    const ValueId reduced = writer.add(max ? "ReduceMax" : "ReduceSum", {rows, axis}, kFloat, flat);
    const ValueId one = writer.number(kFloat, 1);
    const ValueId counted = writer.add("Where", {is_padding, zero, one}, kFloat);
    const ValueId count = writer.add("ReduceSum", {counted, axis}, kFloat, flat);
    if (max) {
      const ValueId any = writer.add("Greater", {count, zero}, DataType::kBool);
      return writer.addLast("Where", {any, reduced, zero});
    }
    writer.addLast("Div", {reduced, writer.add("Max", {count, one}, kFloat)});
  }

  // [count, size, 1]
  ValueId paddingAmong(const Operands& operands, int64_t padding, const Node& node, BagWriter& writer) const {
    if (padding < 0) {
      const std::vector<Extent> table = sources_.axesOf(operands.table);
      if (table.empty() || !table[0].symbols.empty())
        refuse(node, "with a negative padding_idx; count it from the beginning");
      padding += table[0].factor;
    }
    constexpr DataType kIndex = DataType::kInt64;
    ValueId indices = operands.indices;
    if (graph_.dataType(indices) != kIndex)
      indices = writer.add("Cast", {indices}, kIndex, {{"to", static_cast<int64_t>(kIndex)}});
    const ValueId equal =
        writer.add("Equal", {indices, writer.number(kIndex, static_cast<double>(padding))}, DataType::kBool);
    return writer.add("Unsqueeze", {equal, writer.integers({-1})}, DataType::kBool);
  }

  // The new nodes in; out what is left of the calls, from the end on, as nobody reads it any more.
  void replace() {
    std::unordered_set<ValueId> live(graph_.outputs.begin(), graph_.outputs.end()), of_calls;
    std::vector<bool> is_old(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      is_old[n] = isBagCall(exportedCall(node)) || readsAny(node, of_calls);
      if (isBagCall(exportedCall(node))) of_calls.insert(node.outputs.begin(), node.outputs.end());
      of_calls.erase(ValueId());
    }
    std::vector<Node> reversed;
    const auto keep = [&](Node node) {
      live.insert(node.inputs.begin(), node.inputs.end());
      live.erase(ValueId());
      for (ValueId id : capturesOf(node)) live.insert(id);
      reversed.push_back(std::move(node));
    };
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (const auto made = written_.find(n); made != written_.end()) {
        std::for_each(made->second.rbegin(), made->second.rend(), keep);
      } else if (!is_old[n] || std::any_of(node.outputs.begin(), node.outputs.end(),
                                           [&](ValueId id) { return live.contains(id); })) {
        refuseOtherOutput(node);
        keep(node);
      }
    }
    graph_.nodes.assign(std::make_move_iterator(reversed.rbegin()), std::make_move_iterator(reversed.rend()));
  }

  static bool readsAny(const Node& node, const std::unordered_set<ValueId>& values) {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return values.contains(id); });
  }

  // offset2bag, bag_size, max_indices: the exporter writes their shapes, but zeros.
  void refuseOtherOutput(const Node& node) const {
    const bool computed = node.is("Expand") || node.is("If") || node.is("Cast");
    if (!computed || !isBagCall(exportedCall(node))) return;
    const bool casts_result = std::any_of(written_.begin(), written_.end(), [&](const auto& entry) {
      return !node.inputs.empty() && graph_.nodes[entry.first].outputs[0] == node.inputs[0];
    });
    if (!casts_result)
      refuse(node,
             "of which more is read than the bags (offset2bag, bag_size, max_indices), of which the exporter "
             "writes only the shapes; use the bags alone");
  }

  Graph& graph_;
  GraphBuilder builder_;
  BagSources sources_;
  std::map<size_t, std::vector<Node>> written_;  // by the place of the call's ConcatFromSequence
};

}  // namespace

int takeEmbeddingBags(Graph& graph) { return EmbeddingBags(graph).run(); }

}  // namespace pipeshard
