#include "onnx_import/autodiff/functions.h"

#include <cmath>
#include <map>

#include "ir/base/error.h"
#include "onnx_import/autodiff/function_builder.h"

namespace pipeshard {
namespace {

using Builder = FunctionBuilder;

// ---- activations and softmax
// --------------------------------------------------------------------------------------

void reluGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId y = f.input("Y");
  const ValueId zero = f.number(0, y);
  f.output("dX", f.op("Where", {f.op("Greater", {y, zero}), dy, zero}));
}

// Whose numbers a Gelu computes with: the exact ones, or those that its file holds, as attributes. A divisor
// of float32 stays one: its reciprocal is no number of float32.
enum class Factors { kExact, kGiven, kDivisor };

void describeGelu(Builder& f, Factors factors, bool tanh) {
  f.attribute("approximate", std::string(tanh ? "tanh" : "none"));
  if (factors == Factors::kGiven) f.attribute("factor");
  if (factors == Factors::kDivisor) f.attribute("divisor");
  if (factors == Factors::kGiven && tanh) f.attribute("cubic");
}
ValueId factorOf(Builder& f, Factors factors, double exact, ValueId x) {
  if (factors == Factors::kDivisor) return f.op("Div", {f.number(1, x), f.numberAttribute("divisor", x)});
  return factors == Factors::kGiven ? f.numberAttribute("factor", x) : f.number(exact, x);
}
ValueId cubicOf(Builder& f, Factors factors, ValueId x) {
  return factors == Factors::kGiven ? f.numberAttribute("cubic", x) : f.number(0.044715, x);
}

template <Factors kFactors>
void gelu(Builder& f) {
  describeGelu(f, kFactors, false);
  const ValueId x = f.input("X");
  const ValueId erf = f.op("Erf", {f.op("Mul", {x, factorOf(f, kFactors, std::sqrt(0.5), x)})});
  f.output("Y", f.op("Mul", {f.op("Mul", {x, f.number(0.5, x)}), f.op("Add", {erf, f.number(1, x)})}));
}

// X/2 (1 + tanh(k (X + c X^3)))
template <Factors kFactors>
void geluTanh(Builder& f) {
  describeGelu(f, kFactors, true);
  const ValueId x = f.input("X");
  const ValueId cube = f.op("Mul", {f.op("Mul", {x, x}), x});
  const ValueId u = f.op("Add", {x, f.op("Mul", {cube, cubicOf(f, kFactors, x)})});
  const ValueId t = f.op("Tanh", {f.op("Mul", {u, factorOf(f, kFactors, std::sqrt(2 / M_PI), x)})});
  f.output("Y", f.op("Mul", {f.op("Mul", {x, f.number(0.5, x)}), f.op("Add", {t, f.number(1, x)})}));
}

// X sigmoid(alpha X)
void swish(Builder& f) {
  f.attribute("alpha", 1.0f);
  const ValueId x = f.input("X");
  const ValueId gate = f.op("Sigmoid", {f.op("Mul", {x, f.numberAttribute("alpha", x)})});
  f.output("Y", f.op("Mul", {x, gate}));
}

// Y = X s, s = sigmoid(alpha X):   dY s (1 + alpha X (1 - s))
void swishGrad(Builder& f) {
  f.attribute("alpha", 1.0f);
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId u = f.op("Mul", {x, f.numberAttribute("alpha", x)});
  const ValueId s = f.op("Sigmoid", {u});
  const ValueId one = f.number(1, x);
  const ValueId slope = f.op("Add", {one, f.op("Mul", {u, f.op("Sub", {one, s})})});
  f.output("dX", f.op("Mul", {dy, f.op("Mul", {s, slope})}));
}

// Y = X/2 (1 + erf(r X)):   dY (1/2 (1 + erf(r X)) + X r / sqrt(pi) exp(-(r X)^2))
template <Factors kFactors>
void geluGrad(Builder& f) {
  describeGelu(f, kFactors, false);
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId r = factorOf(f, kFactors, std::sqrt(0.5), x);
  const ValueId u = f.op("Mul", {x, r});
  const ValueId cdf = f.op("Mul", {f.op("Add", {f.op("Erf", {u}), f.number(1, x)}), f.number(0.5, x)});
  const ValueId bell = f.op("Exp", {f.op("Neg", {f.op("Mul", {u, u})})});
  const ValueId pdf = f.op("Mul", {bell, f.op("Mul", {r, f.number(1 / std::sqrt(M_PI), x)})});
  f.output("dX", f.op("Mul", {dy, f.op("Add", {cdf, f.op("Mul", {x, pdf})})}));
}

// Y = X/2 (1 + tanh u), u = k (X + c X^3):   dY (1/2 (1 + t) + X/2 (1 - t^2) k (1 + 3 c X^2))
template <Factors kFactors>
void geluTanhGrad(Builder& f) {
  describeGelu(f, kFactors, true);
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId one = f.number(1, x);
  const ValueId half = f.number(0.5, x);
  const ValueId k = factorOf(f, kFactors, std::sqrt(2 / M_PI), x);
  const ValueId bent = f.op("Mul", {f.op("Mul", {x, x}), cubicOf(f, kFactors, x)});
  const ValueId t = f.op("Tanh", {f.op("Mul", {k, f.op("Mul", {x, f.op("Add", {one, bent})})})});
  const ValueId du = f.op("Mul", {k, f.op("Add", {one, f.op("Mul", {bent, f.number(3, x)})})});
  const ValueId slope = f.op("Mul", {f.op("Sub", {one, f.op("Mul", {t, t})}), du});
  const ValueId sum = f.op("Add", {f.op("Add", {one, t}), f.op("Mul", {x, slope})});
  f.output("dX", f.op("Mul", {dy, f.op("Mul", {half, sum})}));
}

// Y = X t, t = tanh(softplus(X)):   dY (t + X (1 - t^2) sigmoid(X))
void mishGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId t = f.op("Tanh", {f.op("Softplus", {x})});
  const ValueId slope =
      f.op("Mul", {f.op("Sub", {f.number(1, x), f.op("Mul", {t, t})}), f.op("Sigmoid", {x})});
  f.output("dX", f.op("Mul", {dy, f.op("Add", {t, f.op("Mul", {x, slope})})}));
}

