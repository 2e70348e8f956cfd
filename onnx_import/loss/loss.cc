#include "onnx_import/loss/loss.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/graph/exact_number.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/loss/loss_forms.h"

namespace pipeshard {
namespace {

constexpr int64_t kIgnoreIndex = -100;  // of PyTorch's cross_entropy

// The opset from which an operator means what is written here: where the file is of an older one, that of the
// node. Such files are lifted as a whole when they are prepared (prepare/upgrade.h).
int writtenSince(std::string_view op_type) {
  static const std::map<std::string_view, int> since = {
      {"LogSoftmax", 13},  // along its axis alone
      {"NegativeLogLikelihoodLoss", 12},
      {"SoftmaxCrossEntropyLoss", 12},
      {"Max", 8},  // these two with operands of different shapes, and those below
      {"Min", 8},
      {"Add", 7},
      {"Div", 7},
      {"Equal", 7},
      {"Mul", 7},
      {"Sub", 7},
      {"Cast", 6},
      {"Reshape", 5},
  };
  const auto found = since.find(op_type);
  return found == since.end() ? 1 : found->second;
}

bool isScalar(const Value& value) {
  return value.shape && (value.shape->empty() || *value.shape == Shape{1});
}

// Adds nodes behind existing values, whose shapes may be symbolic.
//
// Cross-entropy: ONNX wants the classes on axis 1; scores that have them elsewhere are brought there.
//   scores [batch, tokens, 50]             reshaped to [-1, 50], labels to [-1]
//   scores [batch, tokens, classes]        (classes unknown) transposed to [batch, classes, tokens]
//   scores [batch, classes, height, width] as they are, with labels [batch, height, width]
class LossWriter {
 public:
  LossWriter(Graph& graph, std::vector<std::string>* notes) : graph_(graph), builder_(graph), notes_(notes) {}

  // The mean over elements.
  ValueId of(const LossTerm& term);
  ValueId sum(const std::vector<LossTerm>& terms, const std::vector<ValueId>& losses);
  ValueId scalarOf(ValueId output);

 private:
  struct Scores {
    ValueId scores;  // classes on axis 1
    ValueId labels;
    Value like;  // the scores as the model gives them
  };
  Scores scoresOf(const LossTerm& term);
  size_t classAxisOf(const LossTerm& term, const Value& scores, ValueId labels) const;
  size_t classAxisOfNewLabels(const LossTerm& term, const Value& scores);
  ValueId crossEntropy(const LossTerm& term);
  ValueId smoothed(const LossTerm& term, const Scores& scores, ValueId log_probabilities);
  ValueId meanOfClasses(ValueId log_probabilities, DataType type, const std::optional<Shape>& places);
  ValueId elementwise(const LossTerm& term);
  ValueId elementLoss(LossTerm::Kind kind, ValueId x, ValueId t, const Value& like);
  ValueId same(std::string_view op_type, std::vector<ValueId> inputs, const Value& like);  // type and shape
  ValueId number(double number, const Value& like);
  ValueId mean(std::string_view name, ValueId x, const Value& like);
  ValueId total(ValueId x, const Value& like);
  ValueId prediction(const LossTerm& term) const;
  ValueId newTarget(const std::string& name, DataType type, const Value& like,
                    const std::vector<size_t>& axes);
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, std::string_view name, DataType type,
             std::optional<Shape> shape, std::map<std::string, Attribute> attributes = {});
  ValueId flatten(ValueId value, const std::vector<int64_t>& shape);

