// Operators that keep every element: Reshape, Flatten, Squeeze, Unsqueeze, Transpose; and those that repeat:
// Expand, Tile.
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

void reshapeGradient(GradientContext& c) { c.give(0, c.reshape(c.outputGradient(), c.shape(c.input(0)))); }

void transposeGradient(GradientContext& c) {
  if (const ValueId gradient = c.transposedOutputGradient(); gradient.valid()) return c.give(0, gradient);
  const size_t rank = c.shape(c.input(0)).size();
  const std::vector<int64_t> permutation = c.node().intsAttribute("perm");
  std::vector<int64_t> inverse(rank);
  for (size_t i = 0; i < rank; ++i) {
    size_t from = rank - 1 - i;
    if (!permutation.empty()) from = permutation[i];
    inverse[from] = i;
  }
  c.give(0, c.transpose(c.outputGradient(), inverse));
}

void expandGradient(GradientContext& c) { c.give(0, c.reduceTo(c.outputGradient(), c.shape(c.input(0)))); }

// Every axis as (repeats, size), summed over the repeats.
void tileGradient(GradientContext& c) {
  const Shape shape = c.shape(c.input(0));
  const std::vector<int64_t> repeats = c.constantIntegers(1).value();
  Shape split;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < shape.size(); ++i) {
    axes.push_back(std::ssize(split));
    split.push_back(repeats[i]);
    split.push_back(shape[i]);
  }
  c.give(0, c.reduceSum(c.reshape(c.outputGradient(), split), axes, false));
}

}  // namespace

void addShapeRules(GradientRules& rules) {
  rules[{"", "Reshape"}] = {reshapeGradient, 2};
  rules[{"", "Flatten"}] = {reshapeGradient};
  rules[{"", "Squeeze"}] = {reshapeGradient, 2};
  rules[{"", "Unsqueeze"}] = {reshapeGradient, 2};
  rules[{"", "Transpose"}] = {transposeGradient};
  rules[{"", "Expand"}] = {expandGradient, 2};
  rules[{"", "Tile"}] = {tileGradient, 2};
}

}  // namespace pipeshard
