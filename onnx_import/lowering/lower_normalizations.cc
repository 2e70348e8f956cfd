// Normalisations.
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

}  // namespace

void addNormalizationLowerings(LoweringRules& rules) {
  rules[{"", "InstanceNormalization"}] = lowerInstanceNormalization;
}

}  // namespace pipeshard
