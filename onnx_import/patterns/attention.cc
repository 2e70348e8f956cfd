// From the softmax forward to the product with V, and backward through what lies over the scores to the
// product of Q and K:
//
//   MatMul(Q, K^T), [Mul | Div by a number], [Where(mask, scores, number) | Add(scores, bias)], Softmax,
//   [Where(IsNaN(p), 0, p)], [Mul by a number], [Where(keep, p, 0)], MatMul(p, V)
//
// The scale may also stand before the product, whole or as its root, on Q, on K or on both. K^T is a
// Transpose of whatever axes, one of matrices between two Reshapes, or comes from elsewhere. Between any two,
// the scores may be viewed with other axes before their matrices (attention_views.h). Where keys and values
// are repeated for several heads each, or broadcast in the products, the function gets them as they were.
#include "onnx_import/patterns/attention.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/operators/attention_form.h"
#include "onnx_import/patterns/attention_overlays.h"
#include "onnx_import/patterns/attention_views.h"

namespace pipeshard {
namespace {

// Q, K or V: what nodes make of a value of the graph.
struct Operand {
  ValueId from;
  std::vector<MadeNode> nodes = {};
  Shape shape = {};

  void viewAs(const Shape& leading) {
    if (leadingAxes(shape) == leading) return;
    shape = withMatrices(leading, shape);
    nodes.push_back({"Reshape", shape});
  }
};

class AttentionFinder : PatternReader {
 public:
  AttentionFinder(const PatternGraph& patterns, NodeId softmax)
      : PatternReader(patterns), softmax_(softmax) {}

  std::optional<Match> find(std::vector<NearMiss>& missed) {
    if (!isOverKeys() || !goesIntoValues()) return std::nullopt;
    std::string reason = reason_;
    if (reason.empty()) reason = backward();
    if (!product_.valid()) {
      // A softmax before a product, of what comes from no product: a router, a mixture.
      if (!nearProduct(graph().node(softmax_).inputs[0])) return std::nullopt;
      if (reason.empty()) reason = "its scores are not a product";
    }
    if (reason.empty()) reason = fit();
    if (reason.empty()) reason = describe();
    if (reason.empty()) reason = obstacle(patterns_, match_);
    if (reason.empty()) return match_;
    missed.push_back({PatternKind::kAttention, describeNode(graph().node(softmax_)), reason});
    return std::nullopt;
  }

 private:
  void take(NodeId id) { match_.nodes.insert(id); }

  bool isOverKeys() const {
    const Node& softmax = node(softmax_);
    const int64_t rank = std::ssize(shape(softmax.inputs[0]));
    return rank >= 2 && normalizeAxis(softmax.intAttribute("axis", -1), rank) == rank - 1;
  }

  // The product that has `value` as its first input.
  NodeId productOf(ValueId value) const {
    for (const NodeId reader : readers(value)) {
      if (node(reader).is("MatMul") && node(reader).inputs[0] == value) return reader;
    }
    return NodeId();
  }

  // Where(IsNaN(p), 0, p)
  NodeId nanToZero(ValueId p, NodeId& test) const {
    for (const NodeId reader : readers(p)) {
      if (!node(reader).is("IsNaN")) continue;
      test = reader;
      for (const NodeId choice : readers(node(reader).outputs[0])) {
        const Node& where = node(choice);
        if (where.is("Where") && where.inputs[0] == node(reader).outputs[0] && where.inputs[2] == p &&
            patterns_.numberOf(where.inputs[1]) == 0.0 && shape(where.outputs[0]) == shape(p))
          return choice;
      }
    }
    return NodeId();
  }

  // Dropout that drops: Where(keep, p * factor, 0).
  ValueId throughDropout(ValueId p) {
    ValueId scaled = p;
    std::set<NodeId> nodes;
    for (const NodeId reader : readers(p)) {
      if (!node(reader).is("Mul") || node(reader).inputs[0] != p) continue;
      const std::optional<double> number = patterns_.numberOf(node(reader).inputs[1]);
      if (!number) continue;
      factor_ = *number;
      scaled = node(reader).outputs[0];
      nodes.insert(reader);
    }
    for (const NodeId reader : readers(scaled)) {
      const Node& where = node(reader);
      if (!where.is("Where") || where.inputs[1] != scaled ||
          numberEverywhere(patterns_, where.inputs[2]) != 0.0)
        continue;
      if (shape(where.outputs[0]) != shape(p)) continue;
      nodes.insert(reader);
      match_.nodes.insert(nodes.begin(), nodes.end());
      keep_ = where.inputs[0];
      keep_place_ = reader;
      return where.outputs[0];
    }
    return p;
  }

