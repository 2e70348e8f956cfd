// How a Gelu is found: it begins at its Tanh. Behind its argument u some value x must make u = k (x + c x^3):
// the values there are tried one by one. Before it, among the few values that are computed from t = tanh(u),
// one must be x/2 + x t/2. Both are polynomials (polynomial.h), so that it does not matter how they are
// written. All nodes between x and that value are then the activation, if nobody else reads what they make.
#include "onnx_import/patterns/activations.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace pipeshard {
namespace {

constexpr size_t kMostCandidates = 12;
constexpr double kCubic = 0.044715;
constexpr double kRounding = 1e-12;  // of polynomials of float64 numbers

// What an activation is of x and f(u), where u is what the kind has, and the call's further attributes.
struct Form {
  PatternKind kind;
  Polynomial activation;
  std::map<std::string, Attribute> attributes;
};

double coefficientOf(const Polynomial& polynomial, std::pair<int, int> powers) {
  const auto found = polynomial.find(powers);
  return found == polynomial.end() ? 0 : found->second;
}

bool isEqual(double number, double expected) {
  return std::abs(number - expected) <= kRounding * std::abs(expected);
}
// An attribute of ONNX is a float32: it can say the number.
bool isFloat32(double number) { return isEqual(number, double{static_cast<float>(number)}); }

// The numbers of a file are kept: those of float32 files differ from the exact ones in the eighth digit, and
// in float64 that shows. Nothing to add where they are exact; nothing at all where no attribute can say them.
std::optional<std::map<std::string, Attribute>> numbersOf(
    const std::vector<std::pair<std::string, std::pair<double, double>>>& found_and_exact) {
  bool exact = true, sayable = true;
  std::map<std::string, Attribute> attributes;
  for (const auto& [name, numbers] : found_and_exact) {
    exact = exact && isEqual(numbers.first, numbers.second);
    sayable = sayable && isFloat32(numbers.first);
    attributes[name] = static_cast<float>(numbers.first);
  }
  if (exact) return std::map<std::string, Attribute>{};
  if (!sayable) return std::nullopt;
  return attributes;
}

std::optional<Form> formOf(const Node& node, const Polynomial& u) {
  const Polynomial half = {{{1, 0}, 0.5}, {{1, 1}, 0.5}};
  const double linear = coefficientOf(u, {1, 0}), cubic = coefficientOf(u, {3, 0});
  const double root = std::sqrt(0.5), k = std::sqrt(2 / M_PI);
  std::optional<std::map<std::string, Attribute>> numbers;
  PatternKind kind = PatternKind::kGelu;
  if (node.is("Erf") && isNear(u, {{{1, 0}, root}})) {
    numbers = numbersOf({{"factor", {linear, root}}});
    // x / 1.4142135 of a float32 file, as the older exporter writes it
    if (!numbers) numbers = numbersOf({{"divisor", {1 / linear, std::sqrt(2.0)}}});
  } else if (node.is("Tanh") && isNear(u, {{{1, 0}, k}, {{3, 0}, k * kCubic}})) {
    kind = PatternKind::kGeluTanh;
    numbers = numbersOf({{"factor", {linear, k}}, {"cubic", {cubic / linear, kCubic}}});
  } else if (node.is("Sigmoid") && u.size() == 1 && linear != 0 && isFloat32(linear)) {
    return Form{PatternKind::kSwish, {{{1, 1}, 1}}, {{"alpha", static_cast<float>(linear)}}};
  }
  if (!numbers) return std::nullopt;
  return Form{kind, half, *numbers};
}

// u is nearly what a kind has: other numbers, or numbers that cannot be kept.
std::string almost(const Node& node, const Polynomial& u) {
  const double linear = coefficientOf(u, {1, 0}), cubic = coefficientOf(u, {3, 0});
  if (node.is("Erf") && u.size() == 1 && isNear(linear, std::sqrt(0.5)))
    return fmt::format(
        "its factor {:.17g} is no number of float32, nor one divided by it, so no attribute can keep it",
        linear);
  if (!node.is("Tanh") || u.size() != 2 || linear == 0 || cubic == 0) return "";
  return fmt::format("its argument is {:.6g} x + {:.6g} x^3; a Gelu has 0.797885 x + 0.0356774 x^3", linear,
                     cubic);
}

// `start` and what lies behind it (or, `forward`, before it) within a few arithmetic nodes; nearest first.
std::vector<ValueId> nearbyValues(const PatternGraph& patterns, ValueId start, bool forward) {
  std::vector<ValueId> found = {start};
  const auto add = [&](ValueId value) {
    const bool is_new = std::find(found.begin(), found.end(), value) == found.end();
    if (is_new && !patterns.is_number[value.index()] && found.size() < kMostCandidates)
      found.push_back(value);
  };
  for (size_t at = 0; at < found.size(); ++at) {
    const size_t index = found[at].index();
    if (forward) {
      for (const NodeId user : patterns.uses.consumers[index]) {
        if (patterns.isArithmetic(user)) add(patterns.graph.node(user).outputs[0]);
      }
    } else if (const NodeId producer = patterns.uses.producer[index];
               producer.valid() && patterns.isArithmetic(producer)) {
      for (const ValueId input : patterns.graph.node(producer).inputs) add(input);
    }
  }
  return found;
}

Match matchOf(const Form& form, ValueId x, ValueId y, std::set<NodeId> nodes) {
  Match match;
  match.kind = form.kind;
  match.inputs = {x};
  match.output = y;
  match.nodes = std::move(nodes);
  match.attributes = form.attributes;
  if (form.kind == PatternKind::kSwish) {
    match.function = "Swish";
    return match;
  }
  const bool tanh = form.kind == PatternKind::kGeluTanh, given = form.attributes.contains("factor");
  const bool divides = form.attributes.contains("divisor");
  match.function = "Gelu";
  match.overload = tanh ? (given ? "tanh_factors" : "tanh") : divides ? "divisor" : (given ? "factors" : "");
  match.attributes["approximate"] = std::string(tanh ? "tanh" : "none");
  return match;
}

// The value that is the activation of x, given f = erf, tanh or sigmoid of a polynomial of x.
std::optional<Match> completed(const PatternGraph& patterns, const Form& form, NodeId function, ValueId x,
                               const std::set<NodeId>& argument) {
  const Graph& graph = patterns.graph;
  const ValueId f = graph.node(function).outputs[0];
  for (const ValueId y : nearbyValues(patterns, f, /*forward=*/true)) {
    PolynomialWriter writer(patterns, x, f);
    const std::optional<Polynomial> activation = writer.write(y);
    if (!activation || !isNear(*activation, form.activation)) continue;
    if (graph.shape(y) != graph.shape(x) || graph.dataType(y) != graph.dataType(x)) continue;
    std::set<NodeId> nodes = writer.nodes();
    nodes.insert(argument.begin(), argument.end());
    nodes.insert(function);
    return matchOf(form, x, y, std::move(nodes));
  }
  return std::nullopt;
}

std::optional<Match> ownGelu(const PatternGraph& patterns, NodeId id) {
  const Node& node = patterns.graph.node(id);
  const bool tanh = node.stringAttribute("approximate", "none") == "tanh";
  return matchOf({tanh ? PatternKind::kGeluTanh : PatternKind::kGelu, {}, {}}, node.inputs[0],
                 node.outputs[0], {id});
}

// The activation around an erf, tanh or sigmoid.
std::optional<Match> aroundFunction(const PatternGraph& patterns, NodeId id, std::vector<NearMiss>& missed) {
  const Node& node = patterns.graph.node(id);
  std::optional<Form> begun;
  for (const ValueId x : nearbyValues(patterns, node.inputs[0], /*forward=*/false)) {
    PolynomialWriter writer(patterns, x, ValueId());
    const std::optional<Polynomial> u = writer.write(node.inputs[0]);
    if (!u) continue;
    const std::optional<Form> form = formOf(node, *u);
    if (!form) {
      if (std::string reason = almost(node, *u); !reason.empty())
        missed.push_back({node.is("Erf") ? PatternKind::kGelu : PatternKind::kGeluTanh, describeNode(node),
                          std::move(reason)});
      continue;
    }
    begun = form;
    if (std::optional<Match> match = completed(patterns, *form, id, x, writer.nodes())) return match;
  }
  // A sigmoid alone is no beginning of anything.
  if (begun && begun->kind != PatternKind::kSwish)
    missed.push_back(
        {begun->kind, describeNode(node), "its argument is that of a Gelu, but nothing is x/2 + x/2 of it"});
  return std::nullopt;
}

}  // namespace

std::optional<Match> matchActivation(const PatternGraph& patterns, NodeId id, std::vector<NearMiss>& missed) {
  const Node& node = patterns.graph.node(id);
  std::optional<Match> match;
  if (node.is("Gelu")) match = ownGelu(patterns, id);
  if (node.is("Erf") || node.is("Tanh") || node.is("Sigmoid")) match = aroundFunction(patterns, id, missed);
  if (!match) return std::nullopt;
  std::string reason = obstacle(patterns, *match);
  if (reason.empty()) return match;
  missed.push_back({match->kind, describeNode(node), std::move(reason)});
  return std::nullopt;
}

}  // namespace pipeshard
