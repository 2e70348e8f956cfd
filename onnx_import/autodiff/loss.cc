#include "onnx_import/autodiff/loss.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::string_view kCrossEntropy = "cross-entropy";
constexpr std::string_view kMeanSquaredError = "mse";
constexpr int64_t kIgnoreIndex = -100;  // of PyTorch's cross_entropy

[[noreturn]] void failLossForm(std::string_view text) {
  fail(ErrorCode::kUsage,
       "--loss '{}' is not understood; use --loss NAME (a scalar output of the model), --loss "
       "cross-entropy:LOGITS,LABELS or --loss mse:PREDICTION,TARGET",
       text);
}

bool isScalar(const Value& value) {
  return value.shape && (value.shape->empty() || *value.shape == Shape{1});
}

// Adds nodes behind existing values, whose shapes may be symbolic.
//
// Cross-entropy: ONNX wants the classes on axis 1. Where the labels fit the scores without their last axis,
// classes are last, and of more than two axes the scores are brought into that form:
//   scores [batch, tokens, 50]             reshaped to [-1, 50], labels to [-1]
//   scores [batch, tokens, classes]        (classes unknown) transposed to [batch, classes, tokens]
//   scores [batch, classes, height, width] as they are, with labels [batch, height, width]
class LossWriter {
 public:
  explicit LossWriter(Graph& graph) : graph_(graph), builder_(graph) {}

  ValueId crossEntropy(const LossSpec& spec);
  ValueId meanSquaredError(const LossSpec& spec);
  ValueId scalarOf(ValueId output);

 private:
  ValueId prediction(const LossSpec& spec) const;
  ValueId newTarget(const std::string& name, DataType type, const Value& like, size_t rank);
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, std::string_view name, DataType type,
             std::optional<Shape> shape, std::map<std::string, Attribute> attributes = {});
  ValueId flatten(ValueId value, const std::vector<int64_t>& shape);

  Graph& graph_;
  GraphBuilder builder_;
};

ValueId LossWriter::op(std::string_view op_type, std::vector<ValueId> inputs, std::string_view name,
                       DataType type, std::optional<Shape> shape,
                       std::map<std::string, Attribute> attributes) {
  const ValueId result = builder_.addValue(name, type, {});
  graph_.value(result).shape = std::move(shape);
  const NodeId node = builder_.addNode("", op_type, std::move(inputs), {result}, std::move(attributes));
  graph_.node(node).name = fmt::format("loss/{}", op_type);
  return result;
}

ValueId LossWriter::prediction(const LossSpec& spec) const {
  const std::optional<ValueId> found = builder_.find(spec.prediction);
  if (!found) {
    std::vector<std::string> outputs;
    for (ValueId id : graph_.outputs) outputs.push_back(graph_.value(id).name);
    fail(ErrorCode::kUsage, "--loss {}: the model has no value '{}'; its outputs are {}", lossToString(spec),
         spec.prediction, fmt::join(outputs, ", "));
  }
  const Value& value = graph_.value(*found);
  if (!value.shape || !isFloatingPoint(value.data_type)) {
    fail(ErrorCode::kUsage, "--loss {}: '{}' is no floating-point tensor of known rank", lossToString(spec),
         value.name);
  }
  return *found;
}

