#include "onnx_import/exporter/embedding_bag.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/replacement_writer.h"
#include "onnx_import/exporter/symbolic_extents.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

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
  const std::vector<std::string> given = argumentTexts(call);
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
  if (isCallOf(call, "._embedding_bag") && bag.padding.value_or(0) < 0) bag.padding.reset();
  return bag;
}

bool isBagCall(const ExportedCall& call) { return isCallOf(call, "embedding_bag"); }

// What the offsets say of bags of equal size.
struct BagLayout {
  Extent count;
  MaybeExtent size;  // nothing: the offsets are not in memory, and the indices must tell
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
    ReplacementWriter writer(graph_, builder_, node);
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
  ValueId inBags(ValueId list, const BagLayout& layout, const Node& node, ReplacementWriter& writer) const {
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
  void write(const BagCall& bag, const Operands& operands, const Node& node,
             ReplacementWriter& writer) const {
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
                           ReplacementWriter& writer) const {
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
  ValueId paddingAmong(const Operands& operands, int64_t padding, const Node& node,
                       ReplacementWriter& writer) const {
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
  SymbolicExtents sources_;
  std::map<size_t, std::vector<Node>> written_;  // by the place of the call's ConcatFromSequence
};

}  // namespace

int takeEmbeddingBags(Graph& graph) { return EmbeddingBags(graph).run(); }

}  // namespace pipeshard