  // Sets values_ if the probabilities are multiplied by something; reason_ if not at once.
  bool goesIntoValues() {
    ValueId p = node(softmax_).outputs[0];
    take(softmax_);
    NodeId test;
    if (const NodeId choice = nanToZero(p, test); choice.valid()) {
      take(test);
      take(choice);
      nan_to_zero_ = true;
      p = node(choice).outputs[0];
    }
    p = throughDropout(p);
    values_ = productOf(p);
    for (const NodeId reader : readers(p)) {
      if (values_.valid() || node(reader).outputs.empty() || !node(reader).outputs[0].valid()) continue;
      values_ = productOf(node(reader).outputs[0]);
      if (values_.valid())
        reason_ = fmt::format("{} lies between its softmax and the product with the values",
                              describeNode(node(reader)));
    }
    if (values_.valid()) take(values_);
    return values_.valid();
  }

  // Is a product of two matrices of this graph's values a few nodes above?
  bool nearProduct(ValueId value, int steps = 8) const {
    const NodeId id = producer(value);
    if (!id.valid() || steps == 0) return false;
    if (node(id).is("MatMul")) return !graph().initializers.contains(node(id).inputs[1]);
    return std::any_of(node(id).inputs.begin(), node(id).inputs.end(),
                       [&](ValueId input) { return input.valid() && nearProduct(input, steps - 1); });
  }

  // From the softmax's input up to product_; "" if all of the way is understood.
  std::string backward() {
    ValueId scores = node(softmax_).inputs[0];
    for (;;) {
      const NodeId id = producer(scores);
      if (!id.valid()) return "its scores come from no product";
      const Node& made = node(id);
      if (made.is("MatMul")) {
        product_ = id;
        take(id);
        return nameOverlays(overlays_, name_);
      }
      std::string reason;
      ValueId next;
      if (made.is("Mul") || made.is("Div")) next = throughScale(made);
      if (made.is("Where")) next = throughMask(id, reason);
      if (made.is("Add")) next = throughBias(id, reason);
      if (!reason.empty()) return reason;
      if (isView(id)) {
        take(id);
        scores = made.inputs[0];
        views_.push_back(leadingAxes(shape(scores)));
        continue;
      }
      if (!next.valid() || shape(next) != shape(scores))
        return fmt::format("{} lies between the product of queries and keys and the softmax",
                           describeNode(made));
      take(id);
      scores = next;
    }
  }

  ValueId throughScale(const Node& made) {
    for (const size_t side : {0, 1}) {
      const std::optional<double> number = patterns_.numberOf(made.inputs[1 - side]);
      if (!number || (made.is("Div") && (side == 1 || *number == 0))) continue;
      if (shape(made.inputs[side]) != shape(made.outputs[0])) continue;
      scale_ *= made.is("Div") ? 1 / *number : *number;
      scaled_ = true;
      return made.inputs[side];
    }
    return ValueId();
  }

  std::string put(AttentionOverlay overlay) {
    if (scaled_) return "its scores are scaled behind a mask or a bias";
    overlays_.insert(overlays_.begin(), overlay);
    return "";
  }

  ValueId throughMask(NodeId id, std::string& reason) {
    const std::vector<ValueId>& inputs = node(id).inputs;
    for (const bool inverted : {false, true}) {
      const std::optional<double> fill = numberEverywhere(patterns_, inputs[inverted ? 1 : 2]);
      if (!fill || std::isnan(*fill)) continue;
      reason = put({AttentionOverlay::Kind::kMask, inputs[0], id, inverted, *fill});
      return inputs[inverted ? 2 : 1];
    }
    return ValueId();
  }

  // Which side has the scores: the one with the product.
  ValueId throughBias(NodeId id, std::string& reason) {
    const std::vector<ValueId>& inputs = node(id).inputs;
    for (const size_t side : {0, 1}) {
      if (shape(inputs[side]) != shape(node(id).outputs[0]) || !leadsToProduct(inputs[side])) continue;
      if (!isZero(inputs[1 - side])) reason = put(addedOverlay(patterns_, inputs[1 - side], id));
      return inputs[side];
    }
    return ValueId();
  }

