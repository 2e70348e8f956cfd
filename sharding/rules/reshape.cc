// Operators that keep the elements in order and only regroup them into axes: Reshape, Flatten, Squeeze,
// Unsqueeze.
//
// Reshape: the common refinement of the two lists of sizes. [8,16] -> [16,8] refines to 8,2,8: [[a],[b,c]] ->
// [[a,b],[c]]. Where the boundaries do not nest ([3,4] -> [4,3]) the axes between the next common boundaries
// cannot be cut.
//
// Axes of size 1 get factors of size 1, so that a batch of one example can be followed. Sizes alone do not
// say where such an axis goes ([1,16] -> [1,1,16]); in this order decide: the exporter's symbolic sizes, a -1
// in the shape, the leftmost place.
#include <algorithm>
#include <map>
#include <numeric>

#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

// One side of a reshape: its sizes, the factors found so far, and the number of elements before each factor.
struct Side {
  Shape shape;
  TensorFactors factors;
  std::vector<std::vector<int64_t>> before;
  std::map<std::pair<size_t, int64_t>, int> units;  // factors of size 1 inserted, by axis and elements before
  std::vector<int64_t> axis_before;                 // product of the sizes of the axes before

  explicit Side(const Shape& sizes) : shape(sizes), factors(sizes.size()), before(sizes.size()) {
    int64_t product = 1;
    for (int64_t size : sizes) {
      axis_before.push_back(product);
      product *= size;
    }
  }

  void append(size_t axis, int factor, int64_t elements_before) {
    factors[axis].push_back(factor);
    before[axis].push_back(elements_before);
  }

  // Puts a factor of size 1 into `axis` at the place that has `elements_before` elements before it: before
  // the larger factor there, after other factors of size 1.
  void insertUnit(size_t axis, int factor, int64_t elements_before) {
    auto place =
        std::lower_bound(before[axis].begin(), before[axis].end(), elements_before) - before[axis].begin();
    place += units[{axis, elements_before}]++;
    factors[axis].insert(factors[axis].begin() + place, factor);
    before[axis].insert(before[axis].begin() + place, elements_before);
  }

  // The place is inside of the axis or at one of its ends.
  bool contains(size_t axis, int64_t elements_before) const {
    return axis_before[axis] <= elements_before && elements_before <= axis_before[axis] * shape[axis];
  }

  std::vector<size_t> largeAxes() const {
    std::vector<size_t> axes;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] != 1) axes.push_back(axis);
    }
    return axes;
  }

  std::vector<size_t> unitAxesAt(int64_t elements_before) const {
    std::vector<size_t> axes;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1 && axis_before[axis] == elements_before) axes.push_back(axis);
    }
    return axes;
  }
};

class Refinement {
 public:
  Refinement(RuleBuilder& builder, const Shape& in, const Shape& out)
      : builder_(builder), in_(in), out_(out) {}

  // Axes of the output that are named by the exporter or by -1 as those that vary.
  void setVarying(std::vector<bool> named, std::vector<bool> inferred) {
    named_ = std::move(named);
    inferred_ = std::move(inferred);
  }

  void run() {
    refineLargeAxes();
    std::vector<int64_t> places = in_.axis_before;
    places.insert(places.end(), out_.axis_before.begin(), out_.axis_before.end());
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (int64_t place : places) pairUnitAxes(place);
  }

  const TensorFactors& in() const { return in_.factors; }
  const TensorFactors& out() const { return out_.factors; }

 private:
  void refineLargeAxes() {
    const std::vector<size_t> in_axes = in_.largeAxes();
    const std::vector<size_t> out_axes = out_.largeAxes();
    size_t i = 0;
    size_t o = 0;
    int64_t before = 1;
    int64_t in_left = 1;   // of in_axes[i]
    int64_t out_left = 1;  // of out_axes[o]
    while (true) {
      if (in_left == 1) {
        if (i == in_axes.size()) break;
        in_left = in_.shape[in_axes[i++]];
      }
      if (out_left == 1) out_left = out_.shape[out_axes[o++]];
      const int64_t shared = std::gcd(in_left, out_left);
      if (shared > 1) {
        const int factor = builder_.factor(fmt::format("r{}", count_++), shared);
        in_.append(in_axes[i - 1], factor, before);
        out_.append(out_axes[o - 1], factor, before);
        before *= shared;
        in_left /= shared;
        out_left /= shared;
      }
      if (in_left == 1 || out_left == 1) continue;
      before *= skipUnaligned(in_axes, out_axes, i, o, in_left, out_left, before);
      in_left = out_left = 1;
    }
  }

