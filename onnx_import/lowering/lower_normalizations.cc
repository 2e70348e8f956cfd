// Normalisations.
#include <cstdint>
#include <vector>

#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/lowering/transformer_steps.h"

namespace pipeshard {
namespace {

// Y = (X - mean) / sqrt(variance + epsilon) * Scale + B, per example and channel; mean and (population)
// variance over the axes of the image. As a LayerNormalization of [N, C, image] without scale.
void lowerInstanceNormalization(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape whole = c.shape(x);
  if (whole.size() < 3) c.refuse("its input has no image axes");
  const int64_t image = elementCount(Shape(whole.begin() + 2, whole.end()));
  const ValueId flat = c.reshape(x, {whole[0], whole[1], image});
  const Shape channel{whole[1], 1};
  const double epsilon = c.node().floatAttribute("epsilon", 1e-5F);
  const ValueId normal = layerNormalization(c, {.x = flat, .axis = 2, .epsilon = epsilon});
  const ValueId scaled = c.binary("Mul", normal, c.reshape(c.input(1), channel));
  c.give(0, c.reshape(c.binary("Add", scaled, c.reshape(c.input(2), channel)), whole));
}

// (X - mean) / (standard deviation + 1e-9), over `axes`. ONNX's own body is of float32 alone, and takes the
// variance for a difference of squares.
void lowerMeanVarianceNormalization(LoweringContext& c) {
  const ValueId x = c.input(0);
  std::vector<int64_t> axes = c.node().intsAttribute("axes", {0, 2, 3});
  for (int64_t& axis : axes) axis = normalizeAxis(axis, c.rank(x));
  const ValueId centred = c.binary("Sub", x, c.reduce("ReduceMean", x, axes));
  const ValueId variance = c.reduce("ReduceMean", c.binary("Mul", centred, centred), axes);
  c.give(0, c.binary("Div", centred, c.addNumber(c.unary("Sqrt", variance), 1e-9)));
}

}  // namespace

void addNormalizationLowerings(LoweringRules& rules) {
  rules[{"", "InstanceNormalization"}] = lowerInstanceNormalization;
  rules[{"", "MeanVarianceNormalization"}] = {lowerMeanVarianceNormalization, nullptr, true};
}

}  // namespace pipeshard
