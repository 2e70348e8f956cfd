// From the softmax forward to the product with V, and backward through what lies over the scores to the
// product of Q and K:
//
//   MatMul(Q, K^T), [Mul | Div by a number], [Where(mask, scores, number) | Add(scores, bias)], Softmax,
//   [Where(IsNaN(p), 0, p)], MatMul(p, V)
//
// The scale may also stand before the product, whole or as its root, on Q, on K or on both. K^T is a
// Transpose of whatever axes, one of matrices between two Reshapes, or comes from elsewhere.
#include "onnx_import/patterns/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "ir/operators/attention_form.h"

namespace pipeshard {
namespace {

struct Overlay {
  enum class Kind : uint8_t { kMask, kBias } kind = Kind::kBias;
  ValueId tensor;         // the mask, or what is added
  NodeId node;            // that puts it on
  bool inverted = false;  // the mask is true where the number is put
  double fill = 0;
};

class AttentionFinder {
 public:
  AttentionFinder(const PatternGraph& patterns, NodeId softmax) : patterns_(patterns), softmax_(softmax) {}

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
    if (reason.empty()) {
      describe();
      reason = obstacle(patterns_, match_);
    }
    if (reason.empty()) return match_;
    missed.push_back({PatternKind::kAttention, describeNode(graph().node(softmax_)), reason});
    return std::nullopt;
  }

 private:
  const Graph& graph() const { return patterns_.graph; }
  const Node& node(NodeId id) const { return graph().node(id); }
  NodeId producer(ValueId value) const { return patterns_.uses.producer[value.index()]; }
  const std::vector<NodeId>& readers(ValueId value) const { return patterns_.uses.consumers[value.index()]; }
  const Shape& shape(ValueId value) const { return graph().shape(value); }
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

  // A number in every place of a tensor, the same one.
  std::optional<double> everywhere(ValueId value) const {
    const NodeId id = producer(value);
    if (id.valid() && node(id).is("Expand")) return patterns_.numberOf(node(id).inputs[0]);
    return patterns_.numberOf(value);
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
        return "";
      }
      std::string reason;
      ValueId next;
      if (made.is("Mul") || made.is("Div")) next = throughScale(made);
      if (made.is("Where")) next = throughMask(id, reason);
      if (made.is("Add")) next = throughBias(id, reason);
      if (!reason.empty()) return reason;
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

  std::string put(Overlay overlay) {
    if (scaled_) return "its scores are scaled behind a mask or a bias";
    for (const Overlay& other : overlays_) {
      if (other.kind == overlay.kind)
        return overlay.kind == Overlay::Kind::kMask ? "two masks lie over its scores"
                                                    : "two tensors are added to its scores";
    }
    overlays_.insert(overlays_.begin(), overlay);
    return "";
  }

  ValueId throughMask(NodeId id, std::string& reason) {
    const std::vector<ValueId>& inputs = node(id).inputs;
    for (const bool inverted : {false, true}) {
      const std::optional<double> fill = everywhere(inputs[inverted ? 1 : 2]);
      if (!fill || std::isnan(*fill)) continue;
      reason = put({Overlay::Kind::kMask, inputs[0], id, inverted, *fill});
      return inputs[inverted ? 2 : 1];
    }
    return ValueId();
  }

  // Which side has the scores: the one with the product.
  ValueId throughBias(NodeId id, std::string& reason) {
    const std::vector<ValueId>& inputs = node(id).inputs;
    for (const size_t side : {0, 1}) {
      if (shape(inputs[side]) != shape(node(id).outputs[0]) || !leadsToProduct(inputs[side])) continue;
      reason = put({Overlay::Kind::kBias, inputs[1 - side], id});
      return inputs[side];
    }
    return ValueId();
  }

