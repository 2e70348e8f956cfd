// Classification losses with the classes cut (a device knows the scores of a part of the vocabulary), and
// means over labels that are cut.
//
// log_prob = score - max - log(sum of exp), max and sum over all devices of the classes (what a cross-entropy
// keeps of each label for its gradient); the device that holds a label's class gives its term, the others 0:
// a partial sum. A mean is divided by the weight of all labels, so each device of the labels gives its share.
#include <numeric>

#include <fmt/format.h>

#include "sharding/spmd/exchange_softmax.h"
#include "sharding/spmd/local_indices.h"

namespace pipeshard {
namespace {

bool isLossGradient(const Node& node) { return node.op_type == "CrossEntropyLossGrad"; }

// Positions of the inputs; what the forms know about labels.
struct LossInputs {
  size_t scores, labels, weights;
};
LossInputs lossInputs(const Node& node) {
  return isLossGradient(node) ? LossInputs{1, 4, 5} : LossInputs{0, 1, 2};
}

std::string reductionOf(const Node& node) { return node.stringAttribute("reduction", "mean"); }

bool ignores(const Node& node) {
  return node.domain.empty() ? node.hasAttribute("ignore_index")
                             : node.intAttribute("has_ignore_index", 0) != 0;
}

const ExchangeForm* lossCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  static const ExchangeForm form{{true, false}};
  const TensorFactors& scores = rule.inputs[lossInputs(node).scores];
  if (!isReal(graph, node.inputs[lossInputs(node).scores]) || scores.size() < 2) return nullptr;
  const bool of_classes = soleFactor(scores, 1) == factor;
  bool of_labels = false;
  for (size_t axis = 0; axis < scores.size(); ++axis)
    of_labels = of_labels || (axis != 1 && soleFactor(scores, axis) == factor);
  if (!of_classes && !(of_labels && reductionOf(node) == "mean")) return nullptr;
  return isLossGradient(node) ? wholeOutputs() : &form;
}

// Emits one device's part of a loss or of its gradient. The scores may be cut along the classes (axis 1) and
// along the axes that they share with the labels, each independently: class_groups_ and label_groups_ are the
// groups to sum over for the one and for the other, and an empty list sums nothing. Where classes are cut, a
// device asks for every label whether its class is here (LocalIndices::mine) and which of its own classes it
// is (index).
//
//   4 classes on 2 devices, label 2: the second device holds classes 2 and 3, index 0, and gives
//   -log_prob of it; the first one gives 0. The output is a partial sum over the classes' mesh axis.
class LossForm {
 public:
  explicit LossForm(FormContext& context)
      : context_(context),
        emit_(context.emit),
        at_(lossInputs(context.node)),
        labels_(context.inputs[at_.labels]) {
    const TensorFactors& scores = context.rule.inputs[at_.scores];
    std::vector<int> label_factors;
    for (size_t axis = 0; axis < scores.size(); ++axis) {
      if (axis != 1) label_factors.push_back(soleFactor(scores, axis));
    }
    class_groups_ = context.groupsOf({soleFactor(scores, 1)});
    label_groups_ = context.groupsOf(label_factors);
    classes_cut_ = !context.strategy.inputs[at_.scores].axes[1].empty();
    if (ignores(context.node)) {
      const auto index = static_cast<double>(context.node.intAttribute("ignore_index", 0));
      ignored_ = emit_.compare("Equal", labels_, emit_.scalar(emit_.type(labels_), index));
    }
  }

  void forward() {
    if (!classes_cut_) return forwardOfWholeClasses();
    const LocalIndices local = localLabels();
    ValueId term = atLabels(context_.inputs[0], local);
    if (!context_.node.is("NegativeLogLikelihoodLoss")) {
      const ShiftedSum parts = shiftedSum(emit_, context_.inputs[0], {1}, class_groups_);
      const ValueId log = emit_.unary("Log", parts.sum);
      term = emit_.binary("Sub", emit_.binary("Sub", term, parts.most), log);
      giveOfRows(parts, log);
    }
    const DataType type = emit_.type(term);
    term = emit_.unary("Neg", emit_.squeeze(term, 1));
    ValueId counts = local.mine;
    ValueId weight;
    if (context_.hasInput(at_.weights)) {
      weight = weightsHere(local);
      term = emit_.binary("Mul", weight, term);
      // A class without weight counts nothing, also where its probability is 0.
      counts = emit_.binary("And", counts,
                            emit_.unary("Not", emit_.compare("Equal", weight, emit_.scalar(type, 0))));
    }
    if (reductionOf(context_.node) == "none") {
      return emit_.give(0, "Where", {counts, term, emit_.scalar(type, 0)}, type, emit_.shape(labels_));
    }
    reduceTerms(emit_.where(counts, term, emit_.scalar(type, 0)), totalWeight(weight, class_groups_));
  }

