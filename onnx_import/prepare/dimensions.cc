#include "onnx_import/prepare/dimensions.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {
namespace {

constexpr std::string_view kDefaultsKey = "pipeshard.dimensions";
constexpr std::string_view kGivenSizes = "pipeshard.given_sizes";  // while a graph is prepared

// Recursive descent over sums, products and atoms; the depth is bounded so that a hostile name cannot exhaust
// the stack.
class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, int64_t>* dimensions)
      : text_(text), dimensions_(dimensions) {}

  std::optional<int64_t> parse() {
    const int64_t value = sum(0);
    skipSpace();
    if (bad_ || position_ != text_.size()) return std::nullopt;
    return value;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void skipSpace() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }
  bool take(std::string_view token) {
    skipSpace();
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  int64_t reject() {
    bad_ = true;
    return 1;
  }

  int64_t sum(int depth) {
    int64_t value = product(depth);
    while (!bad_) {
      if (take("+")) {
        if (__builtin_add_overflow(value, product(depth), &value)) return reject();
      } else if (take("-")) {
        if (__builtin_sub_overflow(value, product(depth), &value)) return reject();
      } else {
        return value;
      }
    }
    return value;
  }

  int64_t product(int depth) {
    int64_t value = atom(depth);
    while (!bad_) {
      if (take("*")) {
        if (__builtin_mul_overflow(value, atom(depth), &value)) return reject();
      } else if (take("//")) {
        const int64_t divisor = atom(depth);
        if (divisor <= 0 || value < 0) return reject();
        value /= divisor;
      } else if (take("/")) {
        const int64_t divisor = atom(depth);
        if (divisor <= 0 || value % divisor != 0) return reject();
        value /= divisor;
      } else {
        return value;
      }
    }
    return value;
  }

  int64_t atom(int depth) {
    if (depth > 32) return reject();
    if (take("(")) {
      const int64_t value = sum(depth + 1);
      return take(")") ? value : reject();
    }
    if (take("-")) return -atom(depth + 1);
    skipSpace();
    const size_t start = position_;
    while (position_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[position_])) != 0 ||
                                        text_[position_] == '_' || text_[position_] == '.')) {
      ++position_;
    }
    const std::string_view token = text_.substr(start, position_ - start);
    if (token.empty()) return reject();
    if (std::isdigit(static_cast<unsigned char>(token.front())) != 0) {
      int64_t number = 0;
      const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
      return error == std::errc() && end == token.data() + token.size() ? number : reject();
    }
    names_.emplace_back(token);
    if (dimensions_ == nullptr) return 1;
    const auto bound = dimensions_->find(std::string(token));
    return bound == dimensions_->end() ? reject() : bound->second;
  }

  std::string_view text_;
  const std::map<std::string, int64_t>* dimensions_;
  size_t position_ = 0;
  bool bad_ = false;
  std::vector<std::string> names_;
};

std::string listNames(const std::vector<SymbolicDimension>& dimensions) {
  std::vector<std::string> names;
  for (const SymbolicDimension& dimension : dimensions)
    names.push_back(fmt::format("{} ({})", dimension.name, fmt::join(dimension.places, ", ")));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, "; "));
}

void checkBindings(const Graph& graph, const std::map<std::string, int64_t>& dimensions) {
  const std::vector<SymbolicDimension> known = symbolicDimensions(graph, dimensions);
  for (const auto& entry : dimensions) {
    const std::string& name = entry.first;  // clang 14 captures no structured bindings
    const int64_t size = entry.second;
    if (std::none_of(known.begin(), known.end(),
                     [&](const SymbolicDimension& dimension) { return dimension.name == name; })) {
      fail(ErrorCode::kUsage, "the model has no symbolic dimension '{}'; its dimensions: {}", name,
           listNames(known));
    }
    if (size < 1)
      fail(ErrorCode::kUsage, "dimension '{}' was given the size {}; sizes start at 1", name, size);
  }
  std::vector<std::string> missing;
  for (const SymbolicDimension& dimension : known) {
    if (!dimensions.contains(dimension.name)) missing.push_back(dimension.name);
  }
  if (missing.empty()) return;
  std::vector<std::string> options;
  for (const std::string& name : missing) options.push_back(fmt::format("--dim {}=SIZE", name));
  fail(ErrorCode::kUsage, "the model leaves dimensions open: {}. Give each a size: {}", listNames(known),
       fmt::join(options, " "));
}