  // Whole factors up to the next boundary that both sides have. Returns the number of elements in between.
  int64_t skipUnaligned(const std::vector<size_t>& in_axes, const std::vector<size_t>& out_axes, size_t& i,
                        size_t& o, int64_t in_left, int64_t out_left, int64_t before) {
    int64_t in_product = in_left;
    int64_t out_product = out_left;
    in_.append(in_axes[i - 1], whole(in_left), before);
    out_.append(out_axes[o - 1], whole(out_left), before);
    while (in_product != out_product) {
      const bool advance_in = in_product < out_product;
      Side& side = advance_in ? in_ : out_;
      const size_t axis = advance_in ? in_axes[i++] : out_axes[o++];
      int64_t& product = advance_in ? in_product : out_product;
      side.append(axis, whole(side.shape[axis]), before * product);
      product *= side.shape[axis];
    }
    return in_product;
  }

  int whole(int64_t size) { return builder_.factor(fmt::format("w{}", count_++), size, FactorKind::kWhole); }
  int unit() { return builder_.factor(fmt::format("u{}", count_++), 1); }
  bool isNamed(size_t axis) const { return axis < named_.size() && named_[axis]; }
  bool isInferred(size_t axis) const { return axis < inferred_.size() && inferred_[axis]; }

  // Of some axes of the output the one that the batch would be in.
  size_t preferred(const std::vector<size_t>& axes) const {
    for (size_t axis : axes) {
      if (isNamed(axis)) return axis;
    }
    for (size_t axis : axes) {
      if (isInferred(axis)) return axis;
    }
    return axes.front();
  }

  // Axes of size 1 that have `place` elements before them.
  void pairUnitAxes(int64_t place) {
    const std::vector<size_t> from = in_.unitAxesAt(place);
    const std::vector<size_t> to = out_.unitAxesAt(place);
    if (from.empty() && !to.empty()) return splitOff(preferred(to), place);
    const size_t named = std::find(named_.begin(), named_.end(), true) - named_.begin();
    const bool named_here = named < named_.size() && out_.contains(named, place);
    if (named_here && std::find(to.begin(), to.end(), named) == to.end()) {
      for (size_t axis : from) mergeInto(axis, place);
      return;
    }
    if (!from.empty() && to.empty()) {
      for (size_t axis : from) mergeInto(axis, place);
      return;
    }
    for (size_t k = 0; k < from.size(); ++k) {
      const int factor = unit();
      in_.append(from[k], factor, place);
      const size_t target = from.size() == 1 ? preferred(to) : to[std::min(k, to.size() - 1)];
      out_.append(target, factor, place);
    }
  }

  // An axis of size 1 that only the output has: the major part of the axis of the input that starts here.
  void splitOff(size_t out_axis, int64_t place) {
    const bool names_given = std::find(named_.begin(), named_.end(), true) != named_.end();
    if (names_given ? !isNamed(out_axis) : place != 1 && !isInferred(out_axis)) return;
    for (size_t axis = 0; axis < in_.shape.size(); ++axis) {
      if (in_.shape[axis] == 1 || in_.axis_before[axis] != place) continue;
      const int factor = unit();
      in_.insertUnit(axis, factor, place);
      out_.append(out_axis, factor, place);
      return;
    }
  }

  // An axis of size 1 that only the input has: part of the axis of the output that it falls into. At a
  // boundary it is the minor part of the axis that ends there, unless there is none or the next one is known
  // to vary.
  void mergeInto(size_t in_axis, int64_t place) {
    std::vector<size_t> candidates;
    for (size_t axis = 0; axis < out_.shape.size(); ++axis) {
      if (out_.shape[axis] != 1 && out_.contains(axis, place)) candidates.push_back(axis);
    }
    const int factor = unit();
    in_.append(in_axis, factor, place);
    if (!candidates.empty()) out_.insertUnit(preferred(candidates), factor, place);
  }