  // dScores = exp(score - max) share / sum - (share at the label), share = dLoss weight / (weight of all
  // labels, for a mean)
  void gradient() {
    if (!classes_cut_) return gradientOfWholeClasses();
    const ValueId scores = context_.inputs[1];
    const DataType type = emit_.type(scores);
    const LocalIndices local = localLabels();
    ValueId weight;  // of each label, on all devices of its classes
    if (context_.hasInput(at_.weights)) {
      weight = emit_.allReduce(weightsHere(local), class_groups_);
    } else if (ignored_.valid()) {
      weight = counted(type);
    }
    ValueId share = context_.inputs[0];
    if (weight.valid()) share = emit_.binary("Mul", weight, share);
    if (reductionOf(context_.node) == "mean") share = emit_.binary("Div", share, totalWeight(weight, {}));
    const ValueId zero = emit_.scalar(type, 0);
    // also where no label counts
    if (weight.valid()) share = emit_.where(emit_.compare("Equal", weight, zero), zero, share);
    const ValueId exponential =
        emit_.unary("Exp", emit_.binary("Sub", scores, emit_.unsqueeze(context_.inputs[2], {1})));
    const ValueId scale = emit_.unsqueeze(emit_.binary("Div", share, context_.inputs[3]), {1});
    const ValueId spread = emit_.binary("Mul", exponential, scale);
    const ValueId at_label = emit_.unsqueeze(emit_.where(local.mine, emit_.unary("Neg", share), zero), {1});
    emit_.give(0, "ScatterElements", {spread, emit_.unsqueeze(local.index, {1}), at_label}, type,
               emit_.shape(scores), {{"axis", int64_t{1}}, {"reduction", std::string("add")}});
  }

 private:
  // x at the class of each label, size 1 along the classes.
  ValueId atLabels(ValueId x, const LocalIndices& local) {
    Shape column = emit_.shape(labels_);
    column.insert(column.begin() + 1, 1);
    return emit_.op("GatherElements", {x, emit_.unsqueeze(local.index, {1})}, emit_.type(x), column,
                    {{"axis", int64_t{1}}});
  }

  // The outputs behind the loss: log-probabilities, or the two numbers of each label.
  void giveOfRows(const ShiftedSum& parts, ValueId log_of_sum) {
    if (context_.node.is("SoftmaxCrossEntropyLoss"))
      return emit_.giveElementwise(1, "Sub", {parts.shifted, log_of_sum});
    const ValueId classes = emit_.integers({1});
    const Shape shape = emit_.shape(labels_);
    emit_.give(1, "Squeeze", {parts.most, classes}, emit_.type(parts.most), shape);
    emit_.give(2, "Squeeze", {parts.sum, classes}, emit_.type(parts.sum), shape);
  }

  // Labels alone are cut, and the loss is their mean: each device's mean counts by the weight of its labels.
  // Where that is 0 the mean of none is left out.
  void forwardOfWholeClasses() {
    const DataType type = emit_.type(context_.inputs[0]);
    const ValueId mean = emit_.value(type, {});
    std::vector<ValueId> outputs = {mean};
    for (size_t position = 1; position < context_.node.outputs.size(); ++position) {
      const bool of_classes = context_.node.domain.empty();
      outputs.push_back(emit_.target(position, type, emit_.shape(of_classes ? context_.inputs[0] : labels_)));
    }
    emit_.copy(context_.inputs, context_.node.attributes, std::move(outputs));
    const ValueId weight =
        context_.hasInput(at_.weights) ? weightsHere({safeLabels(), ValueId()}) : ValueId();
    const ValueId here = localWeight(weight);
    const ValueId zero = emit_.scalar(type, 0);
    const ValueId sum =
        emit_.where(emit_.compare("Equal", here, zero), zero, emit_.binary("Mul", mean, here));
    emit_.giveElementwise(0, "Div", {sum, totalWeight(weight, {})});
  }