  // ONNX's Attention without a mask, T5's without positions.
  bool isZero(ValueId added) const {
    return patterns_.is_zero[added.index()] || numberEverywhere(patterns_, added) == 0.0;
  }

  bool leadsToProduct(ValueId value, int steps = 6) const {
    const NodeId id = producer(value);
    if (!id.valid() || steps == 0) return false;
    const Node& made = node(id);
    if (made.is("MatMul")) return haveSameMatrices(made.outputs[0], node(softmax_).inputs[0]);
    if (isView(id)) return leadsToProduct(made.inputs[0], steps - 1);
    if (!made.is("Mul") && !made.is("Div") && !made.is("Where") && !made.is("Add")) return false;
    return std::any_of(made.inputs.begin(), made.inputs.end(),
                       [&](ValueId input) { return leadsToProduct(input, steps - 1); });
  }

  // What a number multiplies for this attention alone.
  ValueId unscaled(ValueId value, NodeId reader) {
    for (;;) {
      const NodeId id = producer(value);
      const bool is_read_here = readers(value) == std::vector{reader} && !patterns_.is_output[value.index()];
      if (!id.valid() || !is_read_here || (!node(id).is("Mul") && !node(id).is("Div"))) return value;
      const ValueId next = throughScale(node(id));
      if (!next.valid()) return value;
      take(id);
      reader = id;
      value = next;
    }
  }

  static std::vector<int64_t> lastTwoExchanged(std::vector<int64_t> axes) {
    std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
    return axes;
  }
  static std::vector<int64_t> allAxes(size_t rank) {
    std::vector<int64_t> axes(rank);
    std::iota(axes.begin(), axes.end(), 0);
    return axes;
  }
  bool keepsMatrices(NodeId id) const { return id.valid() && node(id).is("Reshape") && isView(id); }
  // Of the same matrices, by other axes before them.
  bool isView(NodeId id) const {
    const Node& made = node(id);
    if (!made.is("Reshape") && !made.is("Unsqueeze") && !made.is("Squeeze")) return false;
    return haveSameMatrices(made.inputs[0], made.outputs[0]);
  }
  bool haveSameMatrices(ValueId a, ValueId b) const {
    const Shape &x = shape(a), &y = shape(b);
    return x.size() >= 2 && y.size() >= 2 && std::equal(x.end() - 2, x.end(), y.end() - 2);
  }

  // Do values have leading axes in common with more rows, too, where these have?
  bool headsAgree(std::initializer_list<ValueId> values) const {
    if (patterns_.more_rows == nullptr) return true;
    const Shape* first = nullptr;
    for (const ValueId value : values) {
      const Shape* larger = patterns_.more_rows->shape(graph().value(value).name);
      if (larger == nullptr || larger->size() < 2) continue;
      if (first != nullptr && leadingAxes(*larger) != leadingAxes(*first)) return false;
      first = larger;
    }
    return true;
  }

  // What K^T was transposed from, or what is to be made of it.
  Operand untransposed(ValueId transposed) const {
    const size_t rank = shape(transposed).size();
    Shape wanted = shape(transposed);
    std::swap(wanted[rank - 1], wanted[rank - 2]);
    NodeId id = producer(transposed);
    if (keepsMatrices(id)) {
      const NodeId inner = producer(node(id).inputs[0]);
      const bool turns = inner.valid() && node(inner).is("Transpose") &&
                         node(inner).intsAttribute("perm") ==
                             lastTwoExchanged(allAxes(shape(node(inner).outputs[0]).size()));
      const NodeId outer = turns ? producer(node(inner).inputs[0]) : NodeId();
      if (keepsMatrices(outer) && shape(node(outer).inputs[0]) == wanted &&
          headsAgree({node(outer).inputs[0], transposed}))
        return {node(outer).inputs[0], {}, wanted};
    }
    ValueId source = transposed;
    std::vector<int64_t> axes = allAxes(rank);
    if (id.valid() && node(id).is("Transpose") && node(id).intsAttribute("perm").size() == rank) {
      source = node(id).inputs[0];
      axes = node(id).intsAttribute("perm");
    }
    axes = lastTwoExchanged(axes);
    if (axes == allAxes(rank)) return {source, {}, wanted};
    return {source, {{"Transpose", wanted, {{"perm", axes}}}}, wanted};
  }

