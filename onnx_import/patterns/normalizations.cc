// A chain, node by node: x^2 (a product or Pow), its mean over the last axis, + epsilon, then one of
//   Sqrt, Reciprocal, times x        (PyTorch's rsqrt)
//   Sqrt, x divided by it
//   Pow(-1/2), times x
// and last the product with a weight of one number per place of the axis.
#include "onnx_import/patterns/normalizations.h"

#include <algorithm>

#include <fmt/format.h>

namespace pipeshard {
namespace {

class RmsFinder {
 public:
  RmsFinder(const PatternGraph& patterns, NodeId mean) : patterns_(patterns), mean_(mean) {}

  std::optional<Match> find(std::vector<NearMiss>& missed) {
    if (!squaresAreAveraged()) return std::nullopt;
    const std::optional<ValueId> normal = normalized();
    if (!normal) return std::nullopt;  // a variance is also a mean of squares
    if (!scaled(*normal)) {
      missed.push_back({PatternKind::kRmsNorm, describeNode(graph().node(mean_)),
                        "no product with a weight of the last axis follows"});
      return std::nullopt;
    }
    const std::string reason = obstacle(patterns_, match_);
    if (reason.empty()) return match_;
    missed.push_back({PatternKind::kRmsNorm, describeNode(graph().node(mean_)), reason});
    return std::nullopt;
  }

 private:
  const Graph& graph() const { return patterns_.graph; }

  // mean(x x) over the last axis, which is kept.
  bool squaresAreAveraged() {
    const Node& mean = graph().node(mean_);
    if (!mean.is("ReduceMean") || mean.intAttribute("keepdims", 1) == 0) return false;
    const NodeId square = patterns_.uses.producer[mean.inputs[0].index()];
    if (!square.valid()) return false;
    const Node& node = graph().node(square);
    if (node.is("Mul") && node.inputs[0] == node.inputs[1]) x_ = node.inputs[0];
    if (node.is("Pow") && numberOf(node.inputs[1]) == 2) x_ = node.inputs[0];
    if (!x_.valid()) return false;
    const int64_t last = std::ssize(graph().shape(x_)) - 1;
    std::vector<int64_t> axes = mean.intsAttribute("axes");
    if (mean.inputs.size() > 1 && mean.inputs[1].valid()) {
      const Constant* constant = graph().constant(mean.inputs[1]);
      if (constant == nullptr) return false;
      axes = integerElements(*constant);
    }
    take(square);
    take(mean_);
    return axes == std::vector<int64_t>{last} || axes == std::vector<int64_t>{-1};
  }

  // x / sqrt(mean + epsilon).
  std::optional<ValueId> normalized() {
    const NodeId sum = next(graph().node(mean_).outputs[0], "Add");
    if (!sum.valid()) return std::nullopt;
    const std::optional<double> epsilon = otherNumber(sum, graph().node(mean_).outputs[0]);
    if (!epsilon) return std::nullopt;
    match_.attributes["epsilon"] = static_cast<float>(*epsilon);
    take(sum);
    const ValueId shifted = graph().node(sum).outputs[0];
    ValueId inverse;
    if (const NodeId power = next(shifted, "Pow"); power.valid() &&
                                                   graph().node(power).inputs[0] == shifted &&
                                                   numberOf(graph().node(power).inputs[1]) == -0.5) {
      take(power);
      inverse = graph().node(power).outputs[0];
    } else if (const NodeId root = next(shifted, "Sqrt"); root.valid()) {
      take(root);
      const ValueId deviation = graph().node(root).outputs[0];
      if (const NodeId quotient = next(deviation, "Div");
          quotient.valid() && graph().node(quotient).inputs == std::vector{x_, deviation}) {
        take(quotient);
        return graph().node(quotient).outputs[0];
      }
      const NodeId reciprocal = next(deviation, "Reciprocal");
      if (!reciprocal.valid()) return std::nullopt;
      take(reciprocal);
      inverse = graph().node(reciprocal).outputs[0];
    } else {
      return std::nullopt;
    }
    const NodeId product = next(inverse, "Mul");
    if (!product.valid() || other(product, inverse) != x_) return std::nullopt;
    take(product);
    return graph().node(product).outputs[0];
  }

  bool scaled(ValueId normal) {
    const NodeId product = next(normal, "Mul");
    if (!product.valid()) return false;
    const ValueId scale = other(product, normal);
    const Shape& shape = graph().shape(x_);
    if (graph().shape(scale) != Shape{shape.back()} || graph().dataType(scale) != graph().dataType(x_))
      return false;
    take(product);
    match_.kind = PatternKind::kRmsNorm;
    match_.function = "RMSNormalization";
    match_.inputs = {x_, scale};
    match_.output = graph().node(product).outputs[0];
    return graph().shape(match_.output) == shape;
  }

  void take(NodeId node) { match_.nodes.insert(node); }
  // The first reader of a value that is such an operator.
  NodeId next(ValueId value, const char* op) const {
    for (const NodeId user : patterns_.uses.consumers[value.index()]) {
      if (graph().node(user).is(op)) return user;
    }
    return NodeId();
  }
  ValueId other(NodeId node, ValueId value) const {
    const std::vector<ValueId>& inputs = graph().node(node).inputs;
    return inputs[0] == value ? inputs[1] : inputs[0];
  }
  std::optional<double> otherNumber(NodeId node, ValueId value) const { return numberOf(other(node, value)); }
  std::optional<double> numberOf(ValueId value) const { return patterns_.numberOf(value); }

  const PatternGraph& patterns_;
  NodeId mean_;
  ValueId x_;
  Match match_;
};

}  // namespace

std::optional<Match> matchRmsNormalization(const PatternGraph& patterns, NodeId node,
                                           std::vector<NearMiss>& missed) {
  if (!patterns.graph.node(node).is("ReduceMean")) return std::nullopt;
  return RmsFinder(patterns, node).find(missed);
}

}  // namespace pipeshard
