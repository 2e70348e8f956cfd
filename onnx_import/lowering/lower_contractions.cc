// Sums of products: Einsum, and products of integers.
//
// An Einsum is taken two operands at a time, from the left. Of a pair, each label is
//   batch       in both, and needed later,
//   contracted  in both, and not needed later,
//   rows        in the first only,
//   columns     in the second only;
// labels that one operand alone has and nobody needs are summed before. The pair is then a MatMul
// [batch.., rows.., contracted] x [batch.., 1.., contracted, columns], in which batch and rows stay axes of
// their own: one of them may be the batch of examples, which is cut later. Only contracted labels and columns
// are merged into one axis each. The operand with the output's first label gives the rows, since that label
// is the batch of examples most often. Axes of size 1 come and go by Squeeze and Unsqueeze, which say which
// axis they mean, where a Reshape leaves that open in a batch of one example.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// Letters by their codes; the axes of an ellipsis from kEllipsisLabel on, counted from its last axis.
using EinsumLabels = std::vector<int>;
constexpr int kEllipsisLabel = 256;
constexpr std::string_view kEllipsis = "...";

struct EinsumOperand {
  ValueId value;
  EinsumLabels labels;  // of its axes
};

struct EinsumEquation {
  std::vector<EinsumOperand> operands;
  EinsumLabels output;
};

bool hasEinsumLabel(const EinsumLabels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// ---- the equation

[[noreturn]] void refuseEinsum(const LoweringContext& c, std::string_view reason) {
  c.refuse(fmt::format("equation '{}': {}", c.node().stringAttribute("equation", ""), reason));
}

bool isEinsumLetter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

// The labels of one term, of which the ellipsis stands for `ellipsis_axes` axes.
EinsumLabels einsumLabels(const LoweringContext& c, std::string_view term, int64_t ellipsis_axes) {
  EinsumLabels labels;
  bool has_ellipsis = false;
  for (size_t i = 0; i < term.size(); ++i) {
    if (isEinsumLetter(term[i])) {
      labels.push_back(term[i]);
      continue;
    }
    if (term.substr(i, kEllipsis.size()) != kEllipsis || has_ellipsis)
      refuseEinsum(c, fmt::format("term '{}' is not understood", term));
    has_ellipsis = true;
    i += kEllipsis.size() - 1;
    for (int64_t axis = ellipsis_axes; axis-- > 0;) labels.push_back(kEllipsisLabel + static_cast<int>(axis));
  }
  return labels;
}

std::vector<std::string> einsumTerms(std::string_view terms) {
  std::vector<std::string> result(1);
  for (char letter : terms) {
    if (letter == ',') {
      result.emplace_back();
    } else {
      result.back() += letter;
    }
  }
  return result;
}

// Without "->" the output has the ellipsis, and the letters that occur once, in alphabetical order.
EinsumLabels impliedEinsumOutput(const std::vector<EinsumOperand>& operands, int64_t ellipsis_axes) {
  EinsumLabels output;
  for (int64_t axis = ellipsis_axes; axis-- > 0;) output.push_back(kEllipsisLabel + static_cast<int>(axis));
  std::map<int, int> uses;
  for (const EinsumOperand& operand : operands) {
    for (int label : operand.labels) ++uses[label];
  }
  for (const auto& [label, count] : uses) {
    if (label < kEllipsisLabel && count == 1) output.push_back(label);
  }
  return output;
}

void checkEinsum(const LoweringContext& c, const EinsumEquation& equation) {
  std::map<int, int64_t> sizes;
  for (const EinsumOperand& operand : equation.operands) {
    const Shape shape = c.shape(operand.value);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      int64_t& size = sizes.try_emplace(operand.labels[axis], 1).first->second;
      if (size != 1 && shape[axis] != 1 && size != shape[axis])
        refuseEinsum(c, fmt::format("an axis has sizes {} and {}", size, shape[axis]));
      if (size == 1) size = shape[axis];
    }
  }
  for (int label : equation.output) {
    if (!sizes.contains(label)) refuseEinsum(c, "the output has a label that no operand has");
    if (std::count(equation.output.begin(), equation.output.end(), label) > 1)
      refuseEinsum(c, "the output has a label twice");
  }
  for (const auto& [label, size] : sizes) {
    if (label >= kEllipsisLabel && !hasEinsumLabel(equation.output, label))
      refuseEinsum(c, "the output lacks the ellipsis");
  }
}