ValueId sumOverAxisAttribute(Builder& f, ValueId x) {
  const ValueId axes = f.op("Reshape", {f.integerAttribute("axis"), f.integers({1})});
  return f.op("ReduceSum", {x, axes}, {{"keepdims", int64_t{1}}});
}

void softmaxGrad(Builder& f) {
  f.attribute("axis", int64_t{-1});
  const ValueId dy = f.input("dY");
  const ValueId y = f.input("Y");
  const ValueId sum = sumOverAxisAttribute(f, f.op("Mul", {dy, y}));
  f.output("dX", f.op("Mul", {y, f.op("Sub", {dy, sum})}));
}

void logSoftmaxGrad(Builder& f) {
  f.attribute("axis", int64_t{-1});
  const ValueId dy = f.input("dY");
  const ValueId y = f.input("Y");
  const ValueId sum = sumOverAxisAttribute(f, dy);
  f.output("dX", f.op("Sub", {dy, f.op("Mul", {f.op("Exp", {y}), sum})}));
}

// ---- LayerNormalization
// -------------------------------------------------------------------------------------------

// Everything before `axis` as rows, the rest as columns.
ValueId asRows(Builder& f, ValueId x) {
  return f.op("Flatten", {x}, {{"axis", Builder::integerReference("axis")}});
}

struct Normalized {
  ValueId dy, x_hat, inverse;  // rows
};

Normalized normalized(Builder& f, ValueId dy, ValueId x, ValueId mean, ValueId inverse) {
  const ValueId inverse_rows = asRows(f, inverse);
  const ValueId centred = f.op("Sub", {asRows(f, x), asRows(f, mean)});
  return {asRows(f, dy), f.op("Mul", {centred, inverse_rows}), inverse_rows};
}

