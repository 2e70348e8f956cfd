// A chain, node by node: v^2 (a product or Pow), its mean, + epsilon, then one of
//   Sqrt, Reciprocal, times v        (PyTorch's rsqrt)
//   Sqrt, v divided by it
//   Pow(-1/2), times v
// and last the product with a weight of one number per place of the axes.
//   RMSNorm: v is x, the mean is over the last axis
//   LayerNorm: v is x - mean(x), both means are over the same last axes; a bias may be added, and weight and
//   bias may be missing
#include "onnx_import/patterns/normalizations.h"

#include <fmt/format.h>

namespace pipeshard {
namespace {

// What the two finders have in common.
class NormalizationFinder : protected PatternReader {
 protected:
  NormalizationFinder(const PatternGraph& patterns, NodeId mean) : PatternReader(patterns), mean_(mean) {}

  // The first of the axes that a ReduceMean is over, if these are the last ones, and kept.
  std::optional<size_t> meanFrom(NodeId id) const {
    const Node& mean = graph().node(id);
    if (!mean.is("ReduceMean") || mean.intAttribute("keepdims", 1) == 0) return std::nullopt;
    std::vector<int64_t> axes = mean.intsAttribute("axes");
    if (mean.inputs.size() > 1 && mean.inputs[1].valid()) {
      const Constant* constant = graph().constant(mean.inputs[1]);
      if (constant == nullptr) return std::nullopt;
      axes = integerElements(*constant);
    }
    const size_t rank = graph().shape(mean.inputs[0]).size();
    std::set<size_t> reduced;
    for (const int64_t axis : axes) reduced.insert(normalizeAxis(axis, rank));
    if (reduced.empty() || *reduced.begin() + reduced.size() != rank) return std::nullopt;
    return *reduced.begin();
  }

  // The value whose square a node is.
  ValueId squareRoot(NodeId id) const {
    const Node& node = graph().node(id);
    const bool is_square = (node.is("Mul") && node.inputs[0] == node.inputs[1]) ||
                           (node.is("Pow") && numberOf(node.inputs[1]) == 2);
    return is_square ? node.inputs[0] : ValueId();
  }

  // v / sqrt(mean + epsilon), for a mean of v's squares.
  std::optional<ValueId> normalized(ValueId v, ValueId mean) {
    const NodeId sum = next(mean, "Add");
    if (!sum.valid()) return std::nullopt;
    const std::optional<double> epsilon = numberOf(other(sum, mean));
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
          quotient.valid() && graph().node(quotient).inputs == std::vector{v, deviation}) {
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
    if (!product.valid() || other(product, inverse) != v) return std::nullopt;
    take(product);
    return graph().node(product).outputs[0];
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
  std::optional<double> numberOf(ValueId value) const { return patterns_.numberOf(value); }

  NodeId mean_;
  ValueId x_;
  Match match_;
};

class RmsFinder : NormalizationFinder {
 public:
  RmsFinder(const PatternGraph& patterns, NodeId mean) : NormalizationFinder(patterns, mean) {}

