#include "onnx_import/loss/axis_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {
namespace {

constexpr std::string_view kOneMore = " + 1";

using Sizes = std::map<std::string, int64_t>;
using Dimensions = std::vector<std::string>;

// Some values, at certain sizes of the dimensions.
using Sample = std::vector<Value>;

int64_t sizeIn(const Sample& sample, size_t value, size_t axis) {
  const std::optional<Shape>& shape = sample[value].shape;
  return shape && axis < shape->size() ? (*shape)[axis] : kUnknownSize;
}

// Nothing if the model does not take these sizes.
std::optional<Sample> sampleAt(const Graph& graph, const std::vector<ValueId>& values, const Sizes& sizes) {
  Graph bound = graph;
  try {
    bindDimensions(bound, sizes);
    inferShapes(bound);
  } catch (const Error&) {
    return std::nullopt;
  }
  Sample sample;
  for (const ValueId id : values) sample.push_back(bound.value(id));
  return sample;
}

Dimensions dimensionsOf(const Graph& graph) {
  Dimensions names;
  for (SymbolicDimension& dimension : symbolicDimensions(graph)) names.push_back(std::move(dimension.name));
  return names;
}

// `asked`: sizes for names of other axes than those of inputs.
bool isOpen(const Value& value, size_t axis, const Dimensions& dimensions, const Sizes& asked) {
  if ((*value.shape)[axis] >= 0) return false;
  if (axis >= value.symbols.size() || value.symbols[axis].empty()) return true;
  if (asked.contains(value.symbols[axis])) return false;
  const std::vector<std::string> read = dimensionNames(value.symbols[axis]);
  return std::any_of(read.begin(), read.end(), [&](const std::string& name) {
    return std::find(dimensions.begin(), dimensions.end(), name) == dimensions.end();
  });
}

bool isUnknown(const Value& value, const Dimensions& dimensions, const Sizes& asked) {
  if (value.data_type == DataType::kUndefined || !value.shape) return value.opaque_type.empty();
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    if (isOpen(value, axis, dimensions, asked)) return true;
  }
  return false;
}

// Whether the value may be another than the file says: outputs are declared by the exporter's configuration.
bool isDeclared(const Graph& graph, ValueId id) {
  return graph.value(id).shape &&
         std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end();
}

// What the sizes of axes are at several sizes of the dimensions tells what they are made of. Dimensions whose
// sizes cannot change alone are names of one size. Those that are `fixed` have this one alone.
class Trials {
 public:
  Trials(const Graph& cone, std::vector<ValueId> values, Dimensions dimensions, Sizes fixed)
      : cone_(cone),
        values_(std::move(values)),
        dimensions_(std::move(dimensions)),
        fixed_(std::move(fixed)) {
    fixed_.merge(dimensionsByWeights(cone));
  }

  // Whether the model takes sizes that are tried.
  bool start() { return takeNextUnit(); }

  // Once started.
  const Sample& sample() const { return *base_; }

  // Once started: whether an axis has another size than its name says.
  bool isMisnamed(size_t value, size_t axis, const std::string& name) const {
    const std::optional<int64_t> said = evaluateDimension(name, sizes({}, 0));
    return said && *said != sizeIn(*base_, value, axis) && sizeIn(*base_, value, axis) >= 0;
  }

  // Once started: whether every dimension can be told from the others.
  bool run() {
    do {
      if (addKinds()) return true;
    } while (takeNextUnit());  // a third of a size may be too small for a model that takes the whole
    return false;
  }

  // "8", "batch", "5*batch", "batch/4", "batch + 1", "batch*tokens"; nothing if it is no such size.
  std::optional<std::string> axis(size_t value, size_t axis) const {
    const int64_t size = sizeIn(*base_, value, axis);
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
    Sample less, least;  // with 2 and 1 units in place of 3
  };

  Sizes sizes(const Dimensions& smaller, int64_t units_less) const {
    Sizes result;
    for (const std::string& name : dimensions_) result[name] = 3 * unit_;
    for (const std::string& name : smaller) result[name] -= units_less * unit_;
    for (const auto& [name, size] : fixed_) result[name] = size;
    return result;
  }

  std::optional<Sample> trial(const Dimensions& smaller, int64_t units_less) const {
    return sampleAt(cone_, values_, sizes(smaller, units_less));
  }

  // Whether the model takes sizes of a further unit; the sample is of the last that it takes.
  bool takeNextUnit() {
    const int64_t before = unit_;
    for (; !units_.empty(); units_.pop_back()) {
      unit_ = units_.back();
      std::optional<Sample> taken = trial({}, 0);
      if (!taken) continue;
      base_ = std::move(taken);
      units_.pop_back();
      return true;
    }
    unit_ = before;
    return false;
  }