// With g = dY Scale:   InvStdDev (g - mean(g) - x_hat mean(g x_hat)), means over the normalised axes.
void layerNormalizationInputGrad(Builder& f) {
  f.attribute("axis", int64_t{-1});
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId scale = f.input("Scale");
  const ValueId mean = f.input("Mean");
  const ValueId inverse = f.input("InvStdDev");
  const Normalized n = normalized(f, dy, x, mean, inverse);
  const ValueId g = f.op("Mul", {n.dy, f.op("Reshape", {scale, f.integers({1, -1})})});
  const ValueId count =
      f.op("CastLike", {f.op("Shape", {g}, {{"start", int64_t{1}}, {"end", int64_t{2}}}), g});
  const ValueId columns = f.integers({1});
  const auto meanOf = [&](ValueId v) {
    return f.op("Div", {f.op("ReduceSum", {v, columns}, {{"keepdims", int64_t{1}}}), count});
  };
  const ValueId g_mean = meanOf(g);
  const ValueId projection = f.op("Mul", {n.x_hat, meanOf(f.op("Mul", {g, n.x_hat}))});
  const ValueId rows = f.op("Mul", {n.inverse, f.op("Sub", {f.op("Sub", {g, g_mean}), projection})});
  f.output("dX", f.op("Reshape", {rows, f.op("Shape", {x})}));
}

// Over the last axis: X Scale / sqrt(mean(X^2) + epsilon).
void rmsNormalization(Builder& f) {
  f.attribute("epsilon", 1e-5f);
  const ValueId x = f.input("X");
  const ValueId scale = f.input("Scale");
  const ValueId last = f.integers({-1});
  const ValueId count = f.op("CastLike", {f.op("Shape", {x}, {{"start", int64_t{-1}}}), x});
  const ValueId sum = f.op("ReduceSum", {f.op("Mul", {x, x}), last}, {{"keepdims", int64_t{1}}});
  const ValueId square = f.op("Add", {f.op("Div", {sum, count}), f.numberAttribute("epsilon", x)});
  const ValueId inverse = f.op("Reciprocal", {f.op("Sqrt", {square})});
  f.output("Y", f.op("Mul", {f.op("Mul", {x, inverse}), scale}));
  f.output("InvRms", f.op("Identity", {inverse}));
}

// With g = dY Scale and x_hat = X InvRms:   InvRms (g - x_hat mean(g x_hat))
void rmsNormalizationInputGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId scale = f.input("Scale");
  const ValueId inverse = f.input("InvRms");
  const ValueId g = f.op("Mul", {dy, scale});
  const ValueId x_hat = f.op("Mul", {x, inverse});
  const ValueId count = f.op("CastLike", {f.op("Shape", {x}, {{"start", int64_t{-1}}}), x});
  const ValueId dot =
      f.op("ReduceSum", {f.op("Mul", {g, x_hat}), f.integers({-1})}, {{"keepdims", int64_t{1}}});
  const ValueId along = f.op("Mul", {x_hat, f.op("Div", {dot, count})});
  f.output("dX", f.op("Mul", {inverse, f.op("Sub", {g, along})}));
}

void rmsNormalizationWeightGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId inverse = f.input("InvRms");
  const ValueId product = f.op("Mul", {dy, f.op("Mul", {x, inverse})});
  const ValueId rows = f.op("Flatten", {product}, {{"axis", int64_t{-1}}});
  f.output("dScale", f.op("ReduceSum", {rows, f.integers({0})}, {{"keepdims", int64_t{0}}}));
}

void layerNormalizationWeightGrad(Builder& f) {
  f.attribute("axis", int64_t{-1});
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId mean = f.input("Mean");
  const ValueId inverse = f.input("InvStdDev");
  const Normalized n = normalized(f, dy, x, mean, inverse);
  const ValueId inner = f.op("Shape", {x}, {{"start", Builder::integerReference("axis")}});
  const ValueId rows = f.integers({0});
  const auto sumOfRows = [&](ValueId v) {
    return f.op("Reshape", {f.op("ReduceSum", {v, rows}, {{"keepdims", int64_t{0}}}), inner});
  };
  f.output("dScale", sumOfRows(f.op("Mul", {n.dy, n.x_hat})));
  f.output("dBias", sumOfRows(n.dy));
}