  RuleBuilder& builder_;
  Side in_;
  Side out_;
  std::vector<bool> named_;
  std::vector<bool> inferred_;
  int count_ = 0;
};

void setTensors(RuleBuilder& builder, const TensorFactors& in, const TensorFactors& out) {
  for (size_t axis = 0; axis < in.size(); ++axis) builder.setInput(0, axis, in[axis]);
  for (size_t axis = 0; axis < out.size(); ++axis) builder.setOutput(0, axis, out[axis]);
}

std::optional<FactorRule> reshapeRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& in = builder.inputShape(0);
  const Shape& out = builder.outputShape(0);
  if (elementCount(in) == 0) return builder.build(kViewFlops);
  Refinement refinement(builder, in, out);
  std::vector<bool> named(out.size(), false);
  std::vector<bool> inferred(out.size(), false);
  const std::vector<std::string>& symbols = graph.value(node.outputs[0]).symbols;
  for (size_t axis = 0; axis < std::min(symbols.size(), out.size()); ++axis)
    named[axis] = !symbols[axis].empty();
  if (const auto wanted = constantInput(graph, node, 1)) {
    for (size_t axis = 0; axis < std::min(wanted->size(), out.size()); ++axis)
      inferred[axis] = (*wanted)[axis] == -1;
  }
  refinement.setVarying(std::move(named), std::move(inferred));
  refinement.run();
  setTensors(builder, refinement.in(), refinement.out());
  return builder.build(kViewFlops);
}

// [a.., b..] -> [product of a, product of b]
std::optional<FactorRule> flattenRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  const int64_t rank = factors.size();
  int64_t axis = node.intAttribute("axis", 1);
  if (axis < 0) axis += rank;
  builder.alignInput(0, factors);
  builder.setOutput(0, 0, {factors.begin(), factors.begin() + axis});
  builder.setOutput(0, 1, {factors.begin() + axis, factors.end()});
  return builder.build(kViewFlops);
}

// `long_shape` has the axes `extra` (of size 1, sorted) that the other side lacks.
std::optional<FactorRule> unitAxesRule(const Graph& graph, const Node& node, const std::vector<int>& extra,
                                       bool extra_in_output) {
  RuleBuilder builder(graph, node);
  const int long_rank = extra_in_output ? builder.outputShape(0).size() : builder.inputShape(0).size();
  const std::vector<int> factors =
      builder.factorsOf(extra_in_output ? builder.inputShape(0) : builder.outputShape(0));
  size_t position = 0;
  for (int axis = 0; axis < long_rank; ++axis) {
    if (std::binary_search(extra.begin(), extra.end(), axis)) continue;
    builder.setInput(0, extra_in_output ? position : axis, {factors[position]});
    builder.setOutput(0, extra_in_output ? axis : position, {factors[position]});
    ++position;
  }
  return builder.build(kViewFlops);
}

std::optional<FactorRule> squeezeRule(const Graph& graph, const Node& node) {
  const Shape& in = graph.shape(node.inputs[0]);
  auto axes = axesOf(graph, node, 1, in.size());
  if (!axes) return std::nullopt;
  if (axes->empty() && !node.hasAttribute("axes") && node.inputs.size() < 2) {
    for (size_t axis = 0; axis < in.size(); ++axis) {
      if (in[axis] == 1) axes->push_back(axis);
    }
  }
  return unitAxesRule(graph, node, *axes, false);
}

std::optional<FactorRule> unsqueezeRule(const Graph& graph, const Node& node) {
  const auto axes = axesOf(graph, node, 1, graph.shape(node.outputs[0]).size());
  return axes ? unitAxesRule(graph, node, *axes, true) : std::nullopt;
}

}  // namespace

void registerReshapeRules(RuleTable& table) {
  table.add("", "Reshape", reshapeRule);
  table.add("", "Flatten", flattenRule);
  table.add("", "Squeeze", squeezeRule);
  table.add("", "Unsqueeze", unsqueezeRule);
}

}  // namespace pipeshard
