// Normalisations.
#include <vector>

#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// Y = (X - mean) / sqrt(variance + epsilon) * Scale + B, per example and channel; mean and (population)
// variance over the axes of the image. As a LayerNormalization of [N, C, image] without scale.
void lowerInstanceNormalization(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape whole = c.shape(x);
  if (whole.size() < 3) c.refuse("its input has no image axes");
  const DataType type = c.type(x);
  const int64_t image = elementCount(Shape(whole.begin() + 2, whole.end()));
  const ValueId flat = c.reshape(x, {whole[0], whole[1], image});
  const Shape channel{whole[1], 1};
  const ValueId one = c.numbers(type, {image}, std::vector<double>(image, 1));
  const ValueId normal = c.op("LayerNormalization", {flat, one}, type, c.shape(flat),
                              {{"axis", int64_t{2}}, {"epsilon", c.node().floatAttribute("epsilon", 1e-5f)}});
  const ValueId scaled = c.binary("Mul", normal, c.reshape(c.input(1), channel));
  c.give(0, c.reshape(c.binary("Add", scaled, c.reshape(c.input(2), channel)), whole));
}

}  // namespace

void addNormalizationLowerings(LoweringRules& rules) {
  rules[{"", "InstanceNormalization"}] = lowerInstanceNormalization;
}

}  // namespace pipeshard
