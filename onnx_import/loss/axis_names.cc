#include "onnx_import/loss/axis_names.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {
namespace {

using Sizes = std::map<std::string, int64_t>;
using Dimensions = std::vector<std::string>;

// Shapes of some values, by a trial of sizes for the dimensions.
using Shapes = std::vector<std::optional<Shape>>;

Dimensions dimensionsOf(const Graph& graph) {
  Dimensions names;
  for (SymbolicDimension& dimension : symbolicDimensions(graph)) names.push_back(std::move(dimension.name));
  return names;
}

bool isOpen(const Value& value, size_t axis, const Dimensions& dimensions) {
  if ((*value.shape)[axis] >= 0) return false;
  if (axis >= value.symbols.size() || value.symbols[axis].empty()) return true;
  const std::vector<std::string> read = dimensionNames(value.symbols[axis]);
  return std::any_of(read.begin(), read.end(), [&](const std::string& name) {
    return std::find(dimensions.begin(), dimensions.end(), name) == dimensions.end();
  });
}

bool isUnknown(const Value& value, const Dimensions& dimensions) {
  if (value.data_type == DataType::kUndefined || !value.shape) return value.opaque_type.empty();
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    if (isOpen(value, axis, dimensions)) return true;
  }
  return false;
}

// What the sizes of axes are at several sizes of the dimensions tells what they are made of. Dimensions whose
// sizes cannot change alone are names of one size.
class Trials {
 public:
  Trials(const Graph& cone, std::vector<ValueId> values, Dimensions dimensions)
      : cone_(cone), values_(std::move(values)), dimensions_(std::move(dimensions)) {}

  // Whether the model takes sizes that are tried, and every dimension can be told from the others.
  bool run() {
    // Most models take a dozen. Images are larger, tables of positions may be shorter.
    for (const int64_t unit : {int64_t{4}, int64_t{64}, int64_t{1}}) {
      unit_ = unit;
      base_ = trial({}, 0);
      if (base_) break;
    }
    if (!base_) return false;
    Dimensions joint;
    for (const std::string& name : dimensions_) {
      if (!addKind({name})) joint.push_back(name);
    }
    return joint.empty() || (joint.size() > 1 && addKind(joint));
  }

  // "8", "batch", "5*batch", "batch + 1", "batch*tokens"; nothing if it is no such size.
  std::optional<std::string> axis(size_t value, size_t axis) const {
    if (!(*base_)[value] || axis >= (*base_)[value]->size()) return std::nullopt;
    const int64_t size = (*base_)[value]->at(axis);
    if (size < 0) return std::nullopt;
    std::vector<const Kind*> read;
    for (const Kind& kind : kinds_) {
      const int64_t less = sizeIn(kind.less, value, axis), least = sizeIn(kind.least, value, axis);
      if (less < 0 || least < 0) return std::nullopt;
      if (size - less != less - least) return std::nullopt;  // no multiple of it
      if (size != less) read.push_back(&kind);
    }
    return read.empty() ? std::to_string(size) : expression(read, size, value, axis);
  }

 private:
  struct Kind {
    std::string name;
    Shapes less, least;  // with 2 and 1 units in place of 3
  };

  static int64_t sizeIn(const Shapes& shapes, size_t value, size_t axis) {
    return shapes[value] && axis < shapes[value]->size() ? shapes[value]->at(axis) : kUnknownSize;
  }

  std::optional<Shapes> trial(const Dimensions& smaller, int64_t units_less) const {
    Sizes sizes;
    for (const std::string& name : dimensions_) sizes[name] = 3 * unit_;
    for (const std::string& name : smaller) sizes[name] -= units_less * unit_;
    Graph graph = cone_;
    try {
      bindDimensions(graph, sizes);
      inferShapes(graph);
    } catch (const Error&) {
      return std::nullopt;  // the model does not take them
    }
    Shapes shapes;
    for (const ValueId id : values_) shapes.push_back(graph.value(id).shape);
    return shapes;
  }

