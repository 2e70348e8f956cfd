// Updates that read whole tensors.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/op_emitter.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/update.h"

namespace pipeshard {
namespace {

// Emits the nodes of one parameter's update: "<parameter>.update/<operator>".
class UpdateEmitter : public OpEmitter {
 public:
  // `shape`: in which the parameter is updated, its own or the one that the file has.
  UpdateEmitter(BackwardBuilder& builder, const OptimizerSpec& spec, ValueId step, Parameter& parameter,
                Shape shape)
      : OpEmitter(builder.graph()),
        spec_(spec),
        builder_(builder),
        step_(step),
        parameter_(parameter),
        name_(builder.graph().value(parameter.value).name),
        type_(builder.graph().dataType(parameter.value)),
        shape_(std::move(shape)) {
    viewed_ = reshape(parameter.value, shape_);
  }

  const Shape& shape() const { return shape_; }
  DataType type() const { return type_; }
  ValueId parameter() const { return viewed_; }
  int64_t size() const { return elementCount(shape_); }

  ValueId number(double number) { return scalar(type_, number); }
  ValueId scalar(DataType type, double number) override { return builder_.scalar(type, number); }
  ValueId integers(const std::vector<int64_t>& numbers) override { return builder_.integers(numbers); }

  ValueId mul(ValueId a, ValueId b) { return binary("Mul", a, b); }
  ValueId scaled(ValueId x, double factor) { return mul(x, number(factor)); }
  ValueId add(ValueId a, ValueId b) { return binary("Add", a, b); }
  ValueId sub(ValueId a, ValueId b) { return binary("Sub", a, b); }
  ValueId div(ValueId a, ValueId b) { return binary("Div", a, b); }
  ValueId atLeast(ValueId x, double least) { return binary("Max", x, number(least)); }
  // Of all elements, as a scalar.
  ValueId squares(ValueId x) {
    if (shape_.empty()) return mul(x, x);
    std::vector<int64_t> axes(shape_.size());
    std::iota(axes.begin(), axes.end(), 0);
    return reduce("ReduceSumSquare", x, axes, false);
  }
  void function(std::string_view function, const std::string& overload, std::vector<ValueId> inputs,
                std::vector<ValueId> outputs) {
    addNode(kPipeshardDomain, function, overload, std::move(inputs), std::move(outputs), {});
  }

  // The number of the step, from 1 on, as a number of the parameter's type.
  ValueId step() { return cast(step_, type_); }
  ValueId countedStep() const { return step_; }
  // This step's learning rate.
  ValueId rate() {
    const UpdateRecipe recipe = updateRecipe(spec_);
    const ValueId highest = number(spec_.learning_rate);
    if (recipe.overload.empty()) return highest;
    std::vector<ValueId> inputs = {step_, highest};
    for (const double number : recipe.schedule) inputs.push_back(scalar(DataType::kFloat64, number));
    const ValueId rate = value("rate", {});
    addNode(kPipeshardDomain, "ScheduledRate", recipe.overload, std::move(inputs), {rate}, recipe.attributes);
    return rate;
  }

  ValueId value(const std::string& suffix, const Shape& shape) {
    return builder_.values().addValue(fmt::format("{}.{}", name_, suffix), type_, shape);
  }
  // A new state: what it holds before the update. `becomes` says what it holds after.
  ValueId state(const std::string& name, const Shape& shape) {
    const ValueId state = value(name, shape);
    builder_.graph().inputs.push_back(state);
    parameter_.states.push_back({name, state, {}});
    return state;
  }
  void becomes(size_t state, ValueId updated) {
    parameter_.states[state].updated = updated;
    builder_.graph().outputs.push_back(updated);
  }
  void finish(ValueId updated) {
    parameter_.updated = reshape(updated, builder_.graph().shape(parameter_.value));
    builder_.graph().outputs.push_back(parameter_.updated);
  }

  const OptimizerSpec& spec_;

 private:
  ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
               Attributes attributes) override {
    const ValueId result =
        builder_.values().addValue(fmt::format("{}.update/{}", name_, op_type), type, std::move(shape));
    addNode("", op_type, "", std::move(inputs), {result}, std::move(attributes));
    return result;
  }
  void addNode(std::string_view domain, std::string_view op_type, const std::string& overload,
               std::vector<ValueId> inputs, std::vector<ValueId> outputs, Attributes attributes) {
    const std::string name = builder_.graph().value(outputs.front()).name;
    const NodeId node = builder_.addNode(domain, op_type, overload, std::move(inputs), std::move(outputs),
                                         std::move(attributes));
    builder_.graph().node(node).name = name;
  }

