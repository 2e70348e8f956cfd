// MatMul, Gemm and attention. A product with a matrix of weights becomes one Gemm on the flattened rows: no
// transposed copies, neither of ours nor of those that the forward pass makes.
#include "ir/operators/attention_form.h"
#include "ir/operators/fused_projection.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// `type`: of the result.
ValueId gemm(GradientContext& c, ValueId a, bool transpose_a, ValueId b, bool transpose_b, DataType type,
             float alpha = 1) {
  if (const ValueId original = c.untransposed(b); original.valid()) {
    b = original;
    transpose_b = !transpose_b;
  }
  const Shape rows = c.shape(a);
  const Shape columns = c.shape(b);
  std::map<std::string, Attribute> attributes = {{"transA", int64_t{transpose_a}},
                                                 {"transB", int64_t{transpose_b}}};
  if (alpha != 1) attributes["alpha"] = alpha;
  return c.op("Gemm", {a, b}, type, {rows[transpose_a ? 1 : 0], columns[transpose_b ? 0 : 1]},
              std::move(attributes));
}

ValueId matmul(GradientContext& c, ValueId a, ValueId b, DataType type) {
  const Shape left = c.shape(a);
  const Shape right = c.shape(b);
  Shape result = broadcastShapes(Shape(left.begin(), left.end() - 2), Shape(right.begin(), right.end() - 2));
  result.push_back(left[left.size() - 2]);
  result.push_back(right.back());
  return c.op("MatMul", {a, b}, type, std::move(result));
}

// [.., m, k] as [rows, k].
ValueId flattenRows(GradientContext& c, ValueId x) {
  const Shape shape = c.shape(x);
  return c.reshape(x, {elementCount(shape) / shape.back(), shape.back()});
}

// Y = A B with B a matrix: rows of A and Y are independent. Each product has a view of dY of its own: the
// gradient of a weight is made later (Phase::kBackwardWeight), and dY goes there once, for a bias, too.
void matmulByMatrix(GradientContext& c, ValueId a, ValueId b, ValueId dy) {
  if (c.needs(0)) {
    const ValueId rows = gemm(c, flattenRows(c, dy), false, b, true, c.gradientType(0));
    c.give(0, c.reshape(rows, c.shape(c.input(0))));
  }
  if (c.needs(1)) {
    const ValueId product = gemm(c, flattenRows(c, a), true, flattenRows(c, dy), false, c.gradientType(1));
    c.give(1, c.reshape(product, c.shape(c.input(1))));
  }
}

void matmulGradient(GradientContext& c) {
  Shape a_shape = c.shape(c.input(0));
  Shape b_shape = c.shape(c.input(1));
  Shape y_shape = c.shape(c.output());
  // One-dimensional inputs are a row (left) or a column (right) without saying so.
  if (b_shape.size() == 1) {
    b_shape.push_back(1);
    y_shape.push_back(1);
  }
  if (a_shape.size() == 1) {
    a_shape.insert(a_shape.begin(), 1);
    y_shape.insert(y_shape.end() - 1, 1);
  }
  const ValueId a = c.reshape(c.input(0), a_shape);
  const ValueId b = c.reshape(c.input(1), b_shape);
  const ValueId dy = c.reshape(c.outputGradient(), y_shape);
  if (b_shape.size() == 2) return matmulByMatrix(c, a, b, dy);
  if (c.needs(0)) {
    const ValueId gradient = c.reduceTo(matmul(c, dy, c.transposeLastTwo(b), c.gradientType(0)), a_shape);
    c.give(0, c.reshape(gradient, c.shape(c.input(0))));
  }
  if (c.needs(1)) {
    const ValueId gradient = c.reduceTo(matmul(c, c.transposeLastTwo(a), dy, c.gradientType(1)), b_shape);
    c.give(1, c.reshape(gradient, c.shape(c.input(1))));
  }
}

// Y = alpha op(A) op(B) + beta C
void gemmGradient(GradientContext& c) {
  const bool transpose_a = c.node().intAttribute("transA", 0) != 0;
  const bool transpose_b = c.node().intAttribute("transB", 0) != 0;
  const float alpha = c.node().floatAttribute("alpha", 1);
  const ValueId a = c.input(0);
  const ValueId b = c.input(1);
  const ValueId dy = c.outputGradient();
  if (c.needs(0))
    c.give(0, transpose_a ? gemm(c, b, transpose_b, dy, true, c.gradientType(0), alpha)
                          : gemm(c, dy, false, b, !transpose_b, c.gradientType(0), alpha));
  if (c.needs(1))
    c.give(1, transpose_b ? gemm(c, dy, true, a, transpose_a, c.gradientType(1), alpha)
                          : gemm(c, a, !transpose_a, dy, false, c.gradientType(1), alpha));
  if (c.needs(2)) c.give(2, c.scale(c.reducedFor(2, dy), c.node().floatAttribute("beta", 1)));
}