  // x [.., g, 1, j, d] where the operand is Reshape(Expand(x, [.., g, n, j, d])), [.., g * n, j, d]: heads
  // that are there n times each.
  std::optional<Operand> unrepeated(const Operand& operand, Shape& groups) const {
    const NodeId id = operand.nodes.empty() ? producer(operand.from) : NodeId();
    if (!keepsMatrices(id)) return std::nullopt;
    const NodeId expand = producer(node(id).inputs[0]);
    if (!expand.valid() || !node(expand).is("Expand")) return std::nullopt;
    const Shape& once = shape(node(expand).inputs[0]);
    groups = leadingAxes(shape(node(expand).outputs[0]));
    if (groups.empty() || groups.back() == 1) return std::nullopt;
    Shape expected = groups;
    expected.back() = 1;
    if (once != withMatrices(expected, operand.shape)) return std::nullopt;
    return Operand{node(expand).inputs[0], {}, once};
  }

  // What is repeated once: ONNX's Attention repeats keys and values always.
  ValueId unexpanded(ValueId x) const {
    ValueId source = x;
    for (const char* op : {"Reshape", "Expand", "Unsqueeze"}) {
      const NodeId id = producer(source);
      if (!id.valid() || !node(id).is(op)) return x;
      source = node(id).inputs[0];
    }
    return shape(source) == shape(x) && headsAgree({source, x}) ? source : x;
  }

  // Do the matrices go together? Sets what the call reads.
  std::string fit() {
    const std::vector<ValueId>& operands = node(product_).inputs;
    const ValueId v = node(values_).inputs[1];
    queries_ = {unscaled(operands[0], product_)};
    queries_.shape = shape(queries_.from);
    keys_ = untransposed(unscaled(operands[1], product_));
    if (keys_.nodes.empty()) keys_.from = unexpanded(keys_.from);
    v_ = {unexpanded(v), {}, shape(v)};
    heads_ = leadingAxes(shape(operands[0]));
    output_ = shape(node(values_).outputs[0]);
    const Shape values = leadingAxes(output_);
    const bool is_shared = isGrouped(queries_.shape, keys_.shape) && isGrouped(output_, v_.shape);
    Shape of_keys = heads_, of_values = values;
    if (is_shared) of_keys.back() = of_values.back() = 1;
    if (queries_.shape.size() < 2 || leadingAxes(shape(node(product_).outputs[0])) != heads_ ||
        leadingAxes(keys_.shape) != of_keys || leadingAxes(v_.shape) != of_values ||
        (!is_shared && !headsAgree({operands[0], operands[1], node(product_).outputs[0]})) ||
        (!is_shared && !headsAgree({v, node(values_).outputs[0]})))
      return fmt::format("queries, keys and values differ in their heads: {}, {} and {}",
                         shapeToString(queries_.shape), shapeToString(shape(operands[1])),
                         shapeToString(v_.shape));
    view_ = heads_;
    views_.push_back(values);
    for (const Shape& other : views_) {
      if (axesOfEach(view_, other)) view_ = other;
    }
    if (heads_.size() == 1 && view_ == heads_ && !is_shared)
      view_ = headsOfRows(graph(), patterns_.uses, queries_.from).value_or(view_);
    for (const Shape& other : views_) {
      if (!axesOfEach(other, view_) || (is_shared && other != heads_))
        return fmt::format("its scores are viewed as {} and as {}", shapeToString(view_),
                           shapeToString(is_shared ? heads_ : other));
    }
    if (!is_shared) shareKeys();
    return "";
  }

  void shareKeys() {
    Shape groups, of_values;
    const std::optional<Operand> keys = unrepeated(keys_, groups), values = unrepeated(v_, of_values);
    const bool are_groups = keys && values && groups == of_values && view_ == heads_ &&
                            leadingAxes(output_) == heads_ && axesOfEach(heads_, groups);
    queries_.viewAs(are_groups ? groups : view_);
    if (are_groups) {
      view_ = groups;
      keys_ = *keys;
      v_ = *values;
    } else {
      keys_.viewAs(view_);
      v_.viewAs(view_);
    }
  }

