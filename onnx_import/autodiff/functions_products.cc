// Bodies of the gradients of convolutions, pools and batch normalisation; of attention, of projections, and
// of their gradients.
#include "ir/base/error.h"
#include "ir/operators/attention_form.h"
#include "onnx_import/autodiff/function_builder.h"

namespace pipeshard {
namespace {

using Builder = FunctionBuilder;

ValueId concatenated(Builder& f, std::vector<ValueId> parts) {
  return f.op("Concat", std::move(parts), {{"axis", int64_t{0}}});
}
ValueId sizes(Builder& f, ValueId x, int64_t start, int64_t end) {
  return f.op("Shape", {x}, {{"start", start}, {"end", end}});
}
ValueId sizesFrom(Builder& f, ValueId x, int64_t start) { return f.op("Shape", {x}, {{"start", start}}); }
// The first axes as rows, the others as columns.
ValueId asMatrix(Builder& f, ValueId x, int64_t row_axes) {
  return f.op("Flatten", {x}, {{"axis", row_axes}});
}

template <bool kTransposed, bool kBias>
void fusedProjection(Builder& f) {
  f.attribute("transposed", int64_t{kTransposed});
  const ValueId x = f.input("X");
  const ValueId w = f.input("W");
  std::vector<ValueId> inputs = {asMatrix(f, x, -1), asMatrix(f, w, kTransposed ? 2 : 1)};
  if (kBias) inputs.push_back(f.op("Reshape", {f.input("B"), f.integers({-1})}));
  const ValueId product = f.op("Gemm", inputs, {{"transB", int64_t{kTransposed}}});
  const ValueId columns = kTransposed ? sizes(f, w, 0, 2) : sizesFrom(f, w, 1);
  f.output("Y", f.op("Reshape", {product, concatenated(f, {sizes(f, x, 0, -1), columns})}));
}

template <bool kTransposed>
void fusedProjectionInputGrad(Builder& f) {
  f.attribute("transposed", int64_t{kTransposed});
  const ValueId dy = f.input("dY");
  const ValueId w = f.input("W");
  f.output("dX", f.op("Gemm", {asMatrix(f, dy, 1), asMatrix(f, w, kTransposed ? 2 : 1)},
                      {{"transB", int64_t{!kTransposed}}}));
}

template <bool kTransposed>
void fusedProjectionWeightGrad(Builder& f) {
  f.attribute("transposed", int64_t{kTransposed});
  const ValueId a = f.input(kTransposed ? "dY" : "X");
  const ValueId b = f.input(kTransposed ? "X" : "dY");
  const ValueId product = f.op("Gemm", {asMatrix(f, a, 1), asMatrix(f, b, 1)}, {{"transA", int64_t{1}}});
  f.output("dW", f.op("Reshape", {product, concatenated(f, {sizesFrom(f, a, 1), sizesFrom(f, b, 1)})}));
}

const std::vector<const char*> kWindowLists = {"dilations", "kernel_shape", "pads", "strides"};

// The attributes of the call that say how a window moves, handed on to a standard operator of the body.
std::map<std::string, Attribute> windowAttributes(Builder& f, const std::vector<const char*>& lists,
                                                  const char* integer) {
  std::map<std::string, Attribute> attributes;
  for (const char* name : lists) {
    f.attribute(name);
    attributes[name] = Builder::integersReference(name);
  }
  f.attribute(integer);
  attributes[integer] = Builder::integerReference(integer);
  return attributes;
}

void convInputGrad(Builder& f) {
  std::vector<const char*> lists = kWindowLists;
  lists.push_back("output_padding");
  const auto attributes = windowAttributes(f, lists, "group");
  const ValueId dy = f.input("dY");
  const ValueId w = f.input("W");
  f.output("dX", f.op("ConvTranspose", {dy, w}, attributes));
}

// dW is the convolution of X with dY over the batch: channels take the place of examples, strides that of
// dilations. What the image has beyond the last window makes the result too long at its end.
void convWeightGrad(Builder& f) {
  for (const char* name : kWindowLists) f.attribute(name);
  f.attribute("group");
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId group = f.op("Reshape", {f.integerAttribute("group"), f.integers({1})});
  const auto slice = [&](ValueId v, int64_t from, int64_t to) {
    return f.op("Shape", {v}, {{"start", from}, {"end", to}});
  };
  const auto from = [&](ValueId v, int64_t start) { return f.op("Shape", {v}, {{"start", start}}); };
  const auto concat = [&](std::vector<ValueId> parts) {
    return f.op("Concat", std::move(parts), {{"axis", int64_t{0}}});
  };
  const ValueId batch = slice(x, 0, 1);
  const ValueId rest = f.integers({-1});
  const ValueId channels = f.op("Div", {slice(x, 1, 2), group});
  const ValueId grouped = f.op("Reshape", {x, concat({batch, group, channels, rest})});
  const ValueId turned = f.op("Transpose", {grouped}, {{"perm", std::vector<int64_t>{2, 1, 0, 3}}});
  const ValueId image =
      f.op("Reshape", {turned, concat({channels, f.op("Mul", {group, batch}), from(x, 2)})});
  const std::vector<int64_t> swap = {1, 0, 2};
  const ValueId flat = f.op("Reshape", {dy, concat({slice(dy, 0, 2), rest})});
  const ValueId features = slice(dy, 1, 2);
  const ValueId kernel =
      f.op("Reshape", {f.op("Transpose", {flat}, {{"perm", swap}}), concat({features, batch, from(dy, 2)})});
  const ValueId sums = f.op("Conv", {image, kernel},
                            {{"strides", Builder::integersReference("dilations")},
                             {"dilations", Builder::integersReference("strides")},
                             {"pads", Builder::integersReference("pads")},
                             {"group", Builder::integerReference("group")}});
  const ValueId sizes = f.op("Constant", {}, {{"value_ints", Builder::integersReference("kernel_shape")}});
  const ValueId ends = concat({slice(sums, 0, 2), sizes});
  const ValueId cut = f.op("Slice", {sums, f.op("Sub", {ends, ends}), ends});
  const ValueId columns = f.op("Reshape", {cut, concat({channels, features, rest})});
  f.output("dW", f.op("Reshape",
                      {f.op("Transpose", {columns}, {{"perm", swap}}), concat({features, channels, sizes})}));
}

void maxPoolGrad(Builder& f) {
  const auto attributes = windowAttributes(f, kWindowLists, "ceil_mode");
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId indices = f.ops("MaxPool", {x}, 2, attributes)[1];
  const ValueId all = f.integers({-1});
  const ValueId zeros =
      f.op("Expand", {f.number(0, x), f.op("Reshape", {f.op("Size", {x}), f.integers({1})})});
  const ValueId sums =
      f.op("ScatterElements", {zeros, f.op("Reshape", {indices, all}), f.op("Reshape", {dy, all})},
           {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  f.output("dX", f.op("Reshape", {sums, f.op("Shape", {x})}));
}

// Every channel of every example is an image of one channel. On a canvas that the windows cover, which begins
// where the pads do, the sum over windows is a ConvTranspose with ones, and how many elements a window counts
// is a Conv of ones where elements count.
void averagePoolGrad(Builder& f) {
  for (const char* name : kWindowLists) f.attribute(name);
  for (const char* name : {"image", "ceil_mode", "count_include_pad"}) f.attribute(name);
  const ValueId dy = f.input("dY");
  const auto list = [&](const char* name) {
    return f.op("Constant", {}, {{"value_ints", Builder::integersReference(name)}});
  };
  const auto concat = [&](std::vector<ValueId> parts) {
    return f.op("Concat", std::move(parts), {{"axis", int64_t{0}}});
  };
  const auto sum = [&](ValueId a, ValueId b) { return f.op("Add", {a, b}); };
  const std::map<std::string, Attribute> window = {{"strides", Builder::integersReference("strides")},
                                                   {"dilations", Builder::integersReference("dilations")}};
  const ValueId image = list("image");
  const ValueId kernel = list("kernel_shape");
  const ValueId strides = list("strides");
  const std::vector<ValueId> halves =
      f.ops("Split", {list("pads"), concat({f.op("Shape", {image}), f.op("Shape", {image})})}, 2);
  const ValueId none = f.op("Sub", {image, image});
  const ValueId two = f.integers({1, 1});
  const ValueId no_two = f.integers({0, 0});
  const auto onesOf = [&](ValueId sizes) { return f.op("Expand", {f.number(1, dy), concat({two, sizes})}); };
  const auto extend = [&](ValueId v, ValueId begin, ValueId end) {
    return f.op("Pad", {v, concat({no_two, begin, no_two, end})});
  };
  const auto cut = [&](ValueId v, ValueId begin, ValueId size) {
    const ValueId rank = f.op("Size", {concat({no_two, image})});
    const ValueId axes = f.op("Range", {f.integer(2), rank, f.integer(1)});
    return f.op("Slice", {v, begin, sum(begin, size), axes});
  };
  const ValueId spatial = f.op("Shape", {dy}, {{"start", int64_t{2}}});
  const ValueId with_pads = f.op("Equal", {f.integerAttribute("count_include_pad"), f.integer(1)});
  const ValueId counted = f.op("Where", {with_pads, sum(sum(halves[0], image), halves[1]), image});
  const ValueId before = f.op("Where", {with_pads, none, halves[0]});
  const ValueId ones = onesOf(kernel);
  const ValueId mask = extend(onesOf(counted), before, sum(halves[1], strides));
  const ValueId count =
      f.op("Max", {cut(f.op("Conv", {mask, ones}, window), none, spatial), f.number(1, dy)});
  const ValueId planes = f.op("Reshape", {dy, concat({f.integers({-1, 1}), spatial})});
  const ValueId canvas = f.op("ConvTranspose", {f.op("Div", {planes, count}), ones}, window);
  const ValueId inside = cut(extend(canvas, none, strides), halves[0], image);
  const ValueId outer = f.op("Shape", {dy}, {{"start", int64_t{0}}, {"end", int64_t{2}}});
  f.output("dX", f.op("Reshape", {inside, concat({outer, image})}));
}

// X and dY as [batch, channels, rest], and what batch normalisation makes of X.
struct BatchNormalized {
  ValueId dy, x_hat, inverse, count;
};

ValueId channelSum(Builder& f, ValueId v, int64_t keep) {
  return f.op("ReduceSum", {v, f.integers({0, 2})}, {{"keepdims", keep}});
}

BatchNormalized batchNormalized(Builder& f, ValueId dy, ValueId x) {
  f.attribute("epsilon", 1e-5f);
  const ValueId shape =
      f.op("Concat", {f.op("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{2}}}), f.integers({-1})},
           {{"axis", int64_t{0}}});
  const ValueId cube = f.op("Reshape", {x, shape});
  const ValueId channels = f.op("Shape", {x}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const ValueId count = f.op("CastLike", {f.op("Div", {f.op("Size", {x}), channels}), x});
  const ValueId centred = f.op("Sub", {cube, f.op("Div", {channelSum(f, cube, 1), count})});
  const ValueId variance = f.op("Div", {channelSum(f, f.op("Mul", {centred, centred}), 1), count});
  const ValueId inverse =
      f.op("Reciprocal", {f.op("Sqrt", {f.op("Add", {variance, f.numberAttribute("epsilon", x)})})});
  return {f.op("Reshape", {dy, shape}), f.op("Mul", {centred, inverse}), inverse, count};
}

// Scale InvStdDev (dY - mean(dY) - x_hat mean(dY x_hat)), means over a channel.
void batchNormalizationInputGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const ValueId scale = f.input("Scale");
  const BatchNormalized n = batchNormalized(f, dy, x);
  const auto mean = [&](ValueId v) { return f.op("Div", {channelSum(f, v, 1), n.count}); };
  const ValueId projection = f.op("Mul", {n.x_hat, mean(f.op("Mul", {n.dy, n.x_hat}))});
  const ValueId rest = f.op("Sub", {f.op("Sub", {n.dy, mean(n.dy)}), projection});
  const ValueId factor = f.op("Mul", {n.inverse, f.op("Reshape", {scale, f.integers({1, -1, 1})})});
  f.output("dX", f.op("Reshape", {f.op("Mul", {factor, rest}), f.op("Shape", {x})}));
}

void batchNormalizationWeightGrad(Builder& f) {
  const ValueId dy = f.input("dY");
  const ValueId x = f.input("X");
  const BatchNormalized n = batchNormalized(f, dy, x);
  f.output("dScale", channelSum(f, f.op("Mul", {n.dy, n.x_hat}), 0));
  f.output("dBias", channelSum(f, n.dy, 0));
}

// ---- attention
// -------------------------------------------------------------------------------------------------------

// The calls differ by what lies over the scores: a body per overload.
struct Call {
  ValueId query, key, value, scale, mask, fill, keep, factor;
  std::vector<ValueId> biases;
  AttentionForm form;
  bool is_grouped = false;
};

Call describeCall(Builder& f, bool gradient) {
  Call call;
  bool found = false;
  for (const std::string& overlays : attentionOverlays()) {
    for (const bool nan_to_zero : {false, true}) {
      const std::string overload = attentionOverload(overlays, nan_to_zero);
      const bool is_grouped = f.overload() == groupedOverload(overload);
      if (overload != f.overload() && !is_grouped) continue;
      call.is_grouped = is_grouped;
      call.form = attentionForm(overlays, nan_to_zero, gradient);
      f.attribute("overlays", overlays);
      f.attribute("nan_to_zero", int64_t{nan_to_zero});
      found = true;
    }
  }
  PIPESHARD_CHECK(found, "no attention has the overload '{}'", f.overload());
  call.query = f.input("Q");
  call.key = f.input("K");
  call.value = f.input("V");
  call.scale = f.input("Scale");
  for (int i = call.form.scale() + 1; i < call.form.inputs; ++i) {
    if (i == call.form.mask) call.mask = f.input("Mask");
    if (i == call.form.fill()) call.fill = f.input("Fill");
    if (i == call.form.bias) call.biases.push_back(f.input("Bias"));
    if (i == call.form.keep) call.keep = f.input("Keep");
    if (i == call.form.factor()) call.factor = f.input("Factor");
    if (i == call.form.second_bias) call.biases.push_back(f.input("SecondBias"));
  }
  return call;
}

// The last two axes exchanged, whatever the rank.
ValueId transposed(Builder& f, ValueId x) {
  const auto sizes = [&](int64_t start, int64_t end) {
    return f.op("Shape", {x}, {{"start", start}, {"end", end}});
  };
  const auto concat = [&](std::vector<ValueId> parts) {
    return f.op("Concat", std::move(parts), {{"axis", int64_t{0}}});
  };
  const ValueId last = f.op("Shape", {x}, {{"start", int64_t{-1}}});
  const ValueId rows = sizes(-2, -1);
  const ValueId matrices = f.op("Reshape", {x, concat({f.integers({-1}), rows, last})});
  const ValueId turned = f.op("Transpose", {matrices}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  return f.op("Reshape", {turned, concat({sizes(0, -2), last, rows})});
}

ValueId overTheKeys(Builder& f, const char* op, ValueId x) {
  // The axes are an attribute of ReduceMax until version 18.
  const std::map<std::string, Attribute> keep = {{"keepdims", int64_t{1}}};
  if (f.opset() >= 18 || std::string_view(op) == "ReduceSum") return f.op(op, {x, f.integers({-1})}, keep);
  std::map<std::string, Attribute> attributes = keep;
  attributes["axes"] = std::vector<int64_t>{-1};
  return f.op(op, {x}, attributes);
}

ValueId scoresOf(Builder& f, const Call& call) {
  ValueId scores = f.op("Mul", {f.op("MatMul", {call.query, transposed(f, call.key)}), call.scale});
  const auto addBiases = [&] {
    for (const ValueId bias : call.biases) scores = f.op("Add", {scores, bias});
  };
  if (call.form.biasFirst()) addBiases();
  if (call.mask.valid()) scores = f.op("Where", {call.mask, scores, call.fill});
  if (!call.form.biasFirst()) addBiases();
  return scores;
}

ValueId withoutNan(Builder& f, const Call& call, ValueId probabilities) {
  if (!call.form.nan_to_zero) return probabilities;
  return f.op("Where", {f.op("IsNaN", {probabilities}), f.number(0, call.query), probabilities});
}

// Of probabilities, and of their slopes.
ValueId dropped(Builder& f, const Call& call, ValueId x) {
  if (!call.keep.valid()) return x;
  return f.op("Where", {call.keep, f.op("Mul", {x, call.factor}), f.number(0, call.query)});
}

void attention(Builder& f) {
  const Call call = describeCall(f, false);
  const ValueId scores = scoresOf(f, call);
  const ValueId softmax = f.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const ValueId most = overTheKeys(f, "ReduceMax", scores);
  const ValueId sum = overTheKeys(f, "ReduceSum", f.op("Exp", {f.op("Sub", {scores, most})}));
  f.output("Y", f.op("MatMul", {dropped(f, call, withoutNan(f, call, softmax)), call.value}));
  f.output("RowMax", most);
  f.output("RowSum", sum);
}

struct Slopes {
  ValueId probabilities;  // what values are multiplied by
  ValueId scores;         // what came out of the overlays: of the bias, if it is the last of them
  ValueId products;       // what went into the overlays
};

Slopes slopesOf(Builder& f, const Call& call, ValueId dy, ValueId most, ValueId sum) {
  const ValueId exponentials = f.op("Exp", {f.op("Sub", {scoresOf(f, call), most})});
  const ValueId p = withoutNan(f, call, f.op("Div", {exponentials, sum}));
  const ValueId dp = dropped(f, call, f.op("MatMul", {dy, transposed(f, call.value)}));
  const ValueId dot = overTheKeys(f, "ReduceSum", f.op("Mul", {p, dp}));
  const ValueId ds = f.op("Mul", {p, f.op("Sub", {dp, dot})});
  const ValueId unmasked = call.mask.valid() ? f.op("Where", {call.mask, ds, f.number(0, call.query)}) : ds;
  return {dropped(f, call, p), ds, unmasked};
}

struct GradientCall {
  Call call;
  Slopes slopes;
  ValueId dy;
};

GradientCall describeGradient(Builder& f) {
  GradientCall g;
  g.dy = f.input("dY");
  const ValueId most = f.input("RowMax");
  const ValueId sum = f.input("RowSum");
  g.call = describeCall(f, true);
  g.slopes = slopesOf(f, g.call, g.dy, most, sum);
  return g;
}

void attentionGrad(Builder& f) {
  const GradientCall g = describeGradient(f);
  const auto ofKeys = [&](ValueId x, ValueId y) {
    const ValueId product = f.op("MatMul", {transposed(f, x), y});
    return g.call.is_grouped ? f.op("ReduceSum", {product, f.integers({-3})}, {{"keepdims", int64_t{1}}})
                             : product;
  };
  const ValueId scaled = f.op("Mul", {g.slopes.products, g.call.scale});
  f.output("dQ", f.op("MatMul", {scaled, g.call.key}));
  f.output("dK", ofKeys(scaled, g.call.query));
  f.output("dV", ofKeys(g.slopes.probabilities, g.dy));
}

void attentionScoresGrad(Builder& f) {
  const GradientCall g = describeGradient(f);
  const ValueId slope = g.call.form.biasFirst() ? g.slopes.products : g.slopes.scores;
  f.output("dScores", f.op("Identity", {slope}));
}

}  // namespace

void addConvolutionBodies(FunctionBodies& bodies) {
  bodies[{"ConvInputGrad", ""}] = convInputGrad;
  bodies[{"ConvWeightGrad", ""}] = convWeightGrad;
  bodies[{"MaxPoolGrad", ""}] = maxPoolGrad;
  bodies[{"AveragePoolGrad", ""}] = averagePoolGrad;
  bodies[{"BatchNormalizationInputGrad", ""}] = batchNormalizationInputGrad;
  bodies[{"BatchNormalizationWeightGrad", ""}] = batchNormalizationWeightGrad;
}

void addProjectionBodies(FunctionBodies& bodies) {
  bodies[{"FusedProjection", ""}] = fusedProjection<false, false>;
  bodies[{"FusedProjection", "bias"}] = fusedProjection<false, true>;
  bodies[{"FusedProjection", "transposed"}] = fusedProjection<true, false>;
  bodies[{"FusedProjection", "transposed_bias"}] = fusedProjection<true, true>;
  bodies[{"FusedProjectionInputGrad", ""}] = fusedProjectionInputGrad<false>;
  bodies[{"FusedProjectionInputGrad", "transposed"}] = fusedProjectionInputGrad<true>;
  bodies[{"FusedProjectionWeightGrad", ""}] = fusedProjectionWeightGrad<false>;
  bodies[{"FusedProjectionWeightGrad", "transposed"}] = fusedProjectionWeightGrad<true>;
}

void addAttentionBodies(FunctionBodies& bodies) {
  for (const std::string& overlays : attentionOverlays()) {
    for (const bool nan_to_zero : {false, true}) {
      const std::string overload = attentionOverload(overlays, nan_to_zero);
      bodies[{"Attention", overload}] = attention;
      bodies[{"AttentionGrad", overload}] = attentionGrad;
      bodies[{"AttentionGrad", groupedOverload(overload)}] = attentionGrad;
      const bool has_bias = overlays.find("bias") != std::string::npos;
      if (has_bias) bodies[{"AttentionScoresGrad", overload}] = attentionScoresGrad;
    }
  }
}

}  // namespace pipeshard
