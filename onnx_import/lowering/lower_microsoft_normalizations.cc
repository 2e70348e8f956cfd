// Normalisations of ONNX Runtime, with the sums that it has fused into them.
#include <numeric>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/lowering/transformer_steps.h"

namespace pipeshard {
namespace {

double epsilonOf(const LoweringContext& c, float otherwise) {
  return c.node().floatAttribute("epsilon", otherwise);
}

void giveWanted(LoweringContext& c, size_t position, ValueId value) {
  if (c.hasOutput(position)) c.give(position, value);
}

// The input in the type of its scale, which is that of the output; float32 where one of them is narrower.
DataType workType(const LoweringContext& c) {
  const DataType x = c.type(c.input(0));
  return x == c.type(c.input(1)) || x == DataType::kFloat64 ? x : DataType::kFloat32;
}

int64_t firstNormalized(const LoweringContext& c) {
  return normalizeAxis(c.node().intAttribute("axis", -1), c.rank(c.input(0)));
}

// x / sqrt(mean(x * x) + epsilon) * scale. Output 1 is 1 / sqrt(..).
void lowerSimplifiedLayerNormalization(LoweringContext& c) {
  const DataType work = workType(c);
  const ValueId x = c.cast(c.input(0), work);
  const ValueId inverse = inverseRootMeanSquare(c, x, firstNormalized(c), epsilonOf(c, 1e-5F));
  const ValueId y = c.binary("Mul", c.binary("Mul", x, inverse), c.cast(c.input(1), work));
  c.give(0, c.cast(y, c.type(c.input(1))));
  if (c.hasOutput(1)) c.give(1, inverse);
}

// ONNX Runtime had this operator before ONNX did, in opset 17.
bool isEarlyLayerNormalization(const Graph&, const Node& node) { return node.opset_version < 17; }

void lowerEarlyLayerNormalization(LoweringContext& c) {
  const DataType work = workType(c);
  const ValueId x = c.cast(c.input(0), work);
  const int64_t axis = firstNormalized(c);
  const double epsilon = epsilonOf(c, 1e-5F);
  const ValueId bias = c.hasInput(2) ? c.cast(c.input(2), work) : ValueId();
  const ValueId y = layerNormalization(c, {x, c.cast(c.input(1), work), bias, axis, epsilon});
  c.give(0, c.cast(y, c.type(c.input(1))));
  if (!c.hasOutput(1) && !c.hasOutput(2)) return;
  const RowMoments moments = rowMoments(c, x, axis, epsilon);
  giveWanted(c, 1, moments.mean);
  giveWanted(c, 2, moments.inverse_deviation);
}

// Input, skip and, at `bias_position`, a bias.
ValueId skippedSum(LoweringContext& c, size_t bias_position) {
  const ValueId sum = c.binary("Add", c.input(0), c.input(1));
  if (c.shape(sum) != c.shape(c.input(0)))
    c.refuse(fmt::format("what is added, {}, does not broadcast to its input {}",
                         shapeToString(c.shape(c.input(1))), shapeToString(c.shape(c.input(0)))));
  return c.hasInput(bias_position) ? c.binary("Add", sum, c.input(bias_position)) : sum;
}

void lowerSkipLayerNormalization(LoweringContext& c) {
  const ValueId sum = skippedSum(c, 4);
  const int64_t axis = c.rank(sum) - 1;
  const double epsilon = epsilonOf(c, 1e-12F);
  const ValueId beta = c.hasInput(3) ? c.input(3) : ValueId();
  c.give(0, layerNormalization(c, {sum, c.input(2), beta, axis, epsilon}));
  giveWanted(c, 3, sum);
  if (!c.hasOutput(1) && !c.hasOutput(2)) return;
  const RowMoments moments = rowMoments(c, sum, axis, epsilon);
  giveWanted(c, 1, moments.mean);
  giveWanted(c, 2, moments.inverse_deviation);
}

void lowerSkipSimplifiedLayerNormalization(LoweringContext& c) {
  if (c.hasOutput(1)) c.refuse("it gives a mean, which it does not use");
  const ValueId sum = skippedSum(c, 3);
  const ValueId inverse = inverseRootMeanSquare(c, sum, c.rank(sum) - 1, epsilonOf(c, 1e-12F));
  c.give(0, c.binary("Mul", c.binary("Mul", sum, inverse), c.input(2)));
  giveWanted(c, 2, inverse);
  giveWanted(c, 3, sum);
}

// ---- embeddings

// A table of embeddings, of this many rows at least.
ValueId embeddings(LoweringContext& c, size_t position, int64_t rows = 0) {
  const Shape shape = c.shape(c.input(position));
  if (shape.size() != 2 || shape[0] < rows)
    c.refuse(fmt::format("its input {} is {}; expected a matrix of {} rows or more", position,
                         shapeToString(shape), rows));
  return c.input(position);
}

ValueId lookedUp(LoweringContext& c, ValueId table, ValueId ids) {
  Shape shape = c.shape(ids);
  const Shape rows = c.shape(table);
  shape.push_back(rows[1]);
  return c.op("Gather", {table, ids}, c.type(table), std::move(shape), {{"axis", int64_t{0}}});
}

// The normalised sum of the rows of words, positions and segments. Output 1: how many ones the mask has.
void lowerEmbedLayerNormalization(LoweringContext& c) {
  const ValueId ids = c.input(0);
  const Shape shape = c.shape(ids);
  if (shape.size() != 2) c.refuse("its ids are no matrix");
  ValueId sum = lookedUp(c, embeddings(c, 2), ids);
  const ValueId positions = c.hasInput(8) ? lookedUp(c, embeddings(c, 3), c.input(8))
                                          : c.slice(embeddings(c, 3, shape[1]), 0, 0, shape[1]);
  sum = c.binary("Add", sum, positions);
  if (c.hasInput(1) && c.hasInput(4)) sum = c.binary("Add", sum, lookedUp(c, embeddings(c, 4), c.input(1)));
  c.give(0, layerNormalization(c, {sum, c.input(5), c.input(6), 2, epsilonOf(c, 1e-12F)}));
  if (c.hasOutput(1)) {
    const DataType type = c.type(ids);
    const ValueId mask = c.hasInput(7) ? c.compare("Equal", c.input(7), c.scalar(c.type(c.input(7)), 1))
                                       : c.compare("Less", ids, ids);
    c.give(1, c.reduce("ReduceSum", c.cast(mask, type), {1}, false));
  }
  giveWanted(c, 2, sum);
}

// ---- groups of channels

// [batch, image.., channels] or [batch, channels, image..], normalised over the image and the channels of a
// group; activation 1 is x * sigmoid(x).
ValueId groupNormalized(LoweringContext& c, ValueId x, ValueId gamma, ValueId beta) {
  const bool last = c.node().intAttribute("channels_last", 1) != 0;
  const int64_t groups = c.node().intAttribute("groups", 0);
  const int64_t activation = c.node().intAttribute("activation", 0);
  if (c.rank(x) < 3) c.refuse("its input has no image axes");
  std::vector<int64_t> first(c.rank(x));  // the order with channels second
  std::iota(first.begin(), first.end(), 0);
  if (last) std::rotate(first.begin() + 1, first.end() - 1, first.end());
  const ValueId image = last ? c.transpose(x, first) : x;
  const Shape whole = c.shape(image);
  const int64_t channels = whole[1];
  if (groups <= 0 || channels % groups != 0)
    c.refuse(fmt::format("its {} channels are no {} groups", channels, groups));
  if (activation != 0 && activation != 1) c.refuse(fmt::format("its activation is {}", activation));
  const int64_t pixels = elementCount(Shape(whole.begin() + 2, whole.end()));
  const ValueId rows = c.reshape(image, {whole[0], groups, channels / groups * pixels});
  const double epsilon = epsilonOf(c, 1e-5F);
  const ValueId normal = layerNormalization(c, {.x = rows, .axis = 2, .epsilon = epsilon});
  const Shape of_channel{channels, 1};
  const DataType type = c.type(x);
  ValueId y = c.reshape(normal, {whole[0], channels, pixels});
  y = c.binary("Mul", y, c.reshape(c.cast(gamma, type), of_channel));
  y = c.binary("Add", y, c.reshape(c.cast(beta, type), of_channel));
  if (activation == 1) y = swish(c, y, 1);
  y = c.reshape(y, whole);
  if (!last) return y;
  std::vector<int64_t> back(c.rank(x));
  std::iota(back.begin(), back.end(), 0);
  std::rotate(back.begin() + 1, back.begin() + 2, back.end());
  return c.transpose(y, back);
}

void lowerGroupNorm(LoweringContext& c) { c.give(0, groupNormalized(c, c.input(0), c.input(1), c.input(2))); }

// Of x + skip + bias; a skip of [batch, channels] is the same for the whole image.
void lowerSkipGroupNorm(LoweringContext& c) {
  const ValueId x = c.input(0);
  ValueId skip = c.input(3);
  if (c.node().intAttribute("channels_last", 1) == 0) c.refuse("its channels are not last");
  if (c.rank(skip) == 2) {
    Shape shape(c.rank(x), 1);
    shape.front() = c.shape(skip)[0];
    shape.back() = c.shape(skip)[1];
    skip = c.reshape(skip, shape);
  }
  ValueId sum = c.binary("Add", x, skip);
  if (c.hasInput(4)) sum = c.binary("Add", sum, c.input(4));
  if (c.shape(sum) != c.shape(x)) c.refuse("what is added does not broadcast to its input");
  c.give(0, groupNormalized(c, sum, c.input(1), c.input(2)));
  giveWanted(c, 1, sum);
}

}  // namespace

void addMicrosoftNormalizationLowerings(LoweringRules& rules) {
  const auto add = [&](const char* op_type, LoweringRule::Apply apply) {
    rules[{"com.microsoft", op_type}] = {apply, nullptr, true};
  };
  rules[{"", "LayerNormalization"}] = {lowerEarlyLayerNormalization, isEarlyLayerNormalization, true};
  rules[{"", "SimplifiedLayerNormalization"}] = {lowerSimplifiedLayerNormalization, nullptr, true};
  add("EmbedLayerNormalization", lowerEmbedLayerNormalization);
  add("GroupNorm", lowerGroupNorm);
  add("SkipGroupNorm", lowerSkipGroupNorm);
  add("SkipLayerNormalization", lowerSkipLayerNormalization);
  add("SkipSimplifiedLayerNormalization", lowerSkipSimplifiedLayerNormalization);
}

}  // namespace pipeshard
