// The optimizers of ONNX's preview of training (domain ai.onnx.preview.training): updates of one or more
// tensors. Inputs are R (the learning rate), T (updates so far, 0 in the first), then the tensors, then their
// gradients, then a kind of state after the other; outputs the new tensors, then the new states alike.
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

constexpr const char* kPreview = "ai.onnx.preview.training";

class OptimizerLowering {
 public:
  // `states`: kinds of state
  OptimizerLowering(LoweringContext& c, size_t states) : c_(c), groups_(2 + states) {
    const size_t tensors = c.node().inputs.size() - 2;
    if (c.node().inputs.size() < 2 + groups_ || tensors % groups_ != 0)
      c.refuse(
          fmt::format("it has {} inputs, which are not R, T and {} of each tensor", tensors + 2, groups_));
    count_ = tensors / groups_;
  }

  size_t count() const { return count_; }
  // Tensor i of group 0 (the tensors), 1 (gradients), 2.. (states).
  ValueId of(size_t group, size_t i) const { return c_.input(2 + group * count_ + i); }
  // The new tensor (0) or state (1..) i.
  void give(size_t group, size_t i, ValueId value) {
    if (c_.hasOutput(group * count_ + i)) c_.give(group * count_ + i, value);
  }

  double number(const char* attribute, float default_value) const {
    return c_.node().floatAttribute(attribute, default_value);
  }
  ValueId rate(DataType type) const { return c_.cast(c_.reshape(c_.input(0), {}), type); }
  ValueId updates(DataType type) const { return c_.cast(c_.reshape(c_.input(1), {}), type); }
  ValueId isFirst() const {
    const ValueId count = c_.reshape(c_.input(1), {});
    return c_.compare("Equal", count, c_.scalar(c_.type(count), 0));
  }

  ValueId scale(ValueId x, double factor) const { return c_.binary("Mul", x, c_.scalar(c_.type(x), factor)); }
  ValueId add(ValueId a, ValueId b) const { return c_.binary("Add", a, b); }
  // The gradient with that of half the coefficient times the sum of squares.
  ValueId regularised(size_t i) const {
    const double coefficient = number("norm_coefficient", 0);
    return coefficient == 0 ? of(1, i) : add(of(1, i), scale(of(0, i), coefficient));
  }

 private:
  LoweringContext& c_;
  size_t groups_;
  size_t count_ = 0;
};

// G' = G + norm X; V' = a V + (1 - a) G'; H' = b H + (1 - b) G'^2
// X' = (1 - post) (X - r V' / (sqrt(H') + epsilon)); r = R sqrt(1 - b^T) / (1 - a^T), but R for T = 0
void lowerAdam(LoweringContext& c) {
  OptimizerLowering o(c, 2);
  const double alpha = o.number("alpha", 0.9F), beta = o.number("beta", 0.999F);
  for (size_t i = 0; i < o.count(); ++i) {
    const DataType type = c.type(o.of(0, i));
    const ValueId g = o.regularised(i);
    const ValueId v = o.add(o.scale(o.of(2, i), alpha), o.scale(g, 1 - alpha));
    const ValueId h = o.add(o.scale(o.of(3, i), beta), o.scale(c.binary("Mul", g, g), 1 - beta));
    const auto correction = [&](double decay) {
      return c.binary("Sub", c.scalar(type, 1), c.binary("Pow", c.scalar(type, decay), o.updates(type)));
    };
    const ValueId rate = o.rate(type);
    const ValueId corrected =
        c.binary("Div", c.binary("Mul", rate, c.unary("Sqrt", correction(beta))), correction(alpha));
    const ValueId r = c.where(o.isFirst(), rate, corrected);
    const ValueId deviation = c.addNumber(c.unary("Sqrt", h), o.number("epsilon", 1e-6F));
    ValueId x = c.binary("Sub", o.of(0, i), c.binary("Div", c.binary("Mul", r, v), deviation));
    const double post = o.number("norm_coefficient_post", 0);
    if (post != 0) x = o.scale(x, 1 - post);
    o.give(0, i, x);
    o.give(1, i, v);
    o.give(2, i, h);
  }
}

// G' = G + norm X; H' = H + G'^2; X' = X - r G' / (sqrt(H') + epsilon); r = R / (1 + T decay)
void lowerAdagrad(LoweringContext& c) {
  OptimizerLowering o(c, 1);
  for (size_t i = 0; i < o.count(); ++i) {
    const DataType type = c.type(o.of(0, i));
    const ValueId g = o.regularised(i);
    const ValueId h = o.add(o.of(2, i), c.binary("Mul", g, g));
    const ValueId slowed = c.addNumber(o.scale(o.updates(type), o.number("decay_factor", 0)), 1);
    const ValueId r = c.binary("Div", o.rate(type), slowed);
    const ValueId deviation = c.addNumber(c.unary("Sqrt", h), o.number("epsilon", 1e-6F));
    o.give(0, i, c.binary("Sub", o.of(0, i), c.binary("Div", c.binary("Mul", r, g), deviation)));
    o.give(1, i, h);
  }
}

// G' = G + norm X; V' = alpha V + b G' with b = beta, but 1 for T = 0; X' = X - R V', or R (G' + alpha V')
void lowerMomentum(LoweringContext& c) {
  OptimizerLowering o(c, 1);
  const std::string mode = c.node().stringAttribute("mode", "standard");
  if (mode != "standard" && mode != "nesterov") c.refuse(fmt::format("its mode is '{}'", mode));
  const double alpha = o.number("alpha", 0), beta = o.number("beta", 0);
  for (size_t i = 0; i < o.count(); ++i) {
    const DataType type = c.type(o.of(0, i));
    const ValueId g = o.regularised(i);
    const ValueId b = c.where(o.isFirst(), c.scalar(type, 1), c.scalar(type, beta));
    const ValueId v = o.add(o.scale(o.of(2, i), alpha), c.binary("Mul", g, b));
    const ValueId direction = mode == "nesterov" ? o.add(g, o.scale(v, alpha)) : v;
    o.give(0, i, c.binary("Sub", o.of(0, i), c.binary("Mul", o.rate(type), direction)));
    o.give(1, i, v);
  }
}

}  // namespace

void addOptimizerLowerings(LoweringRules& rules) {
  rules[{kPreview, "Adam"}] = lowerAdam;
  rules[{kPreview, "Adagrad"}] = lowerAdagrad;
  rules[{kPreview, "Momentum"}] = lowerMomentum;
}

}  // namespace pipeshard
