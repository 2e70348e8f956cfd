#include "onnx_import/autodiff/gradient_parts.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pipeshard {
namespace {

// Parts of one axis that do not overlap, in its order.
struct Row {
  std::vector<GradientPart> parts;
  int64_t end = 0;
};

// As few rows as there are parts over one element at most: each part goes where the last one ends before it.
std::vector<Row> rowsOf(const GradientContext& c, std::vector<GradientPart> parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const GradientPart& a, const GradientPart& b) { return a.start < b.start; });
  std::vector<Row> rows;
  for (const GradientPart& part : parts) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.end <= part.start; });
    if (row == rows.end()) row = rows.insert(row, Row{});
    row->parts.push_back(part);
    row->end = part.start + c.shape(part.gradient)[*part.axis];
  }
  return rows;
}

ValueId padded(GradientContext& c, const Shape& shape, size_t axis, const GradientPart& part) {
  std::vector<int64_t> pads(2 * shape.size(), 0);
  pads[axis] = part.start;
  pads[shape.size() + axis] = shape[axis] - part.start - c.shape(part.gradient)[axis];
  return c.op("Pad", {part.gradient, c.integers(pads)}, c.type(part.gradient), shape);
}

// The parts of a row and zeros between them.
ValueId joined(GradientContext& c, const Shape& shape, size_t axis, const Row& row) {
  if (row.parts.size() == 1) return padded(c, shape, axis, row.parts.front());
  const DataType type = c.type(row.parts.front().gradient);
  std::vector<ValueId> pieces;
  int64_t end = 0;
  const auto fillTo = [&](int64_t start) {
    if (start == end) return;
    Shape gap = shape;
    gap[axis] = start - end;
    pieces.push_back(c.expand(c.scalar(type, 0), gap));
  };
  for (const GradientPart& part : row.parts) {
    fillTo(part.start);
    pieces.push_back(part.gradient);
    end = part.start + c.shape(part.gradient)[axis];
  }
  fillTo(shape[axis]);
  return c.op("Concat", pieces, type, shape, {{"axis", static_cast<int64_t>(axis)}});
}

// `value` is a^T b, with as many rows in both.
struct Product {
  ValueId value, a, b;
};

std::optional<Product> productOf(const BackwardBuilder& builder, ValueId value) {
  const NodeId maker = builder.producer(value);
  if (!maker.valid()) return std::nullopt;
  const Node& node = builder.graph().node(maker);
  const bool is_plain = node.is("Gemm") && node.inputs.size() == 2 && node.intAttribute("transA", 0) != 0 &&
                        node.intAttribute("transB", 0) == 0 && node.floatAttribute("alpha", 1) == 1;
  if (!is_plain) return std::nullopt;
  return Product{value, node.inputs[0], node.inputs[1]};
}

// [rows, n] of each as [rows * values, n]: the rows of one place are beside each other.
ValueId rowsOfAll(GradientContext& c, const std::vector<ValueId>& values) {
  const Shape one = c.shape(values.front());
  std::vector<ValueId> pieces;
  for (const ValueId value : values) pieces.push_back(c.reshape(value, {one[0], 1, one[1]}));
  const Shape all = {one[0], std::ssize(values), one[1]};
  const ValueId together = c.op("Concat", pieces, c.type(pieces.front()), all, {{"axis", int64_t{1}}});
  return c.reshape(together, {all[0] * all[1], all[2]});
}

// Of products that are to be added, those of equal forms become one, if copying their operands is far less
// than writing and adding their results: all operands are there until then, also where layers are recomputed
// one by one.
void joinProducts(GradientContext& c, BackwardBuilder& builder, std::vector<ValueId>& terms) {
  using Form = std::tuple<Shape, Shape, DataType, DataType>;
  std::map<Form, std::vector<Product>> by_form;
  for (const ValueId term : terms) {
    if (const auto product = productOf(builder, term))
      by_form[{c.shape(product->a), c.shape(product->b), c.type(product->a), c.type(product->b)}].push_back(
          *product);
  }
  for (const auto& [form, products] : by_form) {
    const int64_t count = std::ssize(products), rows = std::get<0>(form)[0];
    const int64_t m = std::get<0>(form)[1], n = std::get<1>(form)[1];
    constexpr int64_t kFarLess = 4;
    if (kFarLess * count * rows * (m + n) > (count - 1) * m * n) continue;
    std::vector<ValueId> left, right;
    for (const Product& product : products) {
      left.push_back(product.a);
      right.push_back(product.b);
      builder.replace(product.value);
      std::erase(terms, product.value);
    }
    terms.push_back(c.op("Gemm", {rowsOfAll(c, left), rowsOfAll(c, right)}, c.type(products.front().value),
                         {m, n}, {{"transA", int64_t{1}}}));
  }
}

}  // namespace

ValueId joinGradientParts(GradientContext& c, BackwardBuilder& builder, const Shape& shape,
                          const std::vector<GradientPart>& parts) {
  std::vector<ValueId> terms;
  std::map<size_t, std::vector<GradientPart>> by_axis;
  for (const GradientPart& part : parts) {
    if (part.axis)
      by_axis[*part.axis].push_back(part);
    else
      terms.push_back(part.gradient);
  }
  joinProducts(c, builder, terms);
  for (const auto& [axis, of_axis] : by_axis) {
    for (const Row& row : rowsOf(c, of_axis)) terms.push_back(joined(c, shape, axis, row));
  }
  return terms.size() == 1 ? terms.front() : c.op("Sum", terms, c.type(terms.front()), shape);
}

}  // namespace pipeshard