EinsumEquation readEinsum(LoweringContext& c) {
  std::string text = c.node().stringAttribute("equation", "");
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  const std::vector<std::string> terms = einsumTerms(std::string_view(text).substr(0, arrow));
  if (terms.size() != c.node().inputs.size())
    refuseEinsum(c, fmt::format("it has {} terms for {} inputs", terms.size(), c.node().inputs.size()));
  EinsumEquation equation;
  int64_t widest = 0;  // axes that an ellipsis stands for
  for (size_t i = 0; i < terms.size(); ++i) {
    const int64_t covered = c.rank(c.input(i)) - std::ssize(einsumLabels(c, terms[i], 0));
    if (covered < 0 || (covered > 0 && terms[i].find(kEllipsis) == std::string::npos))
      refuseEinsum(c, fmt::format("term '{}' is for an input of rank {}", terms[i], c.rank(c.input(i))));
    widest = std::max(widest, covered);
    equation.operands.push_back({c.input(i), einsumLabels(c, terms[i], covered)});
  }
  equation.output = arrow == std::string::npos ? impliedEinsumOutput(equation.operands, widest)
                                               : einsumLabels(c, text.substr(arrow + 2), widest);
  checkEinsum(c, equation);
  return equation;
}

// ---- one operand

ValueId einsumUnsqueeze(LoweringContext& c, ValueId x, int64_t axis, int64_t count) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < count; ++i) axes.push_back(axis + i);
  return c.unsqueeze(x, axes);
}

// `count` axes from `axis` on as one; an axis of size 1 for none.
ValueId mergeEinsumAxes(LoweringContext& c, ValueId x, int64_t axis, int64_t count) {
  if (count == 0) return einsumUnsqueeze(c, x, axis, 1);
  Shape result = c.shape(x);
  for (int64_t i = 1; i < count; ++i) {
    result[axis] *= result[axis + 1];
    result.erase(result.begin() + axis + 1);
  }
  return c.reshape(x, result);
}

// The axes in the order of `labels`.
ValueId arrangedEinsum(LoweringContext& c, const EinsumOperand& x, const EinsumLabels& labels) {
  if (x.labels == labels) return x.value;
  std::vector<int64_t> permutation;
  for (int label : labels)
    permutation.push_back(std::find(x.labels.begin(), x.labels.end(), label) - x.labels.begin());
  return c.transpose(x.value, permutation);
}

// Two axes of size n with the same label: the elements (i, i), which are n + 1 apart in the two as one axis.
void takeEinsumDiagonal(LoweringContext& c, EinsumOperand& x, int64_t first, int64_t second) {
  const int64_t size = c.shape(x.value)[first];
  if (c.shape(x.value)[second] != size) refuseEinsum(c, "a label has two sizes in one term");
  std::vector<int64_t> permutation;
  for (int64_t axis = 0; axis < std::ssize(x.labels); ++axis) {
    if (axis != second) permutation.push_back(axis);
    if (axis == first) permutation.push_back(second);
  }
  if (second != first + 1) x.value = c.transpose(x.value, permutation);
  x.labels.erase(x.labels.begin() + second);
  x.value = mergeEinsumAxes(c, x.value, first, 2);
  if (size == 1) return;
  Shape result = c.shape(x.value);
  result[first] = size;
  x.value =
      c.op("Slice",
           {x.value, c.integers({0}), c.integers({size * size}), c.integers({first}), c.integers({size + 1})},
           c.type(x.value), std::move(result));
}

void takeEinsumDiagonals(LoweringContext& c, EinsumOperand& x) {
  for (size_t first = 0; first < x.labels.size(); ++first) {
    size_t second = first + 1;
    while (second < x.labels.size()) {
      if (x.labels[second] == x.labels[first]) {
        takeEinsumDiagonal(c, x, static_cast<int64_t>(first), static_cast<int64_t>(second));
      } else {
        ++second;
      }
    }
  }
}

// Sums over labels that are in neither list.
void sumEinsumLabels(LoweringContext& c, EinsumOperand& x, const std::set<int>& needed,
                     const EinsumLabels& other) {
  std::vector<int64_t> axes;
  EinsumLabels kept;
  for (size_t axis = 0; axis < x.labels.size(); ++axis) {
    if (needed.contains(x.labels[axis]) || hasEinsumLabel(other, x.labels[axis])) {
      kept.push_back(x.labels[axis]);
    } else {
      axes.push_back(static_cast<int64_t>(axis));
    }
  }
  x.value = c.reduce("ReduceSum", x.value, axes, false);
  x.labels = kept;
}

// ---- pairs

struct EinsumSplit {
  EinsumLabels batch, contracted, rows, columns;
};