// ---- Gather
// ----------------------------------------------------------------------------------------------------

// The data as [outer, axis, inner] with axis moved to the front, so that ScatterND can add whole [outer,
// inner] slices.
void gatherGrad(Builder& f) {
  f.attribute("axis", int64_t{0});
  const ValueId dy = f.input("dY");
  const ValueId indices = f.input("Indices");
  const ValueId shape = f.input("Shape");
  const ValueId one = f.integers({1});
  const ValueId rank = f.op("Reshape", {f.op("Size", {shape}), one});
  const ValueId signed_axis = f.op("Reshape", {f.integerAttribute("axis"), one});
  const ValueId axis = f.op("Mod", {f.op("Add", {signed_axis, rank}), rank});
  const ValueId next = f.op("Add", {axis, one});
  const auto product = [&](ValueId from, ValueId to) {
    const ValueId sizes = f.op("Concat", {one, f.op("Slice", {shape, from, to})}, {{"axis", int64_t{0}}});
    return f.op("ReduceProd", {sizes}, {{"keepdims", int64_t{1}}});
  };
  const ValueId outer = product(f.integers({0}), axis);
  const ValueId size = f.op("Slice", {shape, axis, next});
  const ValueId inner = product(next, rank);
  const ValueId dy_shape = f.op("Concat", {outer, f.integers({-1}), inner}, {{"axis", int64_t{0}}});
  const std::vector<int64_t> swap = {1, 0, 2};
  const ValueId updates = f.op("Transpose", {f.op("Reshape", {dy, dy_shape})}, {{"perm", swap}});
  const ValueId flat = f.op("Reshape", {indices, f.integers({-1, 1})});
  const ValueId wrapped =
      f.op("Where", {f.op("Less", {flat, f.integer(0)}), f.op("Add", {flat, size}), flat});
  const ValueId data_shape = f.op("Concat", {size, outer, inner}, {{"axis", int64_t{0}}});
  const ValueId zeros = f.op("Expand", {f.number(0, dy), data_shape});
  const ValueId sums = f.op("ScatterND", {zeros, wrapped, updates}, {{"reduction", std::string("add")}});
  f.output("dData", f.op("Reshape", {f.op("Transpose", {sums}, {{"perm", swap}}), shape}));
}

void gatherElementsGrad(Builder& f) {
  f.attribute("axis", int64_t{0});
  const ValueId dy = f.input("dY");
  const ValueId indices = f.input("Indices");
  const ValueId shape = f.input("Shape");
  const ValueId zeros = f.op("Expand", {f.number(0, dy), shape});
  f.output("dData", f.op("ScatterElements", {zeros, indices, dy},
                         {{"axis", Builder::integerReference("axis")}, {"reduction", std::string("add")}}));
}

// ---- loss
// ----------------------------------------------------------------------------------------------------

// What a cross-entropy and its gradient have in common: inputs and attributes of a call, and of each label
// the class that it names (0 where it is ignored) and its weight.
struct LabelledScores {
  ValueId d_loss, scores, most, sum;  // most, sum: of the gradient
  ValueId ignored, label, zero, counted;
};