void bindSizes(Graph& graph, const std::map<std::string, int64_t>& dimensions) {
  std::vector<bool> is_input(graph.values.size(), false), is_output(graph.values.size(), false);
  for (ValueId id : graph.inputs) is_input[id.index()] = true;
  for (ValueId id : graph.outputs) is_output[id.index()] = true;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    Value& value = graph.values[i];
    if (!value.shape) continue;
    for (size_t axis = 0; axis < value.shape->size(); ++axis) {
      if ((*value.shape)[axis] >= 0) continue;
      const bool symbolic = axis < value.symbols.size() && !value.symbols[axis].empty();
      if (!symbolic && !is_input[i]) continue;
      const std::string name = axisName(value, axis);
      const std::optional<int64_t> size = evaluateDimension(name, dimensions);
      if (size) {
        (*value.shape)[axis] = *size;
      } else if (is_input[i] && !graph.initializers.contains(ValueId(i))) {
        fail(ErrorCode::kUsage,
             "input '{}' axis {} is '{}', which has no whole size with the dimensions given", value.name,
             axis, name);
      }
    }
    if (is_input[i] || !is_output[i]) value.symbols.clear();
  }
}

bool saysNoAxes(const Node& node) {
  return node.domain.empty() && node.is("Squeeze") && !node.hasAttribute("axes") && node.inputs.size() > 0 &&
         (node.inputs.size() < 2 || !node.inputs[1].valid());
}

void sayAxes(const std::vector<int64_t>& axes, Node& node, GraphBuilder& builder) {
  node.inputs.resize(1);
  if (axes.empty()) {
    node.op_type = "Identity";
  } else if (node.opset_version < 13) {
    node.attributes["axes"] = axes;
  } else {
    node.inputs.push_back(
        builder.addConstant(node.name + "/axes", makeConstant<int64_t>({std::ssize(axes)}, axes)));
    markMade(builder.graph().value(node.inputs[1]));
  }
}

// A Squeeze that says no axes means those of size 1 whatever the dimensions are: one row of a batch stays a
// batch. Which these are is seen where no dimension is 1.
void sayAxesOfSqueezes(Graph& graph, std::map<std::string, int64_t> dimensions) {
  constexpr int64_t kOther = 12;  // where a dimension is 1; many numbers divide it
  bool any = false;
  for (auto& [name, size] : dimensions) {
    any = any || size == 1;
    if (size == 1) size = kOther;
  }
  if (!any || std::none_of(graph.nodes.begin(), graph.nodes.end(), saysNoAxes)) return;
  Graph larger = graph;
  try {
    bindSizes(larger, dimensions);
    inferShapes(larger);
  } catch (const Error&) {  // it takes no other size: what is known so far, or nothing
  }
  GraphBuilder builder(graph);
  for (Node& node : graph.nodes) {
    if (!saysNoAxes(node) || !node.inputs[0].valid()) continue;
    const std::optional<Shape>& shape = larger.value(node.inputs[0]).shape;
    if (!shape || !isStatic(*shape)) continue;
    std::vector<int64_t> axes;
    for (size_t axis = 0; axis < shape->size(); ++axis) {
      if ((*shape)[axis] == 1) axes.push_back(axis);
    }
    sayAxes(axes, node, builder);
  }
}

std::string allOf(const std::vector<std::string>& sizes, std::string_view what) {
  return fmt::format("{} {} {}", fmt::join(sizes, " and "), sizes.size() == 1 ? "is" : "are", what);
}

// Axes of inputs whose size is what their name says, an expression: "'past + 1' = 5".
std::set<std::string> sizesByName(const Graph& graph, const std::map<std::string, int64_t>& dimensions) {
  std::set<std::string> sizes;
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (graph.initializers.contains(id)) continue;
    for (const std::string& symbol : input.symbols) {
      if (symbol.empty() || dimensions.contains(symbol)) continue;
      if (const std::optional<int64_t> size = evaluateDimension(symbol, dimensions))
        sizes.insert(fmt::format("; '{0}' = {1} is what this name says (--dim \"{0}=N\" says another)",
                                 symbol, *size));
    }
  }
  return sizes;
}

