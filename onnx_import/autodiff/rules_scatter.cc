// ScatterElements and ScatterND: elements of the data are replaced by updates, or combined with them.
#include <array>

#include <fmt/format.h>

#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// The node's operator on other tensors: inputs 0 and 2 take the place of its data and updates.
ValueId scatterLike(GradientContext& c, ValueId data, ValueId updates, const std::string& reduction) {
  OpEmitter::Attributes attributes;
  if (reduction != "none") attributes["reduction"] = reduction;  // opsets before 16 have no such attribute
  if (c.node().op_type == "ScatterElements") attributes["axis"] = c.node().intAttribute("axis", 0);
  return c.op(c.node().op_type, {data, c.input(1), updates}, c.type(data), c.shape(data),
              std::move(attributes));
}

// For every update the element of x at its place.
ValueId takeUpdated(GradientContext& c, ValueId x) {
  const Shape shape = c.shape(c.input(2));
  if (c.node().op_type == "ScatterND") return c.op("GatherND", {x, c.input(1)}, c.type(x), shape);
  return c.op("GatherElements", {x, c.input(1)}, c.type(x), shape,
              {{"axis", c.node().intAttribute("axis", 0)}});
}

// Places that are named twice have no defined content in ONNX; their updates all get the gradient, as in
// PyTorch.
void replaceGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  if (c.needs(0)) {
    const ValueId zeros = c.expand(c.scalar(c.type(dy), 0), c.shape(c.input(2)));
    c.give(0, scatterLike(c, dy, zeros, "none"));
  }
  if (c.needs(2)) c.give(2, takeUpdated(c, dy));
}

void addToGradient(GradientContext& c) {
  if (c.needs(0)) c.give(0, c.outputGradient());
  if (c.needs(2)) c.give(2, takeUpdated(c, c.outputGradient()));
}

// The slope in a factor is the product of the others: the product of all but the zeros, divided by the factor
// if it is none, and 0 where another one is zero.
void multiplyByGradient(GradientContext& c) {
  const DataType type = c.type(c.output());
  const ValueId zero = c.scalar(type, 0);
  std::array<ValueId, 2> factors, zeros;  // of data and updates
  for (size_t i = 0; i < 2; ++i) {
    const ValueId x = c.input(2 * i);
    const ValueId is_zero = c.compare("Equal", x, zero);
    factors[i] = c.where(is_zero, c.scalar(type, 1), x);
    zeros[i] = c.cast(is_zero, type);
  }
  const ValueId all_zeros = scatterLike(c, zeros[0], zeros[1], "add");
  const ValueId product = c.binary("Mul", c.outputGradient(), scatterLike(c, factors[0], factors[1], "mul"));
  for (size_t i = 0; i < 2; ++i) {
    if (!c.needs(2 * i)) continue;
    const ValueId others = c.binary("Sub", i == 0 ? all_zeros : takeUpdated(c, all_zeros), zeros[i]);
    const ValueId quotient = c.binary("Div", i == 0 ? product : takeUpdated(c, product), factors[i]);
    c.give(2 * i, c.where(c.compare("Greater", others, zero), zero, quotient));
  }
}

// Equal extremes share the gradient, as in PyTorch.
void extremeGradient(GradientContext& c) {
  const ValueId y = c.output();
  const DataType type = c.type(y);
  const ValueId data_hits = c.cast(c.compare("Equal", c.input(0), y), type);
  const ValueId update_hits = c.cast(c.compare("Equal", c.input(2), takeUpdated(c, y)), type);
  const ValueId share = c.binary("Div", c.outputGradient(), scatterLike(c, data_hits, update_hits, "add"));
  if (c.needs(0)) c.give(0, c.binary("Mul", data_hits, share));
  if (c.needs(2)) c.give(2, c.binary("Mul", update_hits, takeUpdated(c, share)));
}

void scatterGradient(GradientContext& c) {
  const std::string reduction = c.node().stringAttribute("reduction", "none");
  if (reduction == "none") return replaceGradient(c);
  if (reduction == "add") return addToGradient(c);
  if (reduction == "mul") return multiplyByGradient(c);
  if (reduction == "max" || reduction == "min") return extremeGradient(c);
  c.refuse(fmt::format("reduction '{}' has no gradient rule", reduction));
}

}  // namespace

void addScatterRules(GradientRules& rules) {
  rules[{"", "ScatterElements"}] = {scatterGradient, 2};
  rules[{"", "ScatterND"}] = {scatterGradient, 2};
}

}  // namespace pipeshard
