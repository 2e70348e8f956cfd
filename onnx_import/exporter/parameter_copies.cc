#include "onnx_import/exporter/parameter_copies.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "ir/base/convert.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/folded_functions.h"
#include "onnx_import/format/initializer_bytes.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

using Bytes = std::vector<std::byte>;

// Of a matrix with so many rows and columns.
Bytes transposed(const Bytes& bytes, const Shape& shape, size_t element) {
  Bytes result(bytes.size());
  const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c)
      std::memcpy(&result[(c * rows + r) * element], &bytes[(r * columns + c) * element], element);
  }
  return result;
}

std::vector<double> numbersOf(const Bytes& bytes, DataType type) {
  std::vector<double> numbers(bytes.size() / dataTypeSize(type));
  convertElements(type, bytes.data(), DataType::kFloat64, numbers.data(), numbers.size());
  return numbers;
}

Bytes oneLess(const Bytes& bytes, DataType type) {
  std::vector<double> numbers = numbersOf(bytes, type);
  for (double& number : numbers) number = 1 - number;
  Bytes result(bytes.size());
  convertElements(DataType::kFloat64, numbers.data(), type, result.data(), numbers.size());
  return result;
}

bool isClose(const Bytes& a, const Bytes& b, DataType type) {
  constexpr double kKnownTo = 2e-5;
  const std::vector<double> left = numbersOf(a, type), right = numbersOf(b, type);
  return std::ranges::equal(left, right, [](double x, double y) {
    return std::abs(x - y) <= kKnownTo * std::max({1.0, std::abs(x), std::abs(y)});
  });
}

// zeros_like(weight)
bool isOfSizesAlone(const Graph& graph, ValueId id, const std::vector<std::string>& sources) {
  const auto takes_sizes = [](std::string_view source) {
    return source.find("_like") != source.npos || source.starts_with("new_");
  };
  if (!std::ranges::any_of(sources, takes_sizes) && !takes_sizes(graph.value(id).name)) return false;
  const std::optional<Bytes> bytes = initializerBytes(graph, id);
  const auto element = static_cast<int64_t>(dataTypeSize(graph.dataType(id)));
  return bytes && (std::ssize(*bytes) <= element ||
                   std::equal(bytes->begin() + element, bytes->end(), bytes->begin()));
}

class Copy {
 public:
  Copy(Unfolding& unfolding, size_t reader, ValueId constant, ValueId parameter)
      : unfolding_(unfolding), reader_(reader), constant_(constant), parameter_(parameter) {}

  void recompute(Fold fold) {
    Graph& graph = unfolding_.graph();
    const std::optional<Bytes> bytes = initializerBytes(graph, constant_);
    const std::optional<Bytes> own = initializerBytes(graph, parameter_);
    const DataType type = graph.dataType(constant_);
    if (!bytes || !own || type != graph.dataType(parameter_) || bytes->size() != own->size() ||
        !isConvertible(type, DataType::kFloat64))
      return;
    const Shape &shape = graph.shape(constant_), &from = graph.shape(parameter_);
    const bool turns = from.size() == 2 && shape == Shape{from[1], from[0]};
    if (turns && fold.hasOnly({"t", "transpose", "permute", "numpy_t"}) &&
        *bytes == transposed(*own, from, dataTypeSize(type)))
      return write({"Transpose"});
    if (fold.hasOnly({"sub", "rsub", "scalar_tensor_default"}) && shape == from &&
        *bytes == oneLess(*own, type))
      return write({"Sub"});
    std::optional<FoldedFunction> function = takeFunction(fold, type, *bytes);
    if (!function || !fold.hasOnly({"unsqueeze", "view", "reshape", "clone", "contiguous"})) return;
    const std::optional<Bytes> before = beforeFunction(*function, type, *bytes);
    if (!before || !(function->empty() ? *before == *own : isClose(*before, *own, type))) return;
    if (function->empty() || shape != from) function->emplace_back("Reshape");
    write(*function);
  }

 private:
  void write(const std::vector<std::string>& operators) {
    Graph& graph = unfolding_.graph();
    const Shape shape = graph.shape(constant_);
    const DataType type = graph.dataType(constant_);
    graph.initializers.erase(constant_);
    unfolding_.addBefore(reader_, [&](ReplacementWriter& writer) {
      ValueId value = parameter_;
      for (size_t i = 0; i < operators.size(); ++i) {
        const std::string& name = operators[i];
        std::vector<ValueId> inputs = {value};
        std::map<std::string, Attribute> attributes;
        if (name == "Reshape") inputs.push_back(writer.integers(shape));
        if (name == "Sub") inputs.insert(inputs.begin(), writer.number(type, 1));
        if (name == "Transpose") attributes["perm"] = std::vector<int64_t>{1, 0};
        if (i + 1 == operators.size())
          return writer.addTo(constant_, name.c_str(), std::move(inputs), std::move(attributes));
        value = writer.add(name.c_str(), std::move(inputs), type, std::move(attributes));
      }
    });
    unfolding_.countCopy();
  }

  Unfolding& unfolding_;
  size_t reader_;
  ValueId constant_;
  ValueId parameter_;
};

}  // namespace

void recomputeCopy(Unfolding& unfolding, size_t reader, ValueId constant, const Fold& fold) {
  const ValueId parameter = findValue(unfolding.graph(), fold.parameters.at(0));
  if (parameter.valid() && unfolding.graph().initializers.contains(parameter))
    Copy(unfolding, reader, constant, parameter).recompute(fold);
}

std::vector<OldCopy> oldCopies(const Graph& graph) {
  std::set<ValueId> read(graph.outputs.begin(), graph.outputs.end());
  std::vector<std::string> captured;
  for (const Node& node : graph.nodes) {
    read.insert(node.inputs.begin(), node.inputs.end());
    collectCaptures(node, captured);
  }
  std::set<std::string> parameters;
  for (const SignatureParameter& parameter : signatureParameters(graph)) parameters.insert(parameter.name);
  std::vector<OldCopy> copies;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    const bool is_read = read.contains(id) || std::ranges::find(captured, value.name) != captured.end();
    if (!is_read || !isFloatingPoint(value.data_type) || isMarkedParameter(value)) continue;
    const std::vector<std::string> sources = foldedFrom(value);
    if (sources.empty() || isOfSizesAlone(graph, id, sources)) continue;
    for (const std::string& source : sources) {
      if (parameters.contains(source)) copies.push_back({source, value.name});
    }
  }
  return copies;
}

}  // namespace pipeshard
