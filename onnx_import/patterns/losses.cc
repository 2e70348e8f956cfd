// LogSoftmax over the classes, perhaps viewed otherwise (tokens of all rows in one axis), and the likelihood
// of labels: SoftmaxCrossEntropyLoss of the scores, viewed likewise. Its gradient is one pass over one
// matrix; the pair makes a matrix for the likelihood's, and another for the logarithm's. The logarithm of a
// Sigmoid is a Softplus.
#include "onnx_import/patterns/losses.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

namespace pipeshard {
namespace {

int64_t product(const Shape& shape, size_t end) {
  return std::accumulate(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1},
                         std::multiplies<>());
}

class CrossEntropyFinder : PatternReader {
 public:
  CrossEntropyFinder(const PatternGraph& patterns, NodeId loss) : PatternReader(patterns), loss_(loss) {}

  std::optional<Match> find(std::vector<NearMiss>& missed) {
    if (!findLogarithm()) return std::nullopt;
    std::string reason = fault();
    if (reason.empty()) {
      describe();
      reason = obstacle(patterns_, match_);
    }
    if (reason.empty()) return match_;
    missed.push_back({PatternKind::kCrossEntropy, describeNode(node(loss_)), reason});
    return std::nullopt;
  }

 private:
  // The LogSoftmax behind the log-probabilities and a Reshape at most.
  bool findLogarithm() {
    NodeId maker = producer(node(loss_).inputs[0]);
    if (maker.valid() && node(maker).is("Reshape")) {
      view_ = maker;
      maker = producer(node(maker).inputs[0]);
    }
    if (!maker.valid() || !node(maker).is("LogSoftmax")) return false;
    logarithm_ = maker;
    return true;
  }

  // The classes must be axis 1 of what the loss reads.
  std::string fault() const {
    const Node& logarithm = node(logarithm_);
    const Shape& scores = shape(logarithm.inputs[0]);
    const Shape& read = shape(node(loss_).inputs[0]);
    const size_t axis = normalizeAxis(logarithm.intAttribute("axis", -1), scores.size());
    if (read[1] == scores[axis] && read[0] == product(scores, axis)) return "";
    return fmt::format("{} is over axis {} of {}, but classes are axis 1 of {}", describeNode(logarithm),
                       axis, shapeToString(scores), shapeToString(read));
  }

  void describe() {
    const Node& loss = node(loss_);
    const ValueId scores = node(logarithm_).inputs[0];
    match_.kind = PatternKind::kCrossEntropy;
    match_.is_standard = true;
    match_.function = "SoftmaxCrossEntropyLoss";
    match_.inputs = loss.inputs;
    match_.inputs[0] = scores;
    match_.output = loss.outputs[0];
    match_.attributes = loss.attributes;
    match_.nodes = {loss_, logarithm_};
    if (!view_.valid()) return;
    match_.nodes.insert(view_);
    MadeInput view;
    view.place = view_;
    view.from = scores;
    view.nodes = {{"Reshape", graph().shape(loss.inputs[0])}};
    view.type = graph().dataType(scores);
    match_.made.push_back(view);
  }

  NodeId loss_, logarithm_, view_;
  Match match_;
};

// Before Log: a Sigmoid, perhaps with a Sub from 1 behind it.
class LogSigmoidFinder : PatternReader {
 public:
  LogSigmoidFinder(const PatternGraph& patterns, NodeId logarithm)
      : PatternReader(patterns), logarithm_(logarithm) {}

  std::optional<Match> find() const {
    const Node& logarithm = node(logarithm_);
    NodeId maker = producer(logarithm.inputs[0]);
    const bool is_rest =
        maker.valid() && node(maker).is("Sub") && patterns_.numberOf(node(maker).inputs[0]) == 1.0;
    if (is_rest) maker = producer(node(maker).inputs[1]);
    if (!maker.valid() || !node(maker).is("Sigmoid") || isBounded()) return std::nullopt;
    const ValueId x = node(maker).inputs[0];
    const Shape& whole = shape(x);
    if (shape(logarithm.outputs[0]) != whole) return std::nullopt;
    Match match;
    match.kind = PatternKind::kLogSigmoid;
    match.is_standard = true;
    match.function = "Neg";
    match.inputs = {x};
    match.output = logarithm.outputs[0];
    match.nodes = {logarithm_};
    MadeInput softplus;
    softplus.place = logarithm_;
    softplus.from = x;
    if (!is_rest) softplus.nodes.push_back({"Neg", whole});
    softplus.nodes.push_back({"Softplus", whole});
    softplus.type = graph().dataType(x);
    match.made.push_back(softplus);
    return obstacle(patterns_, match).empty() ? std::optional(match) : std::nullopt;
  }

 private:
  bool isBounded() const {
    return std::ranges::any_of(readers(node(logarithm_).outputs[0]),
                               [&](NodeId id) { return node(id).is("Clip") || node(id).is("Max"); });
  }

  NodeId logarithm_;
};

}  // namespace

std::optional<Match> matchLogSigmoid(const PatternGraph& patterns, NodeId node) {
  if (!patterns.graph.node(node).is("Log")) return std::nullopt;
  return LogSigmoidFinder(patterns, node).find();
}

std::optional<Match> matchCrossEntropy(const PatternGraph& patterns, NodeId node,
                                       std::vector<NearMiss>& missed) {
  if (!patterns.graph.node(node).is("NegativeLogLikelihoodLoss")) return std::nullopt;
  return CrossEntropyFinder(patterns, node).find(missed);
}

}  // namespace pipeshard