// What givenSizes tells. A size that a weight says as well is not in question.
std::string describeSizes(const Graph& graph, const std::map<std::string, int64_t>& dimensions,
                          const std::set<std::string>& chosen) {
  const std::map<std::string, int64_t> by_weights = dimensionsByWeights(graph);
  std::vector<std::string> given_sizes, chosen_sizes, options, parts;
  for (const auto& [name, size] : dimensions) {
    const auto weight = by_weights.find(name);
    if (weight != by_weights.end() && weight->second == size) continue;
    const bool is_chosen = chosen.contains(name);
    (is_chosen ? chosen_sizes : given_sizes).push_back(fmt::format("{} = {}", name, size));
    if (is_chosen) options.push_back(fmt::format("--dim {}=N", name));
  }
  if (!given_sizes.empty()) parts.push_back(allOf(given_sizes, "given (--dim, --microbatches)"));
  if (!chosen_sizes.empty()) parts.push_back(allOf(chosen_sizes, "chosen, as nobody gave a size"));
  if (parts.empty()) return "";
  std::string text = fmt::format("; {}: the model may not take that", fmt::join(parts, ", "));
  if (!options.empty()) text += fmt::format("; give sizes that it takes: {}", fmt::join(options, " "));
  return text + fmt::format("{}", fmt::join(sizesByName(graph, dimensions), ""));
}

}  // namespace

std::optional<int64_t> evaluateDimension(std::string_view expression,
                                         const std::map<std::string, int64_t>& dimensions) {
  // A symbol may itself contain operators; bound as a whole it wins.
  const auto whole = dimensions.find(std::string(expression));
  if (whole != dimensions.end()) return whole->second;
  const std::optional<int64_t> value = Parser(expression, &dimensions).parse();
  return value && *value >= 0 ? value : std::nullopt;
}

std::vector<std::string> dimensionNames(std::string_view expression) {
  Parser parser(expression, nullptr);
  // With every name 1 a division may fail to be exact, which says nothing about the form: then the names
  // still stand.
  if (!parser.parse() && expression.find('/') == std::string_view::npos) return {std::string(expression)};
  return parser.names().empty() ? std::vector<std::string>{std::string(expression)} : parser.names();
}

std::string axisName(const Value& input, size_t axis) {
  if (axis < input.symbols.size() && !input.symbols[axis].empty()) return input.symbols[axis];
  return fmt::format("{}_axis{}", input.name, axis);
}

std::vector<SymbolicDimension> symbolicDimensions(const Graph& graph,
                                                  const std::map<std::string, int64_t>& given) {
  std::vector<SymbolicDimension> result;
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (graph.initializers.contains(id) || !input.shape) continue;
    for (size_t axis = 0; axis < input.shape->size(); ++axis) {
      if ((*input.shape)[axis] >= 0) continue;
      const bool symbolic = axis < input.symbols.size() && !input.symbols[axis].empty();
      const std::string place = fmt::format("{} axis {}", input.name, axis);
      const bool is_whole = !symbolic || given.contains(input.symbols[axis]);
      for (const std::string& name :
           is_whole ? std::vector<std::string>{axisName(input, axis)} : dimensionNames(input.symbols[axis])) {
        auto it = std::find_if(result.begin(), result.end(),
                               [&](const SymbolicDimension& dimension) { return dimension.name == name; });
        if (it == result.end()) it = result.insert(result.end(), SymbolicDimension{name, {}});
        if (it->places.empty() || it->places.back() != place) it->places.push_back(place);
      }
    }
  }
  return result;
}