  Graph& graph_;
  GraphBuilder builder_;
  std::vector<std::string>* notes_;
  std::map<ValueId, size_t> made_labels_;  // and the axis of the classes in the scores that they are for
};

ValueId LossWriter::op(std::string_view op_type, std::vector<ValueId> inputs, std::string_view name,
                       DataType type, std::optional<Shape> shape,
                       std::map<std::string, Attribute> attributes) {
  const ValueId result = builder_.addValue(name, type, {});
  graph_.value(result).shape = std::move(shape);
  const NodeId node = builder_.addNode("", op_type, std::move(inputs), {result}, std::move(attributes));
  graph_.node(node).name = fmt::format("loss/{}", op_type);
  int& version = graph_.node(node).opset_version;
  version = std::max(version, writtenSince(op_type));
  return result;
}

ValueId LossWriter::prediction(const LossTerm& term) const {
  const std::optional<ValueId> found = builder_.find(term.prediction);
  if (!found) {
    std::vector<std::string> outputs;
    for (ValueId id : graph_.outputs) outputs.push_back(graph_.value(id).name);
    fail(ErrorCode::kUsage, "--loss {}: the model has no value '{}'; its outputs are {}", lossToString(term),
         term.prediction, fmt::join(outputs, ", "));
  }
  const Value& value = graph_.value(*found);
  if (!value.shape || !isFloatingPoint(value.data_type)) {
    fail(ErrorCode::kUsage, "--loss {}: '{}' is no floating-point tensor of known rank", lossToString(term),
         value.name);
  }
  checkLossForm(graph_, term, *found);
  return *found;
}

std::vector<size_t> allAxes(const Value& value) {
  std::vector<size_t> axes(value.shape->size());
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// A graph input of these axes of `like`, symbols included, so that it is bound with the others.
ValueId LossWriter::newTarget(const std::string& name, DataType type, const Value& like,
                              const std::vector<size_t>& axes) {
  Shape shape;
  std::vector<std::string> symbols;
  for (const size_t axis : axes) {
    shape.push_back(like.shape->at(axis));
    symbols.push_back(axis < like.symbols.size() ? like.symbols[axis] : "");
    if (shape.back() != kUnknownSize || !symbols.back().empty()) continue;
    fail(ErrorCode::kUsage,
         "the target '{}' cannot be made: axis {} of '{}' has neither size nor name; export the model with "
         "named dynamic dimensions, or with the target as an input",
         name, axis, like.name);
  }
  const ValueId id = builder_.addValue(name, type, shape);
  graph_.value(id).symbols = std::move(symbols);
  graph_.inputs.push_back(id);
  return id;
}

ValueId LossWriter::flatten(ValueId value, const std::vector<int64_t>& shape) {
  const std::string& name = graph_.value(value).name;
  const ValueId target =
      builder_.addConstant(name + ".flat_shape", makeConstant<int64_t>({std::ssize(shape)}, shape));
  return op("Reshape", {value, target}, graph_.value(value).name + ".flat", graph_.dataType(value),
            Shape(shape));
}

// Is `labels` of the shape of `scores` without axis `class_axis`, as far as both are known?
bool fitsClassAxis(const Shape& scores, const Shape& labels, size_t class_axis) {
  if (labels.size() + 1 != scores.size()) return false;
  for (size_t i = 0; i < labels.size(); ++i) {
    const int64_t size = scores[i < class_axis ? i : i + 1];
    if (size != kUnknownSize && labels[i] != kUnknownSize && size != labels[i]) return false;
  }
  return true;
}

std::vector<size_t> axesWithout(const Value& value, size_t class_axis) {
  std::vector<size_t> axes = allAxes(value);
  axes.erase(axes.begin() + static_cast<int64_t>(class_axis));
  return axes;
}

// "[batch,16]"
std::string namedShape(const Value& value, const std::vector<size_t>& axes) {
  std::vector<std::string> sizes;
  for (const size_t axis : axes) {
    const int64_t size = value.shape->at(axis);
    const bool named = axis < value.symbols.size() && !value.symbols[axis].empty();
    sizes.push_back(size != kUnknownSize ? std::to_string(size) : named ? value.symbols[axis] : "?");
  }
  return fmt::format("[{}]", fmt::join(sizes, ","));
}

size_t askedClassAxis(const LossTerm& term, const Value& scores) {
  const int64_t rank = std::ssize(*scores.shape);
  const int64_t axis = *term.class_axis + (*term.class_axis < 0 ? rank : 0);
  if (axis < 0 || axis >= rank) {
    fail(ErrorCode::kUsage, "--loss {}: '{}' {} has no axis {}; its axes are 0 to {} (PyTorch: axis=1)",
         lossToString(term), scores.name, namedShape(scores, allAxes(scores)), *term.class_axis, rank - 1);
  }
  return static_cast<size_t>(axis);
}

// Of labels that the graph has. Where several axes fit, the first one of these is meant.
size_t LossWriter::classAxisOf(const LossTerm& term, const Value& scores, ValueId labels) const {
  const Value& value = graph_.value(labels);
  if (!isInteger(value.data_type) || !value.shape) {
    fail(ErrorCode::kUsage, "--loss {}: the labels '{}' are no integer tensor of known rank",
         lossToString(term), value.name);
  }
  const Shape& shape = *scores.shape;
  std::vector<size_t> possible = {shape.size() - 1, 1};
  if (const auto made = made_labels_.find(labels); made != made_labels_.end()) possible = {made->second};
  if (term.class_axis) possible = {askedClassAxis(term, scores)};
  for (const size_t axis : possible) {
    if (fitsClassAxis(shape, *value.shape, axis)) return axis;
  }
  fail(ErrorCode::kUsage, "--loss {}: labels '{}' of shape {} do not fit logits '{}' of shape {}",
       lossToString(term), value.name, shapeToString(*value.shape), scores.name, shapeToString(shape));
}

// Images have their classes on axis 1, sequences of tokens on the last one.
size_t LossWriter::classAxisOfNewLabels(const LossTerm& term, const Value& scores) {
  if (term.class_axis) return askedClassAxis(term, scores);
  const size_t rank = scores.shape->size();
  const size_t axis = rank == 3 ? 2 : 1, other = rank == 3 ? 1 : rank - 1;
  if (rank > 2 && notes_ != nullptr) {
    notes_->push_back(
        fmt::format("--loss {}: the classes are taken to be axis {} of '{}' {}, so that '{}' is {}; with "
                    "axis={} they are axis {}, and it is {}",
                    lossToString(term), axis, scores.name, namedShape(scores, allAxes(scores)), term.target,
                    namedShape(scores, axesWithout(scores, axis)), other, other,
                    namedShape(scores, axesWithout(scores, other))));
  }
  return axis;
}

LossWriter::Scores LossWriter::scoresOf(const LossTerm& term) {
  ValueId scores = prediction(term);
  const Value scores_value = graph_.value(scores);
  const Shape shape = *scores_value.shape;
  if (shape.size() < 2) {
    fail(ErrorCode::kUsage,
         "--loss {}: '{}' has shape {}, but logits are [batch, classes] or [batch, ..., classes]",
         lossToString(term), scores_value.name, shapeToString(shape));
  }
  const size_t rank = shape.size();
  const std::optional<ValueId> existing = builder_.find(term.target);
  const size_t class_axis =
      existing ? classAxisOf(term, scores_value, *existing) : classAxisOfNewLabels(term, scores_value);
  ValueId labels = existing ? *existing
                            : newTarget(term.target, DataType::kInt64, scores_value,
                                        axesWithout(scores_value, class_axis));
  if (!existing) made_labels_[labels] = class_axis;
  if (class_axis + 1 == rank && rank > 2 && shape.back() != kUnknownSize) {
    scores = flatten(scores, {-1, shape.back()});
    labels = flatten(labels, {-1});
  } else if (class_axis != 1) {
    std::vector<int64_t> permutation;
    for (const size_t axis : axesWithout(scores_value, class_axis))
      permutation.push_back(static_cast<int64_t>(axis));
    permutation.insert(permutation.begin() + 1, static_cast<int64_t>(class_axis));
    scores = op("Transpose", {scores}, scores_value.name + ".classes_second", scores_value.data_type,
                std::nullopt, {{"perm", permutation}});
  }
  return {scores, labels, scores_value};
}

ValueId LossWriter::crossEntropy(const LossTerm& term) {
  const Scores given = scoresOf(term);
  const DataType type = given.like.data_type;
  const std::map<std::string, Attribute> mean = {{"reduction", std::string("mean")},
                                                 {"ignore_index", kIgnoreIndex}};
  const bool scores = term.kind == LossTerm::Kind::kCrossEntropy;
  if (scores && term.label_smoothing == 0)
    return op("SoftmaxCrossEntropyLoss", {given.scores, given.labels}, "loss", type, Shape{}, mean);
  const ValueId logarithms = scores ? op("LogSoftmax", {given.scores}, "loss.log_probabilities", type,
                                         graph_.value(given.scores).shape, {{"axis", int64_t{1}}})
                                    : given.scores;
  return term.label_smoothing == 0
             ? op("NegativeLogLikelihoodLoss", {logarithms, given.labels}, "loss", type, Shape{}, mean)
             : smoothed(term, given, logarithms);
}

// The mean over labels that count of (1 - e) l + e u: l their own -log p, u the mean of -log p over all
// classes. As one quotient, so that it tells what it is a mean of.
ValueId LossWriter::smoothed(const LossTerm& term, const Scores& scores, ValueId log_probabilities) {
  const Value& like = scores.like;
  const DataType type = like.data_type, label_type = graph_.dataType(scores.labels);
  const ValueId ignored =
      builder_.addConstant("loss.ignored", makeScalar(label_type, static_cast<double>(kIgnoreIndex)));
  const std::optional<Shape> places = graph_.value(scores.labels).shape;
  const ValueId out = op("Equal", {scores.labels, ignored}, "loss.is_ignored", DataType::kBool, places);
  const ValueId in = op("Not", {out}, "loss.counts", DataType::kBool, places);
  const ValueId counts = op("Cast", {in}, "loss.counts", type, places, {{"to", static_cast<int64_t>(type)}});
  const ValueId average = meanOfClasses(log_probabilities, type, places);
  const ValueId kept = op("Mul", {average, counts}, "loss.mean_of_counted", type, places);
  const ValueId own = op("NegativeLogLikelihoodLoss", {log_probabilities, scores.labels}, "loss.of_labels",
                         type, places, {{"reduction", std::string("none")}, {"ignore_index", kIgnoreIndex}});
  const ValueId sharp = op("Mul", {own, number(1 - term.label_smoothing, like)}, "loss.sharp", type, places);
  const ValueId smooth = op("Mul", {kept, number(-term.label_smoothing, like)}, "loss.smooth", type, places);
  const ValueId both = op("Add", {sharp, smooth}, "loss.smoothed", type, places);
  return op("Div", {total(both, like), total(counts, like)}, "loss", type, Shape{});
}

// Its axes are an input from opset 18 on.
ValueId LossWriter::meanOfClasses(ValueId log_probabilities, DataType type,
                                  const std::optional<Shape>& places) {
  const std::vector<int64_t> class_axis = {1};
  std::vector<ValueId> inputs = {log_probabilities};
  std::map<std::string, Attribute> attributes = {{"keepdims", int64_t{0}}};
  const auto opset = graph_.opset_imports.find("");
  if (opset != graph_.opset_imports.end() && opset->second < 18)
    attributes["axes"] = class_axis;
  else
    inputs.push_back(builder_.addConstant("loss.class_axis", makeConstant<int64_t>({1}, class_axis)));
  return op("ReduceMean", inputs, "loss.mean_of_classes", type, places, std::move(attributes));
}

ValueId LossWriter::same(std::string_view op_type, std::vector<ValueId> inputs, const Value& like) {
  const ValueId result =
      op(op_type, std::move(inputs), fmt::format("loss.{}", op_type), like.data_type, like.shape);
  graph_.value(result).symbols = like.symbols;
  return result;
}

ValueId LossWriter::number(double number, const Value& like) {
  const ValueId made = builder_.addConstant("loss.number", makeScalar(like.data_type, number));
  markMade(graph_.value(made));
  markExactNumber(graph_.value(made), number);
  return made;
}

ValueId LossWriter::mean(std::string_view name, ValueId x, const Value& like) {
  return op("ReduceMean", {x}, name, like.data_type, Shape{}, {{"keepdims", int64_t{0}}});
}

ValueId LossWriter::total(ValueId x, const Value& like) {
  return op("ReduceSum", {x}, "loss.total", like.data_type, Shape{}, {{"keepdims", int64_t{0}}});
}

// A prediction against a target of its shape.
ValueId LossWriter::elementwise(const LossTerm& term) {
  const ValueId predicted = prediction(term);
  const Value value = graph_.value(predicted);
  const std::optional<ValueId> existing = builder_.find(term.target);
  ValueId target = existing ? *existing : newTarget(term.target, value.data_type, value, allAxes(value));
  const Value given = graph_.value(target);
  const bool number = isFloatingPoint(given.data_type)
                          ? given.data_type == value.data_type
                          : isInteger(given.data_type) || given.data_type == DataType::kBool;
  if (!number || (given.shape && given.shape->size() != value.shape->size())) {
    fail(ErrorCode::kUsage, "--loss {}: '{}' is {}{} but '{}' is {}{}", lossToString(term), value.name,
         dataTypeName(value.data_type), shapeToString(*value.shape), given.name,
         dataTypeName(given.data_type), given.shape ? shapeToString(*given.shape) : "");
  }
  if (given.data_type != value.data_type) {
    target = op("Cast", {target}, "loss.target", value.data_type, given.shape,
                {{"to", static_cast<int64_t>(value.data_type)}});
    graph_.value(target).symbols = given.symbols;
  }
  return mean("loss", elementLoss(term.kind, predicted, target, value), value);
}

// Of every element. Logarithms of probabilities are at least -100, as PyTorch has them.
ValueId LossWriter::elementLoss(LossTerm::Kind kind, ValueId x, ValueId t, const Value& like) {
  using Kind = LossTerm::Kind;
  if (kind == Kind::kBinaryCrossEntropyWithLogits)  // log(1 + e^x) - t x
    return same("Sub", {same("Softplus", {x}, like), same("Mul", {t, x}, like)}, like);
  if (kind == Kind::kBinaryCrossEntropy) {  // -(t log x + (1 - t) log(1 - x))
    const ValueId one = number(1, like), least = number(-100, like);
    const ValueId yes = same("Max", {same("Log", {x}, like), least}, like);
    const ValueId no = same("Max", {same("Log", {same("Sub", {one, x}, like)}, like), least}, like);
    const ValueId likely = same(
        "Add", {same("Mul", {t, yes}, like), same("Mul", {same("Sub", {one, t}, like), no}, like)}, like);
    return same("Neg", {likely}, like);
  }
  const ValueId difference = same("Sub", {x, t}, like);
  if (kind == Kind::kMeanSquaredError) return same("Mul", {difference, difference}, like);
  const ValueId size = same("Abs", {difference}, like);
  if (kind == Kind::kL1) return size;
  // smooth L1: m (|d| - m / 2) with m = min(|d|, 1)
  const ValueId small = same("Min", {size, number(1, like)}, like);
  return same("Mul", {small, same("Sub", {size, same("Mul", {small, number(0.5, like)}, like)}, like)}, like);
}

ValueId LossWriter::of(const LossTerm& term) {
  using Kind = LossTerm::Kind;
  if (term.kind == Kind::kCrossEntropy || term.kind == Kind::kNegativeLogLikelihood)
    return crossEntropy(term);
  return elementwise(term);
}

ValueId LossWriter::sum(const std::vector<LossTerm>& terms, const std::vector<ValueId>& losses) {
  ValueId sum;
  for (size_t i = 0; i < terms.size(); ++i) {
    const Value like = graph_.value(losses[i]);
    const ValueId weighted = terms[i].weight == 1 ? losses[i]
                                                  : op("Mul", {losses[i], number(terms[i].weight, like)},
                                                       "loss.weighted", like.data_type, Shape{});
    sum = sum.valid() ? op("Add", {sum, weighted}, "loss.sum", like.data_type, Shape{}) : weighted;
  }
  return sum;
}

ValueId LossWriter::scalarOf(ValueId output) {
  const Value value = graph_.value(output);
  if (!value.shape || value.shape->empty()) return output;
  return op("ReduceSum", {output}, value.name + ".scalar", value.data_type, Shape{},
            {{"keepdims", int64_t{0}}});
}

// Ready-to-paste options for every floating-point output.
std::vector<std::string> lossOptions(const Graph& graph) {
  std::vector<std::string> options;
  for (ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    if (!value.shape || isScalar(value)) options.push_back(fmt::format("--loss {}", value.name));
    if (isScalar(value)) continue;
    for (const std::string& loss : likelyLosses(graph, id)) options.push_back("--loss " + loss);
  }
  return options;
}

[[noreturn]] void failAmbiguous(const Graph& graph, std::string_view found) {
  const std::vector<std::string> options = lossOptions(graph);
  if (options.empty()) {
    std::vector<std::string> outputs;
    for (ValueId id : graph.outputs)
      outputs.push_back(fmt::format("{} ({})", graph.value(id).name, dataTypeName(graph.dataType(id))));
    fail(ErrorCode::kBadModel,
         "{}, and no floating-point output that a loss could be made of (outputs: {}); export the model with "
         "its loss",
         found, outputs.empty() ? "none" : fmt::format("{}", fmt::join(outputs, ", ")));
  }
  fail(ErrorCode::kUsage, "{}; say what the loss is with one of\n  {}", found, fmt::join(options, "\n  "));
}

bool mayBeLoss(const Graph& graph, ValueId output) {
  const Value& value = graph.value(output);
  return isFloatingPoint(value.data_type) && (isScalar(value) || (!value.shape && graph.outputs.size() == 1));
}

ValueId chooseOutput(const Graph& graph, const std::string& name) {
  std::vector<ValueId> candidates;
  for (ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    if (name.empty() ? mayBeLoss(graph, id) : value.name == name) candidates.push_back(id);
  }
  if (candidates.size() > 1)
    failAmbiguous(graph, fmt::format("the model has {} scalar outputs", candidates.size()));
  if (candidates.empty() && name.empty()) failAmbiguous(graph, "the model has no scalar output");
  if (candidates.empty()) {
    const std::vector<std::string> kinds = lossKinds();
    const bool is_kind = std::find(kinds.begin(), kinds.end(), name) != kinds.end();
    failAmbiguous(
        graph, fmt::format("the model has no output '{}'{}", name,
                           is_kind ? fmt::format(" (the kind is --loss {}:PREDICTION,TARGET)", name) : ""));
  }
  const Value& value = graph.value(candidates[0]);
  if (!isFloatingPoint(value.data_type) || (value.shape && !isScalar(value))) {
    failAmbiguous(graph, fmt::format("output '{}' is no floating-point scalar", value.name));
  }
  return candidates[0];
}

}  // namespace

bool hasLossOutput(const Graph& graph) {
  return std::any_of(graph.outputs.begin(), graph.outputs.end(),
                     [&](ValueId output) { return mayBeLoss(graph, output); });
}

ValueId attachLoss(Graph& graph, const LossSpec& spec, std::vector<std::string>* notes) {
  if (spec.isNone()) return ValueId();
  LossWriter writer(graph, notes);
  std::vector<ValueId> losses;
  for (const LossTerm& term : spec.terms) {
    losses.push_back(term.kind == LossTerm::Kind::kModelOutput
                         ? writer.scalarOf(chooseOutput(graph, term.prediction))
                         : writer.of(term));
  }
  const ValueId loss = writer.sum(spec.terms, losses);
  if (std::find(graph.outputs.begin(), graph.outputs.end(), loss) == graph.outputs.end())
    graph.outputs.push_back(loss);
  return loss;
}

}  // namespace pipeshard