  bool addKinds() {
    kinds_.clear();
    Dimensions joint;
    for (const std::string& name : dimensions_) {
      if (!fixed_.contains(name) && !addKind({name})) joint.push_back(name);
    }
    return joint.empty() || (joint.size() > 1 && addKind(joint));
  }

  bool addKind(const Dimensions& names) {
    std::optional<Sample> less = trial(names, 1), least = trial(names, 2);
    if (!less || !least) return false;
    kinds_.push_back({names.front(), std::move(*less), std::move(*least)});
    return true;
  }

  std::optional<std::string> expression(const std::vector<const Kind*>& read, int64_t size, size_t value,
                                        size_t axis) const {
    const int64_t whole = 3 * unit_;
    if (read.size() == 1) {
      const int64_t change = size - sizeIn(read[0]->less, value, axis);
      if (change <= 0) return std::nullopt;
      if (change < unit_ && unit_ % change == 0 && size == 3 * change)
        return fmt::format("{}/{}", read[0]->name, unit_ / change);
      if (change % unit_ != 0) return std::nullopt;
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
  Sizes fixed_;
  // Taken from the end. Most models take a dozen. Images are larger, tables of positions may be shorter.
  std::vector<int64_t> units_ = {1, 64, 4};
  int64_t unit_ = 1;
  std::optional<Sample> base_;
  std::vector<Kind> kinds_;
};

// Of what is asked for, sizes of dimensions that the graph has.
Sizes sizesOf(const Graph& graph, const AskedSizes& asked) {
  Sizes sizes;
  for (const SymbolicDimension& dimension : symbolicDimensions(graph, asked.sizes)) {
    const auto size = asked.sizes.find(dimension.name);
    if (size != asked.sizes.end()) sizes.insert(*size);
  }
  return sizes;
}

// What axes are by trials of all dimensions, as far as that is true at the sizes asked for, and else by these
// and trials of the dimensions that take others.
class AxisSearch {
 public:
  AxisSearch(const Graph& cone, const std::vector<ValueId>& values, const AskedSizes& asked)
      : asked_(asked), all_(cone, values, dimensionsOf(cone), {}) {
    const Sizes sizes = sizesOf(cone, asked);
    if (!sizes.empty()) there_ = sampleAt(cone, values, sizes);
    if (!there_) return;
    Sizes fixed = sizes;
    fixed.erase(asked.length);
    for (const std::string& name : asked.batch) fixed.erase(name);
    Dimensions names;
    for (const auto& entry : sizes) names.push_back(entry.first);
    some_.emplace(cone, values, std::move(names), std::move(fixed));
  }

  // Whether the model takes any sizes that are tried.
  bool start() {
    has_all_ = all_.start();
    return has_all_ || there_.has_value();
  }

  // Once started, at sizes that are asked for, or others.
  const Sample& sample() const { return there_ ? *there_ : all_.sample(); }
  bool isMisnamed(size_t value, size_t axis, const std::string& name) const {
    if (has_all_ && all_.isMisnamed(value, axis, name)) return true;
    const std::optional<int64_t> said =
        there_ ? evaluateDimension(name, asked_.sizes) : std::optional<int64_t>();
    return said && sizeIn(*there_, value, axis) >= 0 && *said != sizeIn(*there_, value, axis);
  }

  // Once started: what axis() needs.
  void run() {
    knows_all_ = has_all_ && all_.run();
    knows_some_ = some_ && some_->start() && some_->run();
  }

  // As Trials::axis.
  std::optional<std::string> axis(size_t value, size_t axis) const {
    if (!there_) return knows_all_ ? all_.axis(value, axis) : std::nullopt;
    const int64_t size = sizeIn(*there_, value, axis);
    if (size < 0) return std::nullopt;
    const auto isTrue = [&](const std::optional<std::string>& found) {
      return found && evaluateDimension(*found, asked_.sizes) == size;
    };
    if (const auto found = knows_all_ ? all_.axis(value, axis) : std::nullopt; isTrue(found)) return found;
    if (const auto found = knows_some_ ? some_->axis(value, axis) : std::nullopt; isTrue(found)) return found;
    if (!hasOneRow()) return std::nullopt;
    return axis == 0 && size == 1 ? *asked_.batch.begin() : std::to_string(size);
  }

 private:
  // Then there are no other sizes: a row is never cut.
  bool hasOneRow() const {
    const auto isOne = [&](const std::string& name) {
      const auto size = asked_.sizes.find(name);
      return size != asked_.sizes.end() && size->second == 1;
    };
    return asked_.length.empty() && !asked_.batch.empty() &&
           std::all_of(asked_.batch.begin(), asked_.batch.end(), isOne);
  }

  const AskedSizes& asked_;
  Trials all_;
  std::optional<Sample> there_;  // at the sizes asked for
  std::optional<Trials> some_;
  bool has_all_ = false, knows_all_ = false, knows_some_ = false;
};

void takeAxis(const std::string& found, size_t axis, const Dimensions& dimensions, Value& value) {
  Value with = value;
  with.symbols.resize(value.shape->size());
  const std::optional<int64_t> size = evaluateDimension(found, {});
  with.symbols[axis] = size ? "" : found;
  if (size) (*with.shape)[axis] = *size;
  // A name with other characters is none of an expression.
  if (!isOpen(with, axis, dimensions, {})) value = std::move(with);
}

// What the values are made of; `in_cone`: their ids there. What is made of them does not matter, nor whether
// it is known to anybody.
Graph coneOf(const Graph& graph, const std::vector<ValueId>& values, std::vector<ValueId>& in_cone) {
  Graph cone = graph;
  cone.outputs.clear();
  const std::vector<ValueId> kept = removeDeadCode(cone, values);
  for (const ValueId id : values) in_cone.push_back(kept[id.index()]);
  for (const ValueId id : graph.outputs) {
    if (kept[id.index()].valid()) cone.outputs.push_back(kept[id.index()]);
  }
  return cone;
}

// Axes of values that the trials have given another size than their names say.
using Misnamed = std::vector<std::set<size_t>>;

Misnamed misnamedAxes(const Graph& graph, const std::vector<ValueId>& values, const AxisSearch& search) {
  Misnamed result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& value = graph.value(values[i]);
    if (!isDeclared(graph, values[i])) continue;
    for (size_t axis = 1; axis < std::min(value.shape->size(), value.symbols.size()); ++axis) {
      if ((*value.shape)[axis] < 0 && search.isMisnamed(i, axis, value.symbols[axis])) result[i].insert(axis);
    }
  }
  return result;
}

bool hasOtherRank(const Value& value, const Value& sample) {
  return value.shape && sample.shape && sample.shape->size() != value.shape->size();
}

// Type and rank where they are not known, or the file says another one. `inferred`: without any sizes.
void takeRank(const Value& inferred, const Value* sample, Value& value) {
  if (value.data_type == DataType::kUndefined) value.data_type = inferred.data_type;
  if (value.data_type == DataType::kUndefined && sample != nullptr) value.data_type = sample->data_type;
  const bool is_other = sample != nullptr && hasOtherRank(value, *sample);
  if (value.shape && !is_other) return;
  value.shape = inferred.shape;
  value.symbols = inferred.symbols;
  if (sample == nullptr || !sample->shape || (value.shape && !hasOtherRank(value, *sample))) return;
  value.shape = Shape(sample->shape->size(), kUnknownSize);
  value.symbols.clear();
}

std::string axesToString(const Value& value) {
  std::vector<std::string> axes;
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    const int64_t size = (*value.shape)[axis];
    const bool is_named = axis < value.symbols.size() && !value.symbols[axis].empty();
    axes.push_back(size >= 0 ? std::to_string(size) : is_named ? value.symbols[axis] : "?");
  }
  return fmt::format("[{}]", fmt::join(axes, ","));
}

