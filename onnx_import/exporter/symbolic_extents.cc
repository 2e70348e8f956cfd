#include "onnx_import/exporter/symbolic_extents.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>

#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

// "5*batch"; any other arithmetic is one symbol.
Extent symbolicExtent(const std::string& symbol) {
  Extent product;
  for (size_t begin = 0; begin <= symbol.size();) {
    const size_t end = std::min(symbol.find('*', begin), symbol.size());
    const std::string part = symbol.substr(begin, end - begin);
    const std::optional<int64_t> number = wholeNumber(part);
    const bool name = std::all_of(part.begin(), part.end(),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (part.empty() || !name || (number && (product.factor != 1 || *number <= 0))) return {1, {symbol}};
    if (number) {
      product.factor = *number;
    } else {
      product.symbols.insert(part);
    }
    begin = end + 1;
  }
  return product;
}

MaybeExtent numberOf(const Constant& constant) {
  constexpr double kMost = 1e15;
  const DataType type = constant.data_type;
  const bool known = type == DataType::kInt64 || type == DataType::kInt32 || type == DataType::kFloat32 ||
                     type == DataType::kFloat64;
  if (!known || elementCount(constant.shape) != 1) return std::nullopt;
  const double number = numericElements(constant)[0];
  if (!(number >= 0 && number <= kMost) || number != std::floor(number)) return std::nullopt;
  return Extent{static_cast<int64_t>(number), {}};
}

}  // namespace

MaybeExtent times(const MaybeExtent& a, const MaybeExtent& b) {
  Extent product;
  if (!a || !b || __builtin_mul_overflow(a->factor, b->factor, &product.factor)) return std::nullopt;
  product.symbols = a->symbols;
  product.symbols.insert(b->symbols.begin(), b->symbols.end());
  return product;
}

// Nothing if it does not go without a rest whatever the symbols stand for.
MaybeExtent dividedBy(const Extent& whole, const Extent& part) {
  if (part.factor <= 0 || whole.factor % part.factor != 0 ||
      !std::includes(whole.symbols.begin(), whole.symbols.end(), part.symbols.begin(), part.symbols.end()))
    return std::nullopt;
  Extent quotient{whole.factor / part.factor, {}};
  std::set_difference(whole.symbols.begin(), whole.symbols.end(), part.symbols.begin(), part.symbols.end(),
                      std::inserter(quotient.symbols, quotient.symbols.end()));
  return quotient;
}

std::optional<int64_t> wholeNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

bool hasOperands(const Node& node, size_t count) {
  return node.inputs.size() >= count &&
         std::all_of(node.inputs.begin(), node.inputs.begin() + count, [](ValueId id) { return id.valid(); });
}

SymbolicExtents::SymbolicExtents(const Graph& graph)
    : graph_(graph), producer_(computeUseDef(graph).producer) {}

const Node* SymbolicExtents::producerOf(ValueId value) const {
  const bool made = value.valid() && value.index() < producer_.size() && producer_[value.index()].valid();
  return made ? &graph_.node(producer_[value.index()]) : nullptr;
}

std::vector<Extent> SymbolicExtents::axesOf(ValueId id) const {
  if (!id.valid()) return {};
  const Value& value = graph_.value(id);
  std::vector<Extent> axes;
  for (size_t axis = 0; value.shape && axis < value.shape->size(); ++axis) {
    const bool symbolic = axis < value.symbols.size() && !value.symbols[axis].empty();
    if (value.shape->at(axis) < 0 && !symbolic) return {};
    axes.push_back(value.shape->at(axis) >= 0 ? Extent{value.shape->at(axis), {}}
                                              : symbolicExtent(value.symbols[axis]));
  }
  return axes;
}

MaybeExtent SymbolicExtents::elementsOf(ValueId id) const {
  const std::vector<Extent> axes = axesOf(id);
  MaybeExtent elements;
  for (size_t axis = 0; axis < axes.size(); ++axis)
    elements = axis == 0 ? MaybeExtent(axes[0]) : times(elements, axes[axis]);
  return elements;
}

MaybeExtent SymbolicExtents::numberIn(ValueId id, int depth) const {
  if (const Constant* constant = id.valid() ? graph_.constant(id) : nullptr) return numberOf(*constant);
  const Node* node = producerOf(id);
  if (node == nullptr || depth == kLongestChain) return std::nullopt;
  if (node->is("Constant")) {
    const std::optional<std::vector<Constant>> content = evaluateNode(*node, {});
    return content ? numberOf(content->front()) : std::nullopt;
  }
  if (!hasOperands(*node, node->is("Where") ? 3 : node->is("Mul") ? 2 : 1)) return std::nullopt;
  const ValueId input = node->inputs[0];
  if (node->is("Mul")) return times(numberIn(input, depth + 1), numberIn(node->inputs[1], depth + 1));
  if (node->is("Size")) return elementsOf(input);
  if (node->is("Shape")) return oneAxis(*node);
  if (node->is("Where")) {
    const MaybeExtent one = numberIn(node->inputs[1], depth + 1);
    return one == numberIn(node->inputs[2], depth + 1) ? one : std::nullopt;
  }
  const bool same = node->is("Cast") || node->is("Identity") || node->is("Squeeze") ||
                    node->is("Unsqueeze") || node->is("Reshape") || node->is("Floor") || node->is("Ceil") ||
                    (node->is("Concat") && node->inputs.size() == 1);
  return same ? numberIn(input, depth + 1) : std::nullopt;
}

MaybeExtent SymbolicExtents::oneAxis(const Node& shape) const {
  const std::vector<Extent> axes = axesOf(shape.inputs[0]);
  const int64_t rank = std::ssize(axes);
  int64_t first = shape.intAttribute("start", 0), last = shape.intAttribute("end", rank);
  if (first < 0) first += rank;
  if (last < 0) last += rank;
  return first >= 0 && last == first + 1 && last <= rank ? MaybeExtent(axes[first]) : std::nullopt;
}

}  // namespace pipeshard