  bool leadsToProduct(ValueId value, int steps = 6) const {
    const NodeId id = producer(value);
    if (!id.valid() || steps == 0) return false;
    const Node& made = node(id);
    if (made.is("MatMul")) return true;
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
  bool keepsMatrices(NodeId id) const {
    if (!id.valid() || !node(id).is("Reshape")) return false;
    const Shape& from = shape(node(id).inputs[0]);
    const Shape& to = shape(node(id).outputs[0]);
    return from.size() >= 2 && to.size() >= 2 && std::equal(from.end() - 2, from.end(), to.end() - 2);
  }

  // Sets keys_ to what K^T was transposed from, or says what is to be made of it.
  void untransposed(ValueId transposed) {
    const size_t rank = shape(transposed).size();
    NodeId id = producer(transposed);
    if (keepsMatrices(id)) {
      const NodeId inner = producer(node(id).inputs[0]);
      const bool turns = inner.valid() && node(inner).is("Transpose") &&
                         node(inner).intsAttribute("perm") ==
                             lastTwoExchanged(allAxes(shape(node(inner).outputs[0]).size()));
      const NodeId outer = turns ? producer(node(inner).inputs[0]) : NodeId();
      Shape wanted = shape(transposed);
      std::swap(wanted[rank - 1], wanted[rank - 2]);
      if (keepsMatrices(outer) && shape(node(outer).inputs[0]) == wanted) {
        keys_ = node(outer).inputs[0];
        return;
      }
    }
    ValueId source = transposed;
    std::vector<int64_t> axes = allAxes(rank);
    if (id.valid() && node(id).is("Transpose") && node(id).intsAttribute("perm").size() == rank) {
      source = node(id).inputs[0];
      axes = node(id).intsAttribute("perm");
    }
    axes = lastTwoExchanged(axes);
    keys_ = axes == allAxes(rank) ? source : ValueId();
    if (keys_.valid()) return;
    Shape made = shape(transposed);
    std::swap(made[rank - 1], made[rank - 2]);
    match_.made.push_back({.position = 1,
                           .place = product_,
                           .op_type = "Transpose",
                           .from = source,
                           .attributes = {{"perm", axes}},
                           .type = graph().dataType(transposed),
                           .shape = made});
  }

  // Do the matrices go together? Sets what the call reads.
  std::string fit() {
    const std::vector<ValueId>& operands = node(product_).inputs;
    const Shape& q = shape(operands[0]);
    const Shape& kt = shape(operands[1]);
    const Shape& v = shape(node(values_).inputs[1]);
    if (q.size() < 2 || kt.size() != q.size() || v.size() != q.size() ||
        !std::equal(q.begin(), q.end() - 2, kt.begin()) || !std::equal(q.begin(), q.end() - 2, v.begin()))
      return fmt::format("queries, keys and values differ in their heads: {}, {} and {}", shapeToString(q),
                         shapeToString(kt), shapeToString(v));
    queries_ = unscaled(operands[0], product_);
    untransposed(unscaled(operands[1], product_));
    return "";
  }

  void describe() {
    match_.kind = PatternKind::kAttention;
    match_.function = "Attention";
    match_.output = node(values_).outputs[0];
    match_.inputs = {queries_, keys_, node(values_).inputs[1], ValueId()};
    const DataType type = graph().dataType(queries_);
    match_.made.push_back({.position = 3, .number = scale_, .type = type});
    std::string overlays;
    for (const Overlay& overlay : overlays_) {
      const bool mask = overlay.kind == Overlay::Kind::kMask;
      overlays += fmt::format("{}{}", overlays.empty() ? "" : "_", mask ? "mask" : "bias");
      match_.inputs.push_back(overlay.tensor);
      if (!mask) continue;
      if (overlay.inverted) {
        match_.made.push_back({.position = match_.inputs.size() - 1,
                               .place = overlay.node,
                               .op_type = "Not",
                               .from = overlay.tensor,
                               .type = DataType::kBool,
                               .shape = shape(overlay.tensor)});
      }
      match_.inputs.push_back(ValueId());
      match_.made.push_back({.position = match_.inputs.size() - 1, .number = overlay.fill, .type = type});
    }
    match_.overload = attentionOverload(overlays, nan_to_zero_);
    match_.attributes = {{"overlays", overlays}, {"nan_to_zero", int64_t{nan_to_zero_}}};
  }

  const PatternGraph& patterns_;
  NodeId softmax_, product_, values_;
  ValueId queries_, keys_;
  double scale_ = 1;
  bool scaled_ = false;  // on the way from the softmax to the product
  bool nan_to_zero_ = false;
  std::vector<Overlay> overlays_;  // in the order in which they are put on
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