// A label to be contracted that one operand has with size 1 and the other with size n is summed in the other.
void dropBroadcastLabels(LoweringContext& c, EinsumOperand& x, const EinsumOperand& other,
                         const std::set<int>& needed) {
  for (int64_t axis = 0; axis < std::ssize(x.labels);) {
    const auto found = std::find(other.labels.begin(), other.labels.end(), x.labels[axis]);
    const bool contracted = found != other.labels.end() && !needed.contains(x.labels[axis]);
    if (contracted && c.shape(x.value)[axis] == 1 &&
        c.shape(other.value)[found - other.labels.begin()] != 1) {
      x.value = c.squeeze(x.value, axis);
      x.labels.erase(x.labels.begin() + axis);
    } else {
      ++axis;
    }
  }
}

// Where a label is in the output; behind it, if it is not.
int64_t einsumPlace(const EinsumLabels& output, int label) {
  return std::find(output.begin(), output.end(), label) - output.begin();
}

EinsumSplit splitEinsum(const EinsumOperand& a, const EinsumOperand& b, const std::set<int>& needed,
                        const EinsumLabels& output) {
  EinsumSplit split;
  for (int label : a.labels) {
    if (!hasEinsumLabel(b.labels, label)) {
      split.rows.push_back(label);
    } else if (needed.contains(label)) {
      split.batch.push_back(label);
    } else {
      split.contracted.push_back(label);
    }
  }
  for (int label : b.labels) {
    if (!hasEinsumLabel(a.labels, label)) split.columns.push_back(label);
  }
  for (EinsumLabels* labels : {&split.batch, &split.rows, &split.columns}) {
    std::stable_sort(labels->begin(), labels->end(), [&](int left, int right) {
      return einsumPlace(output, left) < einsumPlace(output, right);
    });
  }
  return split;
}