// A graph input of the first `rank` axes of `like`, symbols included, so that it is bound with the others.
ValueId LossWriter::newTarget(const std::string& name, DataType type, const Value& like, size_t rank) {
  const Shape shape(like.shape->begin(), like.shape->begin() + rank);
  std::vector<std::string> symbols = like.symbols;
  symbols.resize(std::min(symbols.size(), rank));
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool unnamed = shape[axis] == kUnknownSize && (axis >= symbols.size() || symbols[axis].empty());
    if (!unnamed) continue;
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

ValueId LossWriter::crossEntropy(const LossSpec& spec) {
  ValueId scores = prediction(spec);
  const Value scores_value = graph_.value(scores);
  const Shape shape = *scores_value.shape;
  if (shape.size() < 2) {
    fail(ErrorCode::kUsage,
         "--loss {}: '{}' has shape {}, but logits are [batch, classes] or [batch, ..., classes]",
         lossToString(spec), scores_value.name, shapeToString(shape));
  }
  const size_t rank = shape.size();
  const std::optional<ValueId> existing = builder_.find(spec.target);
  ValueId labels = existing ? *existing : newTarget(spec.target, DataType::kInt64, scores_value, rank - 1);
  const Value labels_value = graph_.value(labels);
  if (!isInteger(labels_value.data_type) || !labels_value.shape) {
    fail(ErrorCode::kUsage, "--loss {}: the labels '{}' are no integer tensor of known rank",
         lossToString(spec), labels_value.name);
  }
  const bool class_last = fitsClassAxis(shape, *labels_value.shape, rank - 1);
  if (!class_last && !fitsClassAxis(shape, *labels_value.shape, 1)) {
    fail(ErrorCode::kUsage, "--loss {}: labels '{}' of shape {} do not fit logits '{}' of shape {}",
         lossToString(spec), labels_value.name, shapeToString(*labels_value.shape), scores_value.name,
         shapeToString(shape));
  }
  if (class_last && rank > 2 && shape.back() != kUnknownSize) {
    scores = flatten(scores, {-1, shape.back()});
    labels = flatten(labels, {-1});
  } else if (class_last && rank > 2) {
    std::vector<int64_t> permutation(rank);
    std::iota(permutation.begin(), permutation.end(), 0);
    std::rotate(permutation.begin() + 1, permutation.end() - 1, permutation.end());
    scores = op("Transpose", {scores}, scores_value.name + ".classes_second", scores_value.data_type,
                std::nullopt, {{"perm", permutation}});
  }
  return op("SoftmaxCrossEntropyLoss", {scores, labels}, "loss", scores_value.data_type, Shape{},
            {{"reduction", std::string("mean")}, {"ignore_index", kIgnoreIndex}});
}

ValueId LossWriter::meanSquaredError(const LossSpec& spec) {
  const ValueId predicted = prediction(spec);
  const Value value = graph_.value(predicted);
  const std::optional<ValueId> existing = builder_.find(spec.target);
  const ValueId target =
      existing ? *existing : newTarget(spec.target, value.data_type, value, value.shape->size());
  const Value target_value = graph_.value(target);
  if (target_value.data_type != value.data_type ||
      (target_value.shape && target_value.shape->size() != value.shape->size())) {
    fail(ErrorCode::kUsage, "--loss {}: '{}' is {}{} but '{}' is {}{}", lossToString(spec), value.name,
         dataTypeName(value.data_type), shapeToString(*value.shape), target_value.name,
         dataTypeName(target_value.data_type), target_value.shape ? shapeToString(*target_value.shape) : "");
  }
  const ValueId difference = op("Sub", {predicted, target}, "loss.difference", value.data_type, value.shape);
  graph_.value(difference).symbols = value.symbols;
  const ValueId square = op("Mul", {difference, difference}, "loss.square", value.data_type, value.shape);
  graph_.value(square).symbols = value.symbols;
  return op("ReduceMean", {square}, "loss", value.data_type, Shape{}, {{"keepdims", int64_t{0}}});
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
    if (value.shape && value.shape->size() >= 2)
      options.push_back(fmt::format("--loss cross-entropy:{},labels", value.name));
    options.push_back(fmt::format("--loss mse:{},target", value.name));
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

ValueId chooseOutput(const Graph& graph, const std::string& name) {
  std::vector<ValueId> candidates;
  for (ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    const bool may_be_loss =
        isFloatingPoint(value.data_type) && (isScalar(value) || (!value.shape && graph.outputs.size() == 1));
    if (name.empty() ? may_be_loss : value.name == name) candidates.push_back(id);
  }
  if (candidates.size() > 1)
    failAmbiguous(graph, fmt::format("the model has {} scalar outputs", candidates.size()));
  if (candidates.empty() && name.empty()) failAmbiguous(graph, "the model has no scalar output");
  if (candidates.empty()) failAmbiguous(graph, fmt::format("the model has no output '{}'", name));
  const Value& value = graph.value(candidates[0]);
  if (!isFloatingPoint(value.data_type) || (value.shape && !isScalar(value))) {
    failAmbiguous(graph, fmt::format("output '{}' is no floating-point scalar", value.name));
  }
  return candidates[0];
}

}  // namespace

LossSpec parseLoss(std::string_view text) {
  LossSpec spec;
  const size_t colon = text.find(':');
  const std::string_view kind = colon == std::string_view::npos ? std::string_view() : text.substr(0, colon);
  if (kind != kCrossEntropy && kind != kMeanSquaredError) {
    // A name may hold a colon ("loss:0"), but not look like a form.
    if (text.find(',') != std::string_view::npos || text == kCrossEntropy || text == kMeanSquaredError)
      failLossForm(text);
    spec.prediction = text;
    return spec;
  }
  spec.kind = kind == kCrossEntropy ? LossSpec::Kind::kCrossEntropy : LossSpec::Kind::kMeanSquaredError;
  const std::string_view names = text.substr(colon + 1);
  const size_t comma = names.find(',');
  if (comma == std::string_view::npos || comma == 0 || comma + 1 == names.size() ||
      names.find(',', comma + 1) != std::string_view::npos) {
    failLossForm(text);
  }
  spec.prediction = names.substr(0, comma);
  spec.target = names.substr(comma + 1);
  return spec;
}

std::string lossToString(const LossSpec& spec) {
  if (spec.kind == LossSpec::Kind::kModelOutput) return spec.prediction;
  return fmt::format("{}:{},{}",
                     spec.kind == LossSpec::Kind::kCrossEntropy ? kCrossEntropy : kMeanSquaredError,
                     spec.prediction, spec.target);
}

ValueId attachLoss(Graph& graph, const LossSpec& spec) {
  LossWriter writer(graph);
  ValueId loss;
  switch (spec.kind) {
    case LossSpec::Kind::kModelOutput: loss = writer.scalarOf(chooseOutput(graph, spec.prediction)); break;
    case LossSpec::Kind::kCrossEntropy: loss = writer.crossEntropy(spec); break;
    case LossSpec::Kind::kMeanSquaredError: loss = writer.meanSquaredError(spec); break;
  }
  if (std::find(graph.outputs.begin(), graph.outputs.end(), loss) == graph.outputs.end())
    graph.outputs.push_back(loss);
  return loss;
}

}  // namespace pipeshard