// Y = X W + B with W's columns in two axes. As with matmulByMatrix each product has views of its own.
void fusedProjectionGradient(GradientContext& c) {
  const Shape x = c.shape(c.input(0)), y = c.shape(c.output());
  const int64_t rows = elementCount(x) / x.back();
  const bool transposed = hasRowsOfParts(c.node());
  const std::string overload = projectionOverload(transposed, false);
  const std::map<std::string, Attribute> attributes = {{"transposed", int64_t{transposed}}};
  const auto dy = [&] { return c.reshape(c.outputGradient(), {rows, y[y.size() - 2], y.back()}); };
  if (c.needs(0)) {
    const ValueId product = c.function("FusedProjectionInputGrad", overload, {dy(), c.input(1)},
                                       c.gradientType(0), {rows, x.back()}, attributes);
    c.give(0, c.reshape(product, x));
  }
  if (c.needs(1)) {
    std::vector<ValueId> factors = {c.reshape(c.input(0), {rows, x.back()}), dy()};
    if (transposed) std::swap(factors[0], factors[1]);
    c.give(1, c.function("FusedProjectionWeightGrad", overload, factors, c.gradientType(1),
                         c.shape(c.input(1)), attributes));
  }
  if (c.needs(2)) c.giveReduced(2, c.outputGradient());
}

// The matrix of probabilities is computed again, from what each row has kept: its largest score and its sum
// of exponentials.
void attentionGradient(GradientContext& c) {
  if (c.outputGradient(1).valid() || c.outputGradient(2).valid())
    c.refuse("the loss depends on its output RowMax or RowSum");
  const AttentionForm form = attentionForm(c.node());
  const DataType type = c.type(c.input(0));
  const DataType kept = c.statisticsType(c.input(0));
  Shape rows = c.shape(c.input(0));
  rows.back() = 1;
  std::vector<ValueId> inputs = {c.outputGradient(), c.ensureOutput(1, "row_max", kept, rows),
                                 c.ensureOutput(2, "row_sum", kept, rows)};
  inputs.insert(inputs.end(), c.node().inputs.begin(), c.node().inputs.end());
  const auto wanted = [&](size_t position) {
    return c.needs(position) ? std::optional<Shape>(c.shape(c.input(position))) : std::nullopt;
  };
  const bool is_grouped = isGrouped(c.shape(c.input(0)), c.shape(c.input(1)));
  if (c.needs(0) || c.needs(1) || c.needs(2)) {
    const std::string& overload = c.node().overload;
    const std::vector<ValueId> gradients =
        c.functionOutputs("AttentionGrad", is_grouped ? groupedOverload(overload) : overload, inputs, type,
                          {wanted(0), wanted(1), wanted(2)}, c.node().attributes);
    for (size_t i = 0; i < 3; ++i) {
      if (c.needs(i)) c.give(i, gradients[i]);
    }
  }
  ValueId slopes;  // the same behind every bias
  for (const int bias : form.biases()) {
    if (!c.needs(bias)) continue;
    Shape scores = c.shape(c.input(0));
    scores.back() = *(c.shape(c.input(1)).rbegin() + 1);
    if (!slopes.valid())
      slopes =
          c.function("AttentionScoresGrad", c.node().overload, inputs, type, scores, c.node().attributes);
    c.giveReduced(bias, c.cast(slopes, c.type(c.input(bias))));
  }
}

// A gradient passes to Q, K, V and the bias.
uint32_t stoppedInputs(const Node& node) {
  const AttentionForm form = attentionForm(node);
  uint32_t stopped = uint32_t{1} << form.scale();
  if (form.mask >= 0) stopped |= uint32_t{3} << form.mask;
  if (form.keep >= 0) stopped |= uint32_t{3} << form.keep;
  return stopped;
}

}  // namespace

void addMatmulRules(GradientRules& rules) {
  rules[{"", "MatMul"}] = {matmulGradient};
  rules[{"", "Gemm"}] = {gemmGradient};
  rules[{std::string(kPipeshardDomain), "FusedProjection"}] = {fusedProjectionGradient};
  rules[{std::string(kPipeshardDomain), "Attention"}] = {attentionGradient, 0, stoppedInputs};
}

}  // namespace pipeshard