  // The operator divides by the weight of its own labels: dLoss is multiplied by their share.
  void gradientOfWholeClasses() {
    const DataType type = emit_.type(context_.inputs[1]);
    const ValueId weight =
        context_.hasInput(at_.weights) ? weightsHere({safeLabels(), ValueId()}) : ValueId();
    const ValueId here = localWeight(weight);
    const ValueId share = emit_.binary("Div", here, totalWeight(weight, {}));
    std::vector<ValueId> inputs = context_.inputs;
    inputs[0] = emit_.binary("Mul", inputs[0], share);
    emit_.copy(std::move(inputs), context_.node.attributes,
               {emit_.target(0, type, emit_.shape(context_.inputs[1]))});
  }

  // Ignored labels name no class; here they name class 0.
  ValueId safeLabels() {
    return ignored_.valid() ? emit_.where(ignored_, emit_.scalar(emit_.type(labels_), 0), labels_) : labels_;
  }

  LocalIndices localLabels() {
    const AxisPart part =
        axisPart(context_, context_.strategy.inputs[at_.scores], context_.wholeInput(at_.scores), 1);
    return localIndices(emit_, labels_, part, false, ignored_);
  }

  // 1 for a label that counts, else 0.
  ValueId counted(DataType type) { return emit_.cast(emit_.unary("Not", ignored_), type); }

  // The weight of each label whose class is here, else 0.
  ValueId weightsHere(const LocalIndices& local) {
    const ValueId weights = context_.inputs[at_.weights];
    const DataType type = emit_.type(weights);
    ValueId result =
        emit_.op("Gather", {weights, local.index}, type, emit_.shape(labels_), {{"axis", int64_t{0}}});
    if (local.mine.valid()) {
      result = emit_.where(local.mine, result, emit_.scalar(type, 0));
    } else if (ignored_.valid()) {
      result = emit_.where(ignored_, emit_.scalar(type, 0), result);
    }
    return result;
  }

  std::vector<int64_t> labelAxes() const {
    std::vector<int64_t> axes(emit_.shape(labels_).size());
    std::iota(axes.begin(), axes.end(), int64_t{0});
    return axes;
  }

  // The weight of this device's labels: a scalar. `weight`: of each; invalid: they all weigh 1, but for
  // ignored ones.
  ValueId localWeight(ValueId weight) {
    const DataType type = emit_.type(context_.inputs[at_.scores]);
    if (!weight.valid() && ignored_.valid()) weight = counted(type);
    if (weight.valid()) return emit_.reduce("ReduceSum", weight, labelAxes(), false);
    return emit_.ofDevice(fmt::format("elements of {} as {}", shapeToString(context_.wholeInput(at_.labels)),
                                      printSpec(context_.strategy.inputs[at_.labels])),
                          type, elementCount(emit_.shape(labels_)));
  }
  // The weight of all labels. `class_groups`: over which `weight` is a partial sum.
  ValueId totalWeight(ValueId weight, const std::vector<GroupId>& class_groups) {
    if (reductionOf(context_.node) != "mean") return ValueId();
    const DataType type = emit_.type(context_.inputs[at_.scores]);
    if (!weight.valid() && !ignored_.valid())
      return emit_.scalar(type, static_cast<double>(elementCount(context_.wholeInput(at_.labels))));
    const ValueId here = localWeight(weight);
    return emit_.allReduce(weight.valid() ? emit_.allReduce(here, class_groups) : here, label_groups_);
  }

  void reduceTerms(ValueId terms, ValueId total) {
    if (!total.valid()) {
      const ValueId axes = emit_.integers(labelAxes());
      return emit_.give(0, "ReduceSum", {terms, axes}, emit_.type(terms), {}, {{"keepdims", int64_t{0}}});
    }
    emit_.giveElementwise(0, "Div", {emit_.reduce("ReduceSum", terms, labelAxes(), false), total});
  }

  FormContext& context_;
  NodeEmitter& emit_;
  LossInputs at_;
  ValueId labels_;
  ValueId ignored_;  // bool, of the labels; invalid: none is
  bool classes_cut_ = false;
  std::vector<GroupId> class_groups_;
  std::vector<GroupId> label_groups_;
};

}  // namespace

void registerLossForms(FormTable& table) {
  const auto forward = [](FormContext& context) { LossForm(context).forward(); };
  table.add("", "SoftmaxCrossEntropyLoss", {lossCut, forward});
  table.add("", "NegativeLogLikelihoodLoss", {lossCut, forward});
  table.add(kPipeshardDomain, "CrossEntropyLoss", {lossCut, forward});
  table.add(kPipeshardDomain, "CrossEntropyLossGrad",
            {lossCut, [](FormContext& context) { LossForm(context).gradient(); }});
}

}  // namespace pipeshard