LabelledScores labelledScores(Builder& f, const std::string& reduction, bool weighted, bool gradient) {
  f.attribute("reduction", reduction);
  f.attribute("ignore_index", int64_t{0});
  f.attribute("has_ignore_index", int64_t{0});
  LabelledScores of;
  if (gradient) of.d_loss = f.input("dLoss");
  of.scores = f.input("Scores");
  if (gradient) of.most = f.input("RowMax");
  if (gradient) of.sum = f.input("RowSum");
  const ValueId labels = f.input("Labels");
  const ValueId class_weights = weighted ? f.input("Weights") : ValueId();
  const auto like_labels = [&](ValueId integer) { return f.op("CastLike", {integer, labels}); };
  const ValueId may_ignore = f.op("Equal", {f.integerAttribute("has_ignore_index"), f.integer(1)});
  of.ignored =
      f.op("And", {f.op("Equal", {labels, like_labels(f.integerAttribute("ignore_index"))}), may_ignore});
  of.label = f.op("Where", {of.ignored, like_labels(f.integer(0)), labels});
  of.zero = f.number(0, of.scores);
  const ValueId weight = weighted ? f.op("Gather", {class_weights, of.label}) : f.number(1, of.scores);
  of.counted = f.op("Where", {of.ignored, of.zero, weight});
  return of;
}

ValueId largestClass(Builder& f, ValueId scores) {
  // The axes are an attribute of ReduceMax until version 18.
  std::map<std::string, Attribute> attributes = {{"keepdims", int64_t{0}}};
  if (f.opset() >= 18) return f.op("ReduceMax", {scores, f.integers({1})}, attributes);
  attributes["axes"] = std::vector<int64_t>{1};
  return f.op("ReduceMax", {scores}, attributes);
}

// -log(softmax at the label), 0 where it is ignored; for a mean divided by the sum of the weights.
void crossEntropyLoss(Builder& f, const std::string& reduction, bool weighted) {
  const LabelledScores of = labelledScores(f, reduction, weighted, false);
  const ValueId classes = f.integers({1});
  const ValueId most = largestClass(f, of.scores);
  const ValueId shifted = f.op("Sub", {of.scores, f.op("Unsqueeze", {most, classes})});
  const std::map<std::string, Attribute> whole = {{"keepdims", int64_t{0}}};
  const ValueId sum = f.op("ReduceSum", {f.op("Exp", {shifted}), classes}, whole);
  const ValueId at_label =
      f.op("GatherElements", {shifted, f.op("Unsqueeze", {of.label, classes})}, {{"axis", int64_t{1}}});
  const ValueId negative = f.op("Sub", {f.op("Log", {sum}), f.op("Squeeze", {at_label, classes})});
  const ValueId counts = f.op("Not", {f.op("Equal", {of.counted, of.zero})});
  const ValueId terms = f.op("Where", {counts, f.op("Mul", {of.counted, negative}), of.zero});
  ValueId loss = terms;
  if (reduction != "none") loss = f.op("ReduceSum", {terms}, whole);
  if (reduction == "mean") loss = f.op("Div", {loss, f.op("ReduceSum", {of.counted}, whole)});
  f.output("Loss", loss);
  f.output("RowMax", most);
  f.output("RowSum", sum);
}

// share (softmax - onehot(label)), share = dLoss * weight[label] (for a mean, divided by the sum of those), 0
// where ignored.
void crossEntropyLossGrad(Builder& f, const std::string& reduction, bool weighted) {
  const LabelledScores of = labelledScores(f, reduction, weighted, true);
  ValueId share = f.op("Mul", {of.d_loss, of.counted});
  if (reduction == "mean")
    share = f.op("Div", {share, f.op("ReduceSum", {of.counted}, {{"keepdims", int64_t{0}}})});
  share = f.op("Where", {of.ignored, of.zero, share});
  const ValueId classes = f.integers({1});
  const auto column = [&](ValueId of_labels) { return f.op("Unsqueeze", {of_labels, classes}); };
  const ValueId exponential = f.op("Exp", {f.op("Sub", {of.scores, column(of.most)})});
  const ValueId spread = f.op("Mul", {exponential, column(f.op("Div", {share, of.sum}))});
  f.output("dScores", f.op("ScatterElements", {spread, column(of.label), f.op("Neg", {column(share)})},
                           {{"axis", int64_t{1}}, {"reduction", std::string("add")}}));
}

