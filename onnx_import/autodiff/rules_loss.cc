// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss.
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// The node becomes our function, which keeps two numbers of each label, not a matrix of log-probabilities.
// Where somebody reads that matrix it is there already, and is scores whose largest counts as 0 and whose
// exponentials have the sum 1.
void softmaxCrossEntropyLossGradient(GradientContext& c) {
  if (c.outputGradient(1).valid())
    c.refuse("the loss depends on its output LogProb; use LogSoftmax for that");
  const DataType type = c.type(c.input(0));
  const Shape shape = c.shape(c.input(0));
  const Shape of_labels = c.shape(c.input(1));
  const std::string reduction = c.node().stringAttribute("reduction", "mean");
  const std::string overload = reduction + (c.hasInput(2) ? "_weighted" : "");
  const GradientContext::Attributes attributes = {
      {"reduction", reduction},
      {"ignore_index", c.node().intAttribute("ignore_index", 0)},
      {"has_ignore_index", int64_t{c.node().hasAttribute("ignore_index")}}};
  ValueId scores = c.input(0), most, sum;
  if (c.node().outputs.size() > 1 && c.output(1).valid()) {
    scores = c.output(1);
    most = c.expand(c.scalar(type, 0), of_labels);
    sum = c.expand(c.scalar(type, 1), of_labels);
  } else {
    c.becomeFunction("CrossEntropyLoss", overload, attributes);
    most = c.ensureOutput(1, "row_max", type, of_labels);
    sum = c.ensureOutput(2, "row_sum", type, of_labels);
  }
  std::vector<ValueId> inputs = {c.outputGradient(), scores, most, sum, c.input(1)};
  if (c.hasInput(2)) inputs.push_back(c.input(2));
  c.give(0, c.function("CrossEntropyLossGrad", overload, std::move(inputs), type, shape, attributes));
}

// dX[n, target, ..] = -weight[target] * dLoss, elsewhere 0; for a mean divided by the sum of the weights.
void negativeLogLikelihoodLossGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const DataType type = c.type(x);
  const Shape data_shape = c.shape(x);
  ValueId target = c.cast(c.input(1), DataType::kInt64);
  const Shape target_shape = c.shape(target);
  const std::string reduction = c.node().stringAttribute("reduction", "mean");
  ValueId weight = c.expand(c.scalar(type, 1), target_shape);
  ValueId ignored;
  if (c.node().hasAttribute("ignore_index")) {
    ignored =
        c.compare("Equal", target,
                  c.scalar(DataType::kInt64, static_cast<double>(c.node().intAttribute("ignore_index", 0))));
    target = c.where(ignored, c.scalar(DataType::kInt64, 0), target);
  }
  if (c.hasInput(2))
    weight = c.op("Gather", {c.input(2), target}, type, target_shape, {{"axis", int64_t{0}}});
  if (ignored.valid()) weight = c.where(ignored, c.scalar(type, 0), weight);
  ValueId upstream = c.outputGradient();
  if (reduction == "mean") {
    std::vector<int64_t> axes;
    for (size_t i = 0; i < target_shape.size(); ++i) axes.push_back(i);
    upstream = c.binary("Div", upstream, c.reduceSum(weight, axes, false));
  }
  const ValueId taken = c.scale(c.multiply(weight, upstream), -1);
  Shape column = target_shape;
  column.insert(column.begin() + 1, 1);
  c.give(0, c.function("GatherElementsGrad", "",
                       {c.reshape(taken, column), c.reshape(target, column), c.integers(data_shape)}, type,
                       data_shape, {{"axis", int64_t{1}}}));
}

}  // namespace

void addLossRules(GradientRules& rules) {
  // Labels and class weights: the former are indices, the latter are taken as constants (as in torch).
  rules[{"", "SoftmaxCrossEntropyLoss"}] = {softmaxCrossEntropyLossGradient, 2 | 4};
  rules[{"", "NegativeLogLikelihoodLoss"}] = {negativeLogLikelihoodLossGradient, 2 | 4};
}

}  // namespace pipeshard