  std::optional<Match> find(std::vector<NearMiss>& missed) {
    if (!squaresAreAveraged()) return std::nullopt;
    const std::optional<ValueId> normal = normalized(x_, graph().node(mean_).outputs[0]);
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
  // mean(x x) over the last axis.
  bool squaresAreAveraged() {
    const std::optional<size_t> axis = meanFrom(mean_);
    if (!axis) return false;
    const NodeId square = patterns_.uses.producer[graph().node(mean_).inputs[0].index()];
    if (!square.valid()) return false;
    x_ = squareRoot(square);
    if (!x_.valid() || *axis + 1 != graph().shape(x_).size()) return false;
    take(square);
    take(mean_);
    return true;
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
};

class LayerFinder : NormalizationFinder {
 public:
  LayerFinder(const PatternGraph& patterns, NodeId mean) : NormalizationFinder(patterns, mean) {}

  std::optional<Match> find(std::vector<NearMiss>& missed) {
    if (!findCentred() || !findVariance()) return std::nullopt;
    std::string reason = completed();
    if (reason.empty()) reason = obstacle(patterns_, match_);
    if (reason.empty()) return match_;
    missed.push_back({PatternKind::kLayerNorm, describeNode(graph().node(mean_)), reason});
    return std::nullopt;
  }

 private:
  // x - mean(x); some write it twice.
  bool findCentred() {
    const Node& mean = graph().node(mean_);
    const std::optional<size_t> first = meanFrom(mean_);
    if (!first) return false;
    first_ = *first;
    x_ = mean.inputs[0];
    for (const NodeId user : patterns_.uses.consumers[mean.outputs[0].index()]) {
      if (!graph().node(user).is("Sub") || graph().node(user).inputs != std::vector{x_, mean.outputs[0]})
        continue;
      take(user);
      centred_.push_back(graph().node(user).outputs[0]);
    }
    take(mean_);
    return !centred_.empty();
  }

  // The mean of its squares.
  bool findVariance() {
    for (const ValueId centred : centred_) {
      for (const NodeId square : patterns_.uses.consumers[centred.index()]) {
        if (squareRoot(square) != centred) continue;
        const NodeId mean = next(graph().node(square).outputs[0], "ReduceMean");
        if (!mean.valid() || meanFrom(mean) != first_) continue;
        take(square);
        take(mean);
        variance_ = graph().node(mean).outputs[0];
        return true;
      }
    }
    return false;
  }

  // What follows: "" or why it is no LayerNorm.
  std::string completed() {
    const std::set<NodeId> begun = match_.nodes;
    std::optional<ValueId> normal;
    for (size_t i = 0; i < centred_.size() && !normal; ++i) {
      match_.nodes = begun;
      normal = normalized(centred_[i], variance_);
    }
    if (!normal) return "x - mean(x) is not divided by the root of its variance and an epsilon";
    const Shape& shape = graph().shape(x_);
    inner_ = Shape(shape.begin() + static_cast<std::ptrdiff_t>(first_), shape.end());
    match_.kind = PatternKind::kLayerNorm;
    match_.is_standard = true;
    match_.function = "LayerNormalization";
    match_.attributes["axis"] = static_cast<int64_t>(first_) - std::ssize(shape);
    match_.inputs = {x_, ValueId()};
    match_.output = *normal;
    if (const ValueId weight = takeWeight("Mul"); weight.valid()) {
      match_.inputs[1] = weight;
    } else {
      MadeInput ones;
      ones.position = 1;
      ones.number = 1;
      ones.shape = inner_;
      ones.type = graph().dataType(x_);
      match_.made.push_back(ones);
    }
    if (const ValueId bias = takeWeight("Add"); bias.valid()) match_.inputs.push_back(bias);
    return graph().shape(match_.output) == shape ? "" : "its result has another shape";
  }

  // The other input of the only reader, if that is such an operator and the input has a number per place.
  ValueId takeWeight(const char* op) {
    const std::vector<NodeId>& readers = patterns_.uses.consumers[match_.output.index()];
    if (readers.size() != 1 || patterns_.is_output[match_.output.index()]) return {};
    const Node& node = graph().node(readers[0]);
    if (!node.is(op) || !node.opaque.empty()) return {};
    const ValueId weight = other(readers[0], match_.output);
    if (graph().shape(weight) != inner_ || graph().dataType(weight) != graph().dataType(x_)) return {};
    take(readers[0]);
    match_.output = node.outputs[0];
    return weight;
  }

  size_t first_ = 0;
  Shape inner_;
  std::vector<ValueId> centred_;
  ValueId variance_;
};

}  // namespace

std::optional<Match> matchNormalization(const PatternGraph& patterns, NodeId node,
                                        std::vector<NearMiss>& missed) {
  if (!patterns.graph.node(node).is("ReduceMean")) return std::nullopt;
  if (std::optional<Match> match = LayerFinder(patterns, node).find(missed)) return match;
  return RmsFinder(patterns, node).find(missed);
}

}  // namespace pipeshard