// Whether the operators take what the names say, and outputs with an axis of this name have it.
bool agreesWithOperators(const Graph& graph, const std::string& name) {
  for (const int64_t unit : {int64_t{4}, int64_t{64}, int64_t{1}}) {
    Sizes sizes;
    int64_t units = 2;  // every dimension has another size
    for (const std::string& dimension : dimensionsOf(graph)) sizes[dimension] = unit * units++;
    for (const auto& [dimension, size] : dimensionsByWeights(graph)) sizes[dimension] = size;
    Graph bound = graph;
    try {
      bindDimensions(bound, sizes);
      inferShapes(bound);
    } catch (const Error&) {
      continue;  // the model does not take them
    }
    const int64_t said = evaluateDimension(name, sizes).value_or(kUnknownSize);
    for (const ValueId output : graph.outputs) {
      const std::vector<std::string>& symbols = graph.value(output).symbols;
      const std::optional<Shape>& shape = bound.value(output).shape;
      for (size_t axis = 0; shape && axis < std::min(symbols.size(), shape->size()); ++axis) {
        if (symbols[axis] == name && (*shape)[axis] != said) return false;
      }
    }
    return true;
  }
  return false;
}

void renameAxes(const std::string& name, const std::string& other, Graph& graph) {
  for (Value& value : graph.values) std::replace(value.symbols.begin(), value.symbols.end(), name, other);
}