  bool addKind(const Dimensions& names) {
    std::optional<Shapes> less = trial(names, 1), least = trial(names, 2);
    if (!less || !least) return false;
    kinds_.push_back({names.front(), std::move(*less), std::move(*least)});
    return true;
  }

  std::optional<std::string> expression(const std::vector<const Kind*>& read, int64_t size, size_t value,
                                        size_t axis) const {
    const int64_t whole = 3 * unit_;
    if (read.size() == 1) {
      const int64_t change = size - sizeIn(read[0]->less, value, axis);
      if (change % unit_ != 0 || change < 0) return std::nullopt;
      const int64_t factor = change / unit_, rest = size - factor * whole;
      std::string text = factor == 1 ? read[0]->name : fmt::format("{}*{}", factor, read[0]->name);
      if (rest != 0) text += fmt::format(" {} {}", rest < 0 ? '-' : '+', rest < 0 ? -rest : rest);
      return text;
    }
    // A product changes by a third with each.
    std::vector<std::string> factors;
    int64_t factor = size;
    for (const Kind* kind : read) {
      if (3 * sizeIn(kind->less, value, axis) != 2 * size || factor % whole != 0) return std::nullopt;
      factor /= whole;
      factors.push_back(kind->name);
    }
    if (factor != 1) factors.insert(factors.begin(), std::to_string(factor));
    return fmt::format("{}", fmt::join(factors, "*"));
  }

  const Graph& cone_;
  std::vector<ValueId> values_;
  Dimensions dimensions_;
  int64_t unit_ = 1;
  std::optional<Shapes> base_;
  std::vector<Kind> kinds_;
};

void takeAxis(const std::string& found, size_t axis, const Dimensions& dimensions, Value& value) {
  Value with = value;
  with.symbols.resize(value.shape->size());
  const std::optional<int64_t> size = evaluateDimension(found, {});
  with.symbols[axis] = size ? "" : found;
  if (size) (*with.shape)[axis] = *size;
  // A name with other characters is none of an expression.
  if (!isOpen(with, axis, dimensions)) value = std::move(with);
}

}  // namespace

void nameAxes(Graph& graph, const std::vector<std::string>& names) {
  const Dimensions dimensions = dimensionsOf(graph);
  std::vector<ValueId> ids;
  for (const std::string& name : names) {
    const ValueId id = findValue(graph, name);
    if (id.valid() && isUnknown(graph.value(id), dimensions)) ids.push_back(id);
  }
  if (ids.empty()) return;
  // What is made of them does not matter, nor whether it is known to anybody.
  Graph cone = graph;
  cone.outputs.clear();
  const std::vector<ValueId> kept = removeDeadCode(cone, ids);
  std::vector<ValueId> in_cone;
  for (const ValueId id : ids) in_cone.push_back(kept[id.index()]);
  Trials trials(cone, in_cone, dimensions);
  Graph known = cone;
  inferShapes(known);
  const bool has_sizes = trials.run();
  for (size_t i = 0; i < ids.size(); ++i) {
    Value& value = graph.value(ids[i]);
    const Value& inferred = known.value(in_cone[i]);
    if (value.data_type == DataType::kUndefined) value.data_type = inferred.data_type;
    if (!value.shape) {
      value.shape = inferred.shape;
      value.symbols = inferred.symbols;
    }
    for (size_t axis = 0; has_sizes && value.shape && axis < value.shape->size(); ++axis) {
      if (!isOpen(value, axis, dimensions)) continue;
      if (const auto found = trials.axis(i, axis)) takeAxis(*found, axis, dimensions, value);
    }
  }
}

void findRanksOfOutputs(Graph& graph) {
  const auto hasNoRank = [&](ValueId output) { return !graph.value(output).shape; };
  if (std::none_of(graph.outputs.begin(), graph.outputs.end(), hasNoRank)) return;
  Graph known = graph;
  inferShapes(known);
  for (const ValueId output : graph.outputs) {
    if (hasNoRank(output)) graph.value(output).shape = known.value(output).shape;
  }
}

}  // namespace pipeshard