  BackwardBuilder& builder_;
  ValueId step_;
  Parameter& parameter_;
  const std::string name_;
  const DataType type_;
  const Shape shape_;
  ValueId viewed_;  // the parameter in that shape
};

// old + (sample - old) share
ValueId approach(UpdateEmitter& e, ValueId old, ValueId sample, ValueId share) {
  return e.add(old, e.mul(e.sub(sample, old), share));
}

// P' = P - lr trust U; U = M' / (1 - b1^t) / (sqrt(V' / (1 - b2^t)) + eps) + wd P; trust = |P| / |U|, but 1
// where either is 0. (You et al., Large Batch Optimization for Deep Learning, algorithm 2.)
void lamb(UpdateEmitter& e, ValueId gradient) {
  const OptimizerSpec& spec = e.spec_;
  const ValueId m = e.state("first_moment", e.shape()), v = e.state("second_moment", e.shape());
  const ValueId direction = e.value("direction", e.shape());
  const ValueId new_m = e.value("first_moment.updated", e.shape());
  const ValueId new_v = e.value("second_moment.updated", e.shape());
  e.function("LAMBDirection", "",
             {e.parameter(), gradient, m, v, e.countedStep(), e.number(spec.beta1), e.number(spec.beta2),
              e.number(spec.epsilon), e.number(spec.weight_decay)},
             {direction, new_m, new_v});
  const ValueId parameter_squares = e.squares(e.parameter()), direction_squares = e.squares(direction);
  const ValueId zero = e.number(0);
  const ValueId both = e.op(
      "And", {e.compare("Greater", parameter_squares, zero), e.compare("Greater", direction_squares, zero)},
      DataType::kBool, {});
  // where it is not taken nothing is divided by 0
  const ValueId divisor = e.where(both, direction_squares, e.number(1));
  const ValueId ratio = e.unary("Sqrt", e.div(parameter_squares, divisor));
  const ValueId trust = e.where(both, ratio, e.number(1));
  e.finish(e.sub(e.parameter(), e.mul(direction, e.mul(e.rate(), trust))));
  e.becomes(0, new_m);
  e.becomes(1, new_v);
}

// The mean square of every element's gradient, of a matrix (and of the matrices that a longer tensor
// consists of) as the product of a column of means over rows and a row of means over columns.
ValueId adafactorVariance(UpdateEmitter& e, ValueId gradient, double epsilon) {
  const ValueId share = e.op("Pow", {e.step(), e.number(e.spec_.beta2_decay)}, e.type(), {});
  const Shape& shape = e.shape();
  if (shape.size() < 2) {
    const ValueId variance = approach(e, e.state("variance", shape), e.mul(gradient, gradient), share);
    e.becomes(0, variance);
    return variance;
  }
  const auto last = std::ssize(shape) - 1;
  const auto factor = [&](size_t number, const char* name, int64_t axis) {
    Shape reduced = shape;
    reduced[axis] = 1;
    const ValueId sum = e.reduce("ReduceSumSquare", gradient, {axis});
    const ValueId mean = e.scaled(sum, 1.0 / static_cast<double>(shape[axis]));
    const ValueId updated = approach(e, e.state(name, reduced), mean, share);
    e.becomes(number, updated);
    return updated;
  };
  const ValueId rows = factor(0, "row_variance", last);
  const ValueId columns = factor(1, "column_variance", last - 1);
  const ValueId total = e.reduce("ReduceSum", rows, {last - 1});
  const ValueId mean = e.scaled(total, 1.0 / static_cast<double>(shape[last - 1]));
  return e.mul(e.div(rows, e.atLeast(mean, epsilon)), columns);
}

// P' = P (1 - lr wd) - alpha / max(1, rms(U) / d) U; U = G / sqrt(variance); alpha = max(eps2, rms(P)) times
// the smaller of lr and 1 / sqrt(t). (Shazeer, Stern, Adafactor; as torch.optim.Adafactor.)
void adafactor(UpdateEmitter& e, ValueId gradient) {
  const OptimizerSpec& spec = e.spec_;
  const double of_type = e.type() == DataType::kFloat64 ? 0x1p-52 : 0x1p-23;
  const double epsilon = spec.epsilon > 0 ? spec.epsilon : of_type;
  const ValueId variance = e.atLeast(adafactorVariance(e, gradient, epsilon), epsilon * epsilon);
  const ValueId direction = e.div(gradient, e.unary("Sqrt", variance));
  const auto root_mean_square = [&](ValueId x) {
    return e.unary("Sqrt", e.scaled(e.squares(x), 1.0 / static_cast<double>(e.size())));
  };
  const ValueId rate = e.rate();
  const ValueId slowed = e.div(e.number(1), e.unary("Sqrt", e.step()));
  const ValueId size = e.atLeast(root_mean_square(e.parameter()), spec.parameter_epsilon);
  const ValueId alpha = e.mul(size, e.binary("Min", rate, slowed));
  const ValueId excess = e.atLeast(e.scaled(root_mean_square(direction), 1 / spec.threshold), 1);
  const ValueId kept = e.sub(e.number(1), e.scaled(rate, spec.weight_decay));
  const ValueId parameter = spec.weight_decay == 0 ? e.parameter() : e.mul(e.parameter(), kept);
  e.finish(e.sub(parameter, e.mul(direction, e.div(alpha, excess))));
}

// The matrix with singular values near 1: a function, which no rule cuts. A device that holds a part of the
// matrix gathers all of it: sums in another order would be magnified, since small singular values grow.
ValueId orthogonalized(UpdateEmitter& e, ValueId matrix) {
  const bool tall = e.shape()[0] > e.shape()[1];
  const ValueId result = e.value("orthogonalized", e.shape());
  const auto steps = static_cast<int>(e.spec_.iterations);
  e.function("Orthogonalized", fmt::format("{}{}", steps, tall ? "_tall" : ""),
             {matrix, e.number(e.spec_.epsilon)}, {result});
  return result;
}

// B' = mu B + (1 - mu) G; P' = P (1 - lr wd) - lr r O(B'), with nesterov O(mu B' + (1 - mu) G); O as above; r
// follows from the shape. As torch.optim.Muon.
void muon(UpdateEmitter& e, ValueId gradient, bool stored_transposed) {
  const OptimizerSpec& spec = e.spec_;
  const ValueId sample = e.number(1 - spec.momentum);
  const ValueId mean = approach(e, e.state("momentum", e.shape()), gradient, sample);
  const ValueId ahead = spec.nesterov ? approach(e, gradient, mean, e.number(spec.momentum)) : mean;
  auto outputs = static_cast<double>(e.shape()[0]), inputs = static_cast<double>(e.shape()[1]);
  if (stored_transposed) std::swap(outputs, inputs);
  const double ratio = spec.match_rms != 0 ? 0.2 * std::sqrt(std::max(outputs, inputs))
                                           : std::sqrt(std::max(1.0, outputs / inputs));
  const ValueId rate = e.rate();
  const ValueId moved = e.mul(orthogonalized(e, ahead), e.scaled(rate, ratio));
  const ValueId kept = e.sub(e.number(1), e.scaled(rate, spec.weight_decay));
  e.finish(e.sub(e.mul(e.parameter(), kept), moved));
  e.becomes(0, mean);
}

}  // namespace

