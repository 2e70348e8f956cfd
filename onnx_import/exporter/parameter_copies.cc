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
#include "onnx_import/exporter/parameter_unfolding.h"
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

Bytes oneLess(const Bytes& bytes, DataType type) {
  std::vector<double> numbers = numbersOf(type, bytes);
  for (double& number : numbers) number = 1 - number;
  return bytesOf(type, numbers);
}

bool isClose(const Bytes& a, const Bytes& b, DataType type) {
  constexpr double kKnownTo = 2e-5;
  const std::vector<double> left = numbersOf(type, a), right = numbersOf(type, b);
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

// The operators that give `constant` of `parameter`; none where they are not known.
std::vector<std::string> operatorsOf(const Graph& graph, ValueId constant, ValueId parameter, Fold fold) {
  const std::optional<Bytes> bytes = initializerBytes(graph, constant);
  const std::optional<Bytes> own = initializerBytes(graph, parameter);
  const DataType type = graph.dataType(constant);
  if (!bytes || !own || type != graph.dataType(parameter) || bytes->size() != own->size() ||
      !isConvertible(type, DataType::kFloat64))
    return {};
  const Shape &shape = graph.shape(constant), &from = graph.shape(parameter);
  const bool turns = from.size() == 2 && shape == Shape{from[1], from[0]};
  if (turns && fold.hasOnly({"t", "transpose", "permute", "numpy_t"}) &&
      *bytes == transposed(*own, from, dataTypeSize(type)))
    return {"Transpose"};
  if (fold.hasOnly({"sub", "rsub", "scalar_tensor_default"}) && shape == from &&
      *bytes == oneLess(*own, type))
    return {"Sub"};
  std::optional<FoldedFunction> function = takeFunction(fold, type, *bytes);
  if (!function || !fold.hasOnly({"unsqueeze", "view", "reshape", "clone", "contiguous"})) return {};
  const std::optional<Bytes> before = beforeFunction(*function, type, *bytes);
  if (!before || !(function->empty() ? *before == *own : isClose(*before, *own, type))) return {};
  if (function->empty() || shape != from) function->emplace_back("Reshape");
  return *function;
}

}  // namespace

void recomputeCopy(Unfolding& unfolding, size_t reader, ValueId constant, const Fold& fold) {
  const ValueId parameter = findValue(unfolding.graph(), fold.parameters.at(0));
  if (!parameter.valid() || !unfolding.graph().initializers.contains(parameter)) return;
  const std::vector<std::string> operators = operatorsOf(unfolding.graph(), constant, parameter, fold);
  if (operators.empty()) return;
  unfolding.compute(reader, constant, parameter, operators);
  unfolding.countCopy();
}

std::vector<OldCopy> oldCopies(const Graph& graph) {
  std::set<ValueId> read(graph.outputs.begin(), graph.outputs.end());
  std::vector<std::string> captured;
  for (const Node& node : graph.nodes) {
    read.insert(node.inputs.begin(), node.inputs.end());
    collectCaptures(node, captured);
  }
  const std::set<std::string> parameters = signatureParameterNames(graph);
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