// By reduction, and with "_weighted" behind it where Weights is given.
void addLossBodies(FunctionBodies& table) {
  const auto add = [&](const char* overload, void (*loss)(Builder&), void (*gradient)(Builder&)) {
    table[{"CrossEntropyLoss", overload}] = loss;
    table[{"CrossEntropyLossGrad", overload}] = gradient;
  };
  add(
      "none", [](Builder& f) { crossEntropyLoss(f, "none", false); },
      [](Builder& f) { crossEntropyLossGrad(f, "none", false); });
  add(
      "sum", [](Builder& f) { crossEntropyLoss(f, "sum", false); },
      [](Builder& f) { crossEntropyLossGrad(f, "sum", false); });
  add(
      "mean", [](Builder& f) { crossEntropyLoss(f, "mean", false); },
      [](Builder& f) { crossEntropyLossGrad(f, "mean", false); });
  add(
      "none_weighted", [](Builder& f) { crossEntropyLoss(f, "none", true); },
      [](Builder& f) { crossEntropyLossGrad(f, "none", true); });
  add(
      "sum_weighted", [](Builder& f) { crossEntropyLoss(f, "sum", true); },
      [](Builder& f) { crossEntropyLossGrad(f, "sum", true); });
  add(
      "mean_weighted", [](Builder& f) { crossEntropyLoss(f, "mean", true); },
      [](Builder& f) { crossEntropyLossGrad(f, "mean", true); });
}

FunctionBodies makeBodies() {
  FunctionBodies table = {
      {{"ReluGrad", ""}, reluGrad},
      {{"Gelu", ""}, gelu<Factors::kExact>},
      {{"Gelu", "factors"}, gelu<Factors::kGiven>},
      {{"Gelu", "divisor"}, gelu<Factors::kDivisor>},
      {{"Gelu", "tanh"}, geluTanh<Factors::kExact>},
      {{"Gelu", "tanh_factors"}, geluTanh<Factors::kGiven>},
      {{"Swish", ""}, swish},
      {{"SwishGrad", ""}, swishGrad},
      {{"GeluGrad", ""}, geluGrad<Factors::kExact>},
      {{"GeluGrad", "factors"}, geluGrad<Factors::kGiven>},
      {{"GeluGrad", "divisor"}, geluGrad<Factors::kDivisor>},
      {{"GeluGrad", "tanh"}, geluTanhGrad<Factors::kExact>},
      {{"GeluGrad", "tanh_factors"}, geluTanhGrad<Factors::kGiven>},
      {{"MishGrad", ""}, mishGrad},
      {{"SoftmaxGrad", ""}, softmaxGrad},
      {{"LogSoftmaxGrad", ""}, logSoftmaxGrad},
      {{"RMSNormalization", ""}, rmsNormalization},
      {{"RMSNormalizationInputGrad", ""}, rmsNormalizationInputGrad},
      {{"RMSNormalizationWeightGrad", ""}, rmsNormalizationWeightGrad},
      {{"LayerNormalizationInputGrad", ""}, layerNormalizationInputGrad},
      {{"LayerNormalizationWeightGrad", ""}, layerNormalizationWeightGrad},
      {{"GatherGrad", ""}, gatherGrad},
      {{"GatherElementsGrad", ""}, gatherElementsGrad},
  };
  addLossBodies(table);
  addAttentionBodies(table);
  addProjectionBodies(table);
  addConvolutionBodies(table);
  addOptimizerBodies(table);
  return table;
}

const FunctionBodies& bodies() {
  static const FunctionBodies table = makeBodies();
  return table;
}

}  // namespace

Function makePipeshardFunction(std::string_view name, std::string_view overload, int opset) {
  const auto it = bodies().find({std::string(name), std::string(overload)});
  PIPESHARD_CHECK(it != bodies().end(), "no function pipeshard::{} with overload '{}'", name, overload);
  PIPESHARD_CHECK(opset >= 16, "function bodies need opset 16 or later, found {}", opset);
  FunctionBuilder builder(name, overload, opset);
  it->second(builder);
  return builder.finish();
}

std::vector<std::pair<std::string, std::string>> pipeshardFunctions() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, body] : bodies()) names.push_back(name);
  return names;
}

}  // namespace pipeshard
