#include "onnx_import/autodiff/gradient_parts.h"

#include <algorithm>
#include <map>

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

}  // namespace

ValueId joinGradientParts(GradientContext& c, const Shape& shape, const std::vector<GradientPart>& parts) {
  std::vector<ValueId> terms;
  std::map<size_t, std::vector<GradientPart>> by_axis;
  for (const GradientPart& part : parts) {
    if (part.axis)
      by_axis[*part.axis].push_back(part);
    else
      terms.push_back(part.gradient);
  }
  for (const auto& [axis, of_axis] : by_axis) {
    for (const Row& row : rowsOf(c, of_axis)) terms.push_back(joined(c, shape, axis, row));
  }
  return terms.size() == 1 ? terms.front() : c.op("Sum", terms, c.type(terms.front()), shape);
}

}  // namespace pipeshard