std::map<std::string, int64_t> defaultDimensions(const Graph& graph) {
  std::map<std::string, int64_t> result;
  for (const auto& [key, text] : graph.model_metadata) {
    if (key != kDefaultsKey) continue;
    for (size_t start = 0; start < text.size();) {
      size_t end = text.find(',', start);
      if (end == std::string::npos) end = text.size();
      const std::string item = text.substr(start, end - start);
      const size_t equals = item.find('=');
      int64_t size = 0;
      const char* last = item.data() + item.size();
      const bool good = equals != std::string::npos && equals > 0 &&
                        std::from_chars(item.data() + equals + 1, last, size).ptr == last && size > 0;
      if (!good)
        fail(ErrorCode::kBadModel, "the model's metadata '{}' is '{}'; expected NAME=SIZE,...", kDefaultsKey,
             text);
      result[item.substr(0, equals)] = size;
      start = end + 1;
    }
  }
  return result;
}

std::map<std::string, int64_t> dimensionsByWeights(const Graph& graph) {
  std::map<ValueId, ValueId> source;  // the input that a value is
  for (ValueId id : graph.inputs) {
    if (!graph.initializers.contains(id)) source.emplace(id, id);
  }
  std::map<std::string, int64_t> result;
  for (const Node& node : graph.nodes) {
    if (node.inputs.empty() || node.outputs.empty()) continue;
    const auto read = source.find(node.inputs[0]);
    if (read == source.end()) continue;
    if (node.is("Identity") || node.is("Cast")) source.emplace(node.outputs[0], read->second);
    if (!node.is("Conv") || node.inputs.size() < 2 || !node.inputs[1].valid()) continue;
    const Value& input = graph.value(read->second);
    const std::optional<Shape>& weight = graph.value(node.inputs[1]).shape;
    if (!input.shape || input.shape->size() < 2 || (*input.shape)[1] >= 0) continue;
    if (!weight || weight->size() != input.shape->size() || !isStatic(*weight)) continue;
    const std::string name = axisName(input, 1);
    if (dimensionNames(name) == std::vector<std::string>{name})
      result.emplace(name, (*weight)[1] * node.intAttribute("group", 1));
  }
  return result;
}

std::vector<std::string> misnamedOutputs(const Graph& graph, const Graph& prepared,
                                         const std::map<std::string, int64_t>& dimensions) {
  std::vector<std::string> lines;
  for (ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    const ValueId found = findValue(prepared, value.name);
    if (!found.valid() || !value.shape || !prepared.value(found).shape) continue;
    const Shape& shape = prepared.shape(found);
    if (shape.size() != value.shape->size()) {
      lines.push_back(
          fmt::format("output '{}' is {} in the file, but follows from its operators as {}: that counts",
                      value.name, shapeToString(*value.shape), shapeToString(shape)));
      continue;
    }
    Shape said = shape;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if ((*value.shape)[axis] >= 0 || axis >= value.symbols.size()) continue;
      if (const auto size = evaluateDimension(value.symbols[axis], dimensions)) said[axis] = *size;
    }
    if (said == shape) continue;
    lines.push_back(
        fmt::format("output '{}' is {} by the names of its axes ({}), but follows from its operators as {}: "
                    "that counts",
                    value.name, shapeToString(said), fmt::join(value.symbols, ","), shapeToString(shape)));
  }
  return lines;
}

void bindDimensions(Graph& graph, const std::map<std::string, int64_t>& dimensions,
                    const std::set<std::string>& chosen) {
  checkBindings(graph, dimensions);
  sayAxesOfSqueezes(graph, dimensions);
  const std::string sizes = describeSizes(graph, dimensions, chosen);  // reads the symbols
  bindSizes(graph, dimensions);
  if (!sizes.empty()) graph.model_metadata.emplace_back(kGivenSizes, sizes);
}

std::string givenSizes(const Graph& graph) {
  for (const auto& [key, text] : graph.model_metadata) {
    if (key == kGivenSizes) return text;
  }
  return "";
}

bool ranksMayFollowSizes(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node& node) {
    if (saysNoAxes(node) || node.is("If")) return true;
    return std::ranges::any_of(node.attributes, [](const auto& attribute) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute.second);
      return body != nullptr && ranksMayFollowSizes(**body);
    });
  });
}

void forgetGivenSizes(Graph& graph) {
  std::erase_if(graph.model_metadata, [](const auto& entry) { return entry.first == kGivenSizes; });
  for (ValueId id : graph.outputs) graph.value(id).symbols.clear();
}

}  // namespace pipeshard