EinsumLabels joinedEinsumLabels(EinsumLabels labels, const EinsumLabels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

// Element by element: [shared.., rows.., 1..] * [shared.., 1.., columns..], and the sum over contracted ones.
EinsumOperand einsumByElements(LoweringContext& c, const EinsumOperand& a, const EinsumOperand& b,
                               const EinsumSplit& split, const std::set<int>& needed) {
  const EinsumLabels shared = joinedEinsumLabels(split.batch, split.contracted);
  EinsumOperand result;
  result.labels = joinedEinsumLabels(shared, split.rows);
  ValueId left = arrangedEinsum(c, a, result.labels);
  left = einsumUnsqueeze(c, left, c.rank(left), std::ssize(split.columns));
  ValueId right = arrangedEinsum(c, b, joinedEinsumLabels(shared, split.columns));
  right = einsumUnsqueeze(c, right, std::ssize(shared), std::ssize(split.rows));
  result.labels = joinedEinsumLabels(result.labels, split.columns);
  result.value = c.binary("Mul", left, right);
  sumEinsumLabels(c, result, needed, {});
  return result;
}

EinsumOperand einsumByMatrices(LoweringContext& c, const EinsumOperand& a, const EinsumOperand& b,
                               const EinsumSplit& split) {
  const int64_t batch = std::ssize(split.batch);
  const int64_t rows = std::ssize(split.rows);
  const int64_t contracted = std::ssize(split.contracted);
  EinsumOperand result;
  result.labels = joinedEinsumLabels(split.batch, split.rows);
  ValueId left = arrangedEinsum(c, a, joinedEinsumLabels(result.labels, split.contracted));
  left = mergeEinsumAxes(c, left, batch + rows, contracted);
  if (rows == 0) left = einsumUnsqueeze(c, left, batch, 1);
  const EinsumLabels order = joinedEinsumLabels(split.batch, split.contracted);
  ValueId right = arrangedEinsum(c, b, joinedEinsumLabels(order, split.columns));
  Shape columns = c.shape(right);
  columns.erase(columns.begin(), columns.begin() + batch + contracted);
  right = mergeEinsumAxes(c, right, batch + contracted, std::ssize(split.columns));
  right = mergeEinsumAxes(c, right, batch, contracted);
  // A matrix goes with rows of any rank as it is.
  if (batch > 0) right = einsumUnsqueeze(c, right, batch, rows - 1);
  result.value = c.matMul(left, right);
  if (rows == 0) result.value = c.squeeze(result.value, batch);
  const int64_t last = c.rank(result.value) - 1;
  if (columns.empty()) {
    result.value = c.squeeze(result.value, last);
  } else {
    Shape whole = c.shape(result.value);
    whole.pop_back();
    whole.insert(whole.end(), columns.begin(), columns.end());
    result.value = c.reshape(result.value, whole);
  }
  result.labels = joinedEinsumLabels(result.labels, split.columns);
  return result;
}

// `needed`: labels of the output and of later operands.
EinsumOperand multiplyEinsum(LoweringContext& c, EinsumOperand a, EinsumOperand b,
                             const std::set<int>& needed, const EinsumLabels& output) {
  dropBroadcastLabels(c, a, b, needed);
  dropBroadcastLabels(c, b, a, needed);
  sumEinsumLabels(c, a, needed, b.labels);
  sumEinsumLabels(c, b, needed, a.labels);
  EinsumSplit split = splitEinsum(a, b, needed, output);
  const auto first = [&](const EinsumLabels& labels) {
    return labels.empty() ? std::ssize(output) : einsumPlace(output, labels.front());
  };
  if (first(split.columns) < first(split.rows)) {
    std::swap(a, b);
    std::swap(split.rows, split.columns);
  }
  const bool by_elements = split.contracted.empty() || (split.rows.empty() && split.columns.empty());
  return by_elements ? einsumByElements(c, a, b, split, needed) : einsumByMatrices(c, a, b, split);
}

void lowerEinsum(LoweringContext& c) {
  const DataType type = c.outputType();
  if (!isFloatingPoint(type) && type != DataType::kInt32 && type != DataType::kInt64)
    c.refuse(fmt::format("it is of type {}", dataTypeName(type)));
  EinsumEquation equation = readEinsum(c);
  for (EinsumOperand& operand : equation.operands) takeEinsumDiagonals(c, operand);
  EinsumOperand result = equation.operands.at(0);
  for (size_t i = 1; i < equation.operands.size(); ++i) {
    std::set<int> needed(equation.output.begin(), equation.output.end());
    for (size_t later = i + 1; later < equation.operands.size(); ++later)
      needed.insert(equation.operands[later].labels.begin(), equation.operands[later].labels.end());
    result = multiplyEinsum(c, result, equation.operands[i], needed, equation.output);
  }
  sumEinsumLabels(c, result, {}, equation.output);
  c.give(0, arrangedEinsum(c, result, equation.output));
}

// ---- integers

// Input `position` less its zero point, input `zero_point`, if there is one, as int32. `axis`: of the input,
// the one that a zero point of one axis is along.
ValueId integersFromZero(LoweringContext& c, size_t position, size_t zero_point, int64_t axis) {
  const ValueId x = c.cast(c.input(position), DataType::kInt32);
  if (!c.hasInput(zero_point)) return x;
  ValueId zero = c.cast(c.input(zero_point), DataType::kInt32);
  Shape shape = c.shape(zero);
  if (elementCount(shape) == 1) {
    shape.clear();
  } else if (shape.size() == 1) {
    shape.assign(c.rank(x), 1);
    if (axis < 0 || axis >= c.rank(x) || c.shape(x)[axis] != elementCount(c.shape(zero)))
      c.refuse(fmt::format("a zero point has shape {} for an input of shape {}", shapeToString(c.shape(zero)),
                           shapeToString(c.shape(x))));
    shape[axis] = c.shape(x)[axis];
  }
  if (broadcastShapes(shape, c.shape(x)) != c.shape(x))
    c.refuse(fmt::format("a zero point has shape {} for an input of shape {}", shapeToString(shape),
                         shapeToString(c.shape(x))));
  return c.binary("Sub", x, c.reshape(zero, shape));
}

// Zero points per row of the first operand and per column of the second.
void lowerMatMulInteger(LoweringContext& c) {
  const int64_t last_column = c.rank(c.input(1)) - 1;
  const bool column_vector = last_column == 0;  // its one axis is summed over
  const ValueId a = integersFromZero(c, 0, 2, c.rank(c.input(0)) - 2);
  const ValueId b = integersFromZero(c, 1, 3, column_vector ? -1 : last_column);
  c.give(0, c.op("MatMul", {a, b}, DataType::kInt32, c.outputShape()));
}

// In float64, where sums of up to 2^37 products of bytes are exact.
void lowerConvInteger(LoweringContext& c) {
  const ValueId x = c.cast(integersFromZero(c, 0, 2, -1), DataType::kFloat64);
  const ValueId w = c.cast(integersFromZero(c, 1, 3, 0), DataType::kFloat64);
  OpEmitter::Attributes attributes;
  for (const char* name : {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}) {
    const auto found = c.node().attributes.find(name);
    if (found != c.node().attributes.end()) attributes.insert(*found);
  }
  const ValueId sums = c.op("Conv", {x, w}, DataType::kFloat64, c.outputShape(), std::move(attributes));
  c.give(0, c.cast(sums, DataType::kInt32));
}

}  // namespace

void addContractionLowerings(LoweringRules& rules) {
  rules[{"", "ConvInteger"}] = lowerConvInteger;
  rules[{"", "Einsum"}] = lowerEinsum;
  rules[{"", "MatMulInteger"}] = lowerMatMulInteger;
}

}  // namespace pipeshard