// Names of axes of inputs that speak of one element more than another dimension has.
std::set<std::string> namesWithOneMore(const Graph& graph) {
  std::set<std::string> names;
  for (const ValueId input : graph.inputs) {
    if (graph.initializers.contains(input)) continue;
    for (const std::string& symbol : graph.value(input).symbols) {
      if (symbol.ends_with(kOneMore)) names.insert(symbol);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> nameAxes(Graph& graph, const std::vector<std::string>& names,
                                  const AskedSizes& asked) {
  const Dimensions dimensions = dimensionsOf(graph);
  std::vector<ValueId> ids;
  bool any_unknown = false;
  for (const std::string& name : names) {
    const ValueId id = findValue(graph, name);
    if (!id.valid()) continue;
    const bool is_unknown = isUnknown(graph.value(id), dimensions, asked.sizes);
    if (is_unknown || isDeclared(graph, id)) ids.push_back(id);
    any_unknown = any_unknown || is_unknown;
  }
  if (ids.empty()) return {};
  std::vector<ValueId> in_cone;
  const Graph cone = coneOf(graph, ids, in_cone);
  AxisSearch search(cone, in_cone, asked);
  Graph known = cone;
  if (any_unknown) inferShapes(known);
  const bool has_sizes = search.start();
  const Misnamed misnamed = has_sizes ? misnamedAxes(graph, ids, search) : Misnamed(ids.size());
  const auto differs = [&](size_t i) {
    return !misnamed[i].empty() || (has_sizes && hasOtherRank(graph.value(ids[i]), search.sample()[i]));
  };
  bool any_differs = false;
  for (size_t i = 0; i < ids.size(); ++i) any_differs = any_differs || differs(i);
  if (has_sizes && (any_unknown || any_differs)) search.run();
  std::vector<std::string> lines;
  for (size_t i = 0; i < ids.size(); ++i) {
    Value& value = graph.value(ids[i]);
    const std::string said = differs(i) ? axesToString(value) : "";
    takeRank(known.value(in_cone[i]), has_sizes ? &search.sample()[i] : nullptr, value);
    for (size_t axis = 0; has_sizes && value.shape && axis < value.shape->size(); ++axis) {
      if (!isOpen(value, axis, dimensions, asked.sizes) && !misnamed[i].contains(axis)) continue;
      if (const auto found = search.axis(i, axis)) takeAxis(*found, axis, dimensions, value);
    }
    if (said.empty() || said == axesToString(value)) continue;
    lines.push_back(
        fmt::format("output '{}' is {} in the file, but follows from its operators as {}: that "
                    "counts",
                    value.name, said, axesToString(value)));
  }
  return lines;
}

std::vector<std::string> correctDimensionNames(Graph& graph, const std::map<std::string, int64_t>& given) {
  std::vector<std::string> lines;
  for (const std::string& name : namesWithOneMore(graph)) {
    if (given.contains(name) || agreesWithOperators(graph, name)) continue;
    const std::string one = name.substr(0, name.size() - kOneMore.size());
    std::vector<std::string> possible;
    for (const std::string& other : dimensionsOf(graph)) {
      if (other == one) continue;
      Graph renamed = graph;
      const std::string sum = fmt::format("{} + {}", one, other);
      renameAxes(name, sum, renamed);
      if (agreesWithOperators(renamed, sum)) possible.push_back(sum);
    }
    if (possible.size() != 1) continue;
    renameAxes(name, possible[0], graph);
    lines.push_back(
        fmt::format("the dimension that the file calls '{0}' is {1}, as its operators take it "
                    "(--dim \"{0}=N\" gives it another size)",
                    name, possible[0]));
  }
  return lines;
}

void findRanksOfOutputs(Graph& graph, const AskedSizes& asked) {
  const auto hasNoRank = [&](ValueId output) { return !graph.value(output).shape; };
  if (std::none_of(graph.outputs.begin(), graph.outputs.end(), hasNoRank)) return;
  Graph known = graph;
  inferShapes(known);
  std::vector<ValueId> open;
  for (const ValueId output : graph.outputs) {
    if (hasNoRank(output)) graph.value(output).shape = known.value(output).shape;
    if (hasNoRank(output)) open.push_back(output);
  }
  const Sizes sizes = sizesOf(graph, asked);
  const auto sample = open.empty() || sizes.empty() ? std::nullopt : sampleAt(graph, open, sizes);
  for (size_t i = 0; sample && i < open.size(); ++i) {
    const std::optional<Shape>& shape = (*sample)[i].shape;
    // One element may be one of these sizes, or always one.
    if (shape && *shape != Shape{1}) graph.value(open[i]).shape = Shape(shape->size(), kUnknownSize);
  }
}

}  // namespace pipeshard
