#include "sharding/spmd/batch_moments.h"

#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

bool isOurs(const Node& node, const char* op_type) {
  return node.domain == kPipeshardDomain && node.op_type == op_type;
}

// Equal steps of two nodes over one x are taken once, if the emitter has EmittedValues.
class BatchForm {
 public:
  BatchForm(NodeEmitter& emit, const Node& node, const std::vector<ValueId>& inputs,
            const BatchTogether& together)
      : emit_(emit),
        node_(node),
        inputs_(inputs),
        together_(together),
        x_(inputs[normalizesByBatch(node) ? 0 : 1]),
        type_(emit.type(x_)) {
    const Shape& shape = emit_.shape(x_);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (axis != 1) summed_axes_.push_back(axis);
      pattern_.push_back(axis == 1 ? -1 : 1);
    }
    channels_ = shape.size() > 1 ? shape[1] : 1;
    channel_shape_ = Shape(shape.size(), 1);
    if (shape.size() > 1) channel_shape_[1] = channels_;
  }

  //   Y = (X - mean) (inverse Scale) + B        with mean and inverse rounded to X's type
  void forward() {
    const Moments moments = momentsOfX();
    const ValueId statistics[] = {moments.mean, moments.variance};
    const auto momentum = static_cast<double>(node_.floatAttribute("momentum", 0.9f));
    for (size_t i = 0; i < 2; ++i) {
      if (!emit_.wants(1 + i)) continue;
      const ValueId batch = emit_.reshape(statistics[i], {-1}, {channels_});
      const ValueId kept =
          emit_.binary("Mul", emit_.cast(inputs_[3 + i], DataType::kFloat64), number(momentum));
      const ValueId sum = emit_.binary("Add", kept, emit_.binary("Mul", batch, number(1 - momentum)));
      emit_.giveCast(1 + i, sum, type_);
    }
    const ValueId factor = emit_.binary("Mul", emit_.cast(inverse(moments), type_), perChannel(inputs_[1]));
    const ValueId centred = emit_.binary("Sub", x_, emit_.cast(moments.mean, type_));
    const ValueId scaled = emit_.binary("Mul", centred, factor);
    emit_.giveElementwise(0, "Add", {scaled, perChannel(inputs_[2])});
  }

  // dX = (inverse Scale) (dY - mean(dY) - (X - mean) inverse^2 mean(dY (X - mean)))
  void inputGradient() {
    const ValueId dy = inputs_[0];
    const Moments moments = momentsOfX();
    const ValueId inverse = this->inverse(moments);
    const ValueId mean =
        emit_.binary("Div", emit_.allReduce(channelSum(wide(dy)), together_.groups), moments.count);
    const ValueId projected = emit_.allReduce(projection(moments), together_.groups);
    const ValueId dot = emit_.binary("Mul", emit_.binary("Mul", projected, inverse), inverse);
    const ValueId slope = emit_.cast(emit_.binary("Div", dot, moments.count), type_);
    const ValueId scale = emit_.cast(perChannel(inputs_[2]), DataType::kFloat64);
    const ValueId factor = emit_.cast(emit_.binary("Mul", inverse, scale), type_);
    const ValueId along =
        emit_.binary("Mul", emit_.binary("Sub", x_, emit_.cast(moments.mean, type_)), slope);
    const ValueId rest = emit_.binary("Sub", emit_.binary("Sub", dy, emit_.cast(mean, type_)), along);
    emit_.giveElementwise(0, "Mul", {rest, factor});
  }

  void weightGradient() {
    if (emit_.wants(0)) {
      const Moments moments = momentsOfX();
      giveChannels(0, emit_.binary("Mul", projection(moments), inverse(moments)));
    }
    if (emit_.wants(1)) giveChannels(1, channelSum(wide(inputs_[0])));
  }

 private:
  // Of x, in float64: [1,C,1,..], but for `centred`, which has the shape of x.
  struct Moments {
    ValueId count, mean, centred, variance;
  };

  ValueId number(double value) { return emit_.scalar(DataType::kFloat64, value); }
  // The value in float64: sums are taken in it, so that their order does not show after rounding.
  ValueId wide(ValueId value) { return emit_.cast(value, DataType::kFloat64); }
  // This device's sum over everything but the channels, [1,C,1,..].
  ValueId channelSum(ValueId value) { return emit_.reduce("ReduceSum", value, summed_axes_); }
  ValueId perChannel(ValueId vector) { return emit_.reshape(vector, pattern_, channel_shape_); }
  void giveChannels(size_t output, ValueId sum) {
    const ValueId narrow = emit_.cast(sum, type_);
    emit_.give(output, "Reshape", {narrow, emit_.integers({-1})}, type_, {channels_});
  }

  Moments momentsOfX() {
    const ValueId x = wide(x_);
    Moments moments;
    moments.count = number(static_cast<double>(together_.count));
    moments.mean = emit_.binary("Div", emit_.allReduce(channelSum(x), together_.groups), moments.count);
    moments.centred = emit_.binary("Sub", x, moments.mean);
    const ValueId squares = emit_.binary("Mul", moments.centred, moments.centred);
    moments.variance =
        emit_.binary("Div", emit_.allReduce(channelSum(squares), together_.groups), moments.count);
    return moments;
  }
  // 1 / sqrt(variance + epsilon), float64.
  ValueId inverse(const Moments& moments) {
    const auto epsilon = static_cast<double>(node_.floatAttribute("epsilon", 1e-5f));
    return emit_.unary("Reciprocal",
                       emit_.unary("Sqrt", emit_.binary("Add", moments.variance, number(epsilon))));
  }
  // This device's sum of dY (X - mean), float64.
  ValueId projection(const Moments& moments) {
    return channelSum(emit_.binary("Mul", wide(inputs_[0]), moments.centred));
  }

  NodeEmitter& emit_;
  const Node& node_;
  const std::vector<ValueId>& inputs_;
  const BatchTogether& together_;
  ValueId x_;
  DataType type_;
  std::vector<int64_t> summed_axes_;
  std::vector<int64_t> pattern_;  // [C] as [1,C,1,..]
  Shape channel_shape_;
  int64_t channels_ = 1;
};

}  // namespace

bool needsBatchMoments(const Node& node) {
  return normalizesByBatch(node) || isOurs(node, "BatchNormalizationInputGrad") ||
         isOurs(node, "BatchNormalizationWeightGrad");
}

void emitBatchNormalization(NodeEmitter& emit, const Node& node, const std::vector<ValueId>& inputs,
                            const BatchTogether& together) {
  BatchForm form(emit, node, inputs, together);
  if (normalizesByBatch(node)) {
    form.forward();
  } else if (isOurs(node, "BatchNormalizationInputGrad")) {
    form.inputGradient();
  } else {
    form.weightGradient();
  }
}

}  // namespace pipeshard
