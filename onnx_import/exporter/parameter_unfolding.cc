#include "onnx_import/exporter/parameter_unfolding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ir/base/convert.h"

namespace pipeshard {
namespace {

struct Invertible {
  const char* call;  // as the exporter names what it gives
  const char* operator_type;
  double (*before)(double);
};

constexpr std::array<Invertible, 7> kInvertible = {{
    {"exp", "Exp", [](double y) { return std::log(y); }},
    {"log", "Log", [](double y) { return std::exp(y); }},
    {"neg", "Neg", [](double y) { return -y; }},
    {"reciprocal", "Reciprocal", [](double y) { return 1 / y; }},
    {"sigmoid", "Sigmoid", [](double y) { return std::log(y) - std::log1p(-y); }},
    {"sqrt", "Sqrt", [](double y) { return y * y; }},
    {"tanh", "Tanh", [](double y) { return std::atanh(y); }},
}};
constexpr double kKnownTo = 1e-5;

// Distance of the type's numbers about 1.
double stepOf(DataType type) {
  double step = 1;
  const auto isSeen = [&](double sum) { return numbersOf(type, bytesOf(type, {sum})).front() != 1; };
  while (isSeen(1 + step / 2)) step /= 2;
  return step;
}

double beforeAll(const FoldedFunction& function, double number) {
  for (auto name = function.rbegin(); name != function.rend(); ++name)
    number = std::ranges::find(kInvertible, *name, &Invertible::operator_type)->before(number);
  return number;
}

}  // namespace

std::vector<double> numbersOf(DataType type, const std::vector<std::byte>& bytes) {
  std::vector<double> numbers(bytes.size() / dataTypeSize(type));
  convertElements(type, bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

std::vector<std::byte> bytesOf(DataType type, const std::vector<double>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * dataTypeSize(type));
  convertElements(DataType::kFloat64, numbers.data(), type, bytes.data(), numbers.size());
  return bytes;
}

bool Fold::hasOnly(std::initializer_list<std::string_view> kinds) const {
  return std::ranges::all_of(
      calls, [&](const std::string& call) { return std::ranges::find(kinds, call) != kinds.end(); });
}

int64_t Fold::count(std::string_view kind) const { return std::ranges::count(calls, kind); }

Unfolding::Unfolding(Graph& graph) : graph_(graph), builder_(graph) {
  for (const SignatureParameter& parameter : signatureParameters(graph)) {
    name_of_[parameter.argument] = parameter.name;
    parameters_.insert(parameter.name);
  }
  for (const SignatureParameter& buffer : signatureBuffers(graph)) buffers_.insert(buffer.name);
}

Fold Unfolding::foldOf(ValueId id) const {
  Fold fold;
  const bool constant =
      id.valid() && graph_.initializers.contains(id) && isFloatingPoint(graph_.dataType(id));
  if (!constant) return fold;
  std::vector<std::string> sources = foldedFrom(graph_.value(id));
  if (!sources.empty()) sources.push_back(graph_.value(id).name);
  for (const std::string& source : sources) {
    if (isParameter(source)) {
      fold.parameters.push_back(source);
    } else if (buffers_.contains(source)) {
      fold.buffers.push_back(source);
    } else if (callKind(source) != "val") {
      fold.calls.emplace_back(callKind(source));
    }
  }
  return fold;
}

std::vector<std::string> Unfolding::mentioned(const ExportedCall& call) const {
  std::vector<std::string> names;
  for (const std::string& argument : call.arguments) {
    const auto found = name_of_.find(argument);
    if (found != name_of_.end() && std::ranges::find(names, found->second) == names.end())
      names.push_back(found->second);
  }
  return names;
}

ValueId Unfolding::addParameter(const std::string& name, DataType type, const Shape& shape,
                                Initializer content) {
  const ValueId id = builder_.addValue(name, type, shape);
  if (auto* constant = std::get_if<Constant>(&content)) constant->shape = shape;
  graph_.initializers[id] = std::move(content);
  setExportedKind(graph_.value(id), "PARAMETER");
  ++made_;
  return id;
}

void Unfolding::compute(size_t reader, ValueId constant, ValueId parameter,
                        const std::vector<std::string>& operators) {
  const Shape shape = graph_.shape(constant);
  const DataType type = graph_.dataType(constant);
  graph_.initializers.erase(constant);
  addBefore(reader, [&](ReplacementWriter& writer) {
    ValueId value = parameter;
    for (size_t i = 0; i < operators.size(); ++i) {
      const std::string& name = operators[i];
      std::vector<ValueId> inputs = {value};
      std::map<std::string, Attribute> attributes;
      if (name == "Reshape" || name == "Expand") inputs.push_back(writer.integers(shape));
      if (name == "Sub") inputs.insert(inputs.begin(), writer.number(type, 1));
      if (name == "Transpose") attributes["perm"] = std::vector<int64_t>{1, 0};
      if (i + 1 == operators.size())
        return writer.addTo(constant, name.c_str(), std::move(inputs), std::move(attributes));
      value = writer.add(name.c_str(), std::move(inputs), type, std::move(attributes));
    }
  });
}

int Unfolding::finish() {
  std::vector<Node> nodes;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const auto added = before_.find(n);
    if (added != before_.end()) std::ranges::move(added->second, std::back_inserter(nodes));
    nodes.push_back(std::move(graph_.nodes[n]));
  }
  graph_.nodes = std::move(nodes);
  return made_;
}

std::optional<FoldedFunction> takeFunction(Fold& fold, DataType type, const std::vector<std::byte>& bytes) {
  FoldedFunction function;
  for (const Invertible& invertible : kInvertible) {
    const auto count = std::erase(fold.calls, invertible.call);
    if (count > 1) return std::nullopt;
    if (count == 1) function.emplace_back(invertible.operator_type);
  }
  if (function.size() < 2) return function;
  if (function != FoldedFunction{"Exp", "Neg"} || !isConvertible(type, DataType::kFloat64))
    return std::nullopt;
  const std::vector<double> numbers = numbersOf(type, bytes);
  if (std::ranges::all_of(numbers, [](double number) { return number < 0; })) return function;
  return FoldedFunction{"Neg", "Exp"};
}

std::optional<std::vector<std::byte>> beforeFunction(const FoldedFunction& function, DataType type,
                                                     const std::vector<std::byte>& bytes) {
  if (function.empty()) return bytes;
  if (!isConvertible(type, DataType::kFloat64)) return std::nullopt;
  std::vector<double> numbers = numbersOf(type, bytes);
  const double step = stepOf(type) / 2;
  for (double& number : numbers) {
    const double before = beforeAll(function, number);
    const double off = std::max(std::abs(beforeAll(function, number * (1 + step)) - before),
                                std::abs(beforeAll(function, number * (1 - step)) - before));
    if (!std::isfinite(before) || !(off <= kKnownTo * std::max(1.0, std::abs(before)))) return std::nullopt;
    number = before;
  }
  return bytesOf(type, numbers);
}

}  // namespace pipeshard