bool readsWholeTensors(OptimizerSpec::Kind kind) {
  using Kind = OptimizerSpec::Kind;
  return kind == Kind::kLamb || kind == Kind::kAdafactor || kind == Kind::kMuon;
}

OptimizerSpec optimizerOfShape(const OptimizerSpec& spec, const Shape& shape) {
  if (spec.kind != OptimizerSpec::Kind::kMuon || (shape.size() == 2 && spec.iterations > 0)) return spec;
  OptimizerSpec adam = spec;
  adam.kind = OptimizerSpec::Kind::kAdamW;
  adam.epsilon = 1e-8;
  ParameterGroup rate;
  rate.learning_rate = spec.adam_rate;
  applyGroup(rate, adam);
  return adam;
}

void appendTensorUpdate(BackwardBuilder& builder, const OptimizerSpec& spec, ValueId step, ValueId gradient,
                        Parameter& parameter) {
  const Value& value = builder.graph().value(parameter.value);
  const bool transposed = isStoredTransposed(value);
  const bool takes_matrix = spec.kind != OptimizerSpec::Kind::kLamb;  // whose rows and columns matter
  const Shape shape = takes_matrix ? storedShape(value) : *value.shape;
  UpdateEmitter emitter(builder, spec, step, parameter, shape);
  gradient = emitter.reshape(gradient, shape);
  switch (spec.kind) {
    case OptimizerSpec::Kind::kLamb: return lamb(emitter, gradient);
    case OptimizerSpec::Kind::kAdafactor: return adafactor(emitter, gradient);
    case OptimizerSpec::Kind::kMuon: return muon(emitter, gradient, transposed);
    default: PIPESHARD_CHECK(false, "optimizer of another kind");
  }
}

}  // namespace pipeshard