  void addOperand(size_t position, const Operand& operand, NodeId place) {
    match_.inputs[position] = operand.from;
    if (!operand.nodes.empty())
      match_.made.push_back({.position = position,
                             .place = place,
                             .from = operand.from,
                             .nodes = operand.nodes,
                             .type = graph().dataType(operand.from)});
  }

  std::string addOverlay(const AttentionOverlay& overlay) {
    Operand tensor{overlay.tensor, {}, shape(overlay.tensor)};
    const Shape scores = leadingAxes(shape(node(overlay.node).outputs[0]));
    const std::optional<Shape> view = viewOfOverlay(tensor.shape, scores, view_);
    if (!view)
      return fmt::format("{} cannot be viewed for {} heads", shapeToString(tensor.shape),
                         shapeToString(view_));
    if (overlay.inverted) tensor.nodes.push_back({"Not", tensor.shape});
    if (*view != tensor.shape) tensor.nodes.push_back({"Reshape", *view});
    match_.inputs.push_back(overlay.tensor);
    addOperand(match_.inputs.size() - 1, tensor, overlay.node);
    if (overlay.kind == AttentionOverlay::Kind::kBias) return "";
    match_.inputs.push_back(ValueId());
    match_.made.push_back({.position = match_.inputs.size() - 1,
                           .number = overlay.fill,
                           .type = graph().dataType(queries_.from)});
    return "";
  }

  std::string addKeep() {
    Operand keep{keep_, {}, shape(keep_)};
    const std::optional<Shape> view = viewOfOverlay(keep.shape, leadingAxes(output_), view_);
    if (!view) return "what its dropout keeps cannot be viewed for its heads";
    if (*view != keep.shape) keep.nodes.push_back({"Reshape", *view});
    match_.inputs.resize(match_.inputs.size() + 2, keep_);
    addOperand(match_.inputs.size() - 2, keep, keep_place_);
    match_.made.push_back(
        {.position = match_.inputs.size() - 1, .number = factor_, .type = graph().dataType(queries_.from)});
    name_ += name_.empty() ? "drop" : "_drop";
    return "";
  }

  std::string describe() {
    match_.kind = PatternKind::kAttention;
    match_.function = "Attention";
    match_.output = node(values_).outputs[0];
    match_.inputs.resize(4);
    addOperand(0, queries_, product_);
    addOperand(1, keys_, product_);
    addOperand(2, v_, values_);
    match_.made.push_back({.position = 3, .number = scale_, .type = graph().dataType(queries_.from)});
    for (const AttentionOverlay& overlay : overlays_) {
      if (std::string reason = addOverlay(overlay); !reason.empty()) return reason;
    }
    if (keep_.valid()) {
      if (std::string reason = addKeep(); !reason.empty()) return reason;
    }
    match_.overload = attentionOverload(name_, nan_to_zero_);
    match_.attributes = {{"overlays", name_}, {"nan_to_zero", int64_t{nan_to_zero_}}};
    if (leadingAxes(output_) != view_) match_.output_shape = withMatrices(view_, output_);
    return "";
  }

  NodeId softmax_, product_, values_;
  Operand queries_, keys_, v_;
  Shape heads_;               // the axes before the matrices of the product
  std::vector<Shape> views_;  // what they are elsewhere
  Shape view_;                // and in the call
  Shape output_;
  double scale_ = 1;
  bool scaled_ = false;  // on the way from the softmax to the product
  bool nan_to_zero_ = false;
  ValueId keep_;  // invalid: nothing is dropped
  NodeId keep_place_;
  double factor_ = 1;
  std::vector<AttentionOverlay> overlays_;  // in the order in which they are put on
  std::string name_;
  std::string reason_;
  Match match_;
};

}  // namespace

std::optional<Match> matchAttention(const PatternGraph& patterns, NodeId node,
                                    std::vector<NearMiss>& missed) {
  const Node& softmax = patterns.graph.node(node);
  if (!softmax.is("Softmax") || !patterns.hasKernelType(softmax.inputs[0])) return std::nullopt;
  return AttentionFinder(patterns, node).find(missed);
}

}  // namespace pipeshard
