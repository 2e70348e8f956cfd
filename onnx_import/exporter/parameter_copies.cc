#include "onnx_import/exporter/parameter_copies.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

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

std::string ownerOf(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == parameter.npos ? "" : parameter.substr(0, dot);
}

// One is in the other.
bool areRelated(const std::string& a, const std::string& b) {
  const auto holds = [](const std::string& outer, const std::string& inner) {
    return outer.empty() || outer == inner || inner.starts_with(outer + ".");
  };
  return holds(a, b) || holds(b, a);
}

// A sum may be a penalty, which reaches into modules; what scales is a module's own. (A list of parameters is
// a module of numbers: "gains.0".)
bool mayRead(const LeftOutCall& call, const std::string& parameter) {
  const std::string owner = ownerOf(parameter);
  const bool listed = parameter.find_first_not_of("0123456789", parameter.rfind('.') + 1) == parameter.npos;
  if (!isProductCall(call.name)) return areRelated(call.module, owner);
  return call.module == owner || (listed && call.module == ownerOf(owner));
}

// Could a sum, an element or a function of these be 0 or 1 exactly? Not of drawn numbers.
bool mayBeNeutral(const std::vector<double>& numbers) {
  const auto is_unit = [](double number) { return number == 0 || std::abs(number) == 1; };
  return std::ranges::any_of(numbers, is_unit) ||
         std::ranges::all_of(numbers, [&](double number) { return number == numbers[0]; });
}

std::vector<LostParameter> listOf(std::map<std::string, LostParameter> parameters) {
  std::vector<LostParameter> list;
  for (auto& [name, parameter] : parameters) list.push_back(std::move(parameter));
  return list;
}

// What only looks at a value again, so that equal ones are the same; and layers, which gave no constant.
bool isViewOrLayer(std::string_view call) {
  static const std::set<std::string_view> kCalls = {
      "view",      "reshape",   "clone",           "contiguous", "to",        "_to_copy", "alias",   "expand",
      "unsqueeze", "squeeze",   "permute",         "t",          "transpose", "numpy_t",  "getitem", "slice",
      "select",    "flatten",   "lift_fresh_copy", "detach",     "dropout",   "type_as",  "linear",  "matmul",
      "mm",        "embedding", "split",           "chunk",      "expand_as"};
  return kCalls.contains(callKind(call));
}

// It was not made again from the reader's own parameter (1 + weight).
bool stillReads(const Graph& graph, const GoneUses::Mistaken& mistaken) {
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    return exportedCall(node).name == mistaken.reader && std::ranges::any_of(node.inputs, [&](ValueId input) {
             return input.valid() && graph.value(input).name == mistaken.read;
           });
  });
}

// Finds constants and parameters that a call reads in the place of another one.
class MistakenReads {
 public:
  explicit MistakenReads(const Graph& graph) : graph_(graph) {
    for (const SignatureParameter& parameter : signatureParameters(graph))
      argument_of_[parameter.name] = parameter.argument;
    for (const Value& value : graph.values) known_.insert(value.name);
    for (const Node& node : graph.nodes) known_.insert(exportedCall(node).name);
    for (const SignatureParameter& buffer : signatureBuffers(graph)) {
      if (!known_.contains(buffer.name)) continue;
      known_.insert(buffer.argument);
    }
    for (const auto& [name, argument] : argument_of_) arguments_.insert(argument);
  }

  std::vector<GoneUses::Mistaken> run() {
    if (argument_of_.empty()) return {};
    for (const Node& node : graph_.nodes) {
      // What these read is changed, merged and folded together; the parameters are told elsewhere.
      const bool is_layer = node.is("Gemm") || node.is("Conv") || node.is("ConvTranspose") ||
                            node.op_type.ends_with("Normalization") || node.is("LSTM") || node.is("GRU") ||
                            node.is("RNN");
      const ExportedCall call = exportedCall(node);
      if (!is_layer && !call.name.empty() && !isCallOf(call, "batch_norm")) look(node, call);
    }
    return std::move(found_);
  }

 private:
  void look(const Node& node, const ExportedCall& call) {
    std::vector<std::string> open = call.arguments;
    std::vector<std::pair<ValueId, std::string>> odd;  // with the parameter
    for (const ValueId input : node.inputs) {
      if (!input.valid() || !graph_.initializers.contains(input)) continue;
      const Value& value = graph_.value(input);
      std::vector<std::string> names = foldedFrom(value);
      if (isMarkedParameter(value)) names.push_back(value.name);
      std::erase_if(names, [&](const std::string& name) { return !argument_of_.contains(name); });
      if (names.empty() || !isFloatingPoint(value.data_type)) continue;
      const auto mention = std::ranges::find_if(open, [&](const std::string& argument) {
        return argument == value.name || std::ranges::any_of(names, [&](const std::string& name) {
                 return argument == argument_of_.at(name);
               });
      });
      if (mention != open.end())
        open.erase(mention);
      else
        odd.emplace_back(input, names.front());
    }
    // Parameters that a call mentions and does not read were merged (module_parameters.h).
    if (odd.empty() || std::ranges::any_of(open, [&](const auto& name) { return arguments_.contains(name); }))
      return;
    for (const auto& [id, parameter] : odd) {
      const std::string& read = graph_.value(id).name;
      const auto lost = std::ranges::find_if(open, [&, input = id](const std::string& name) {
        return !known_.contains(name) && !isViewOrLayer(name) && !isOfOneKind(input, name);
      });
      if (lost != open.end()) found_.push_back({parameter, read, call.name, *lost});
    }
  }

  // One function that gives the same numbers twice, of several different ones, has the same input.
  bool isOfOneKind(ValueId id, const std::string& lost) const {
    const std::optional<Bytes> bytes = initializerBytes(graph_, id);
    if (callKind(graph_.value(id).name) != callKind(lost) || !bytes) return false;
    const std::vector<double> numbers = numbersOf(graph_.dataType(id), *bytes);
    return std::set<double>(numbers.begin(), numbers.end()).size() > 2;
  }

  const Graph& graph_;
  std::map<std::string, std::string> argument_of_;  // parameters
  std::set<std::string> arguments_;
  std::set<std::string> known_;  // what mentions may be of
  std::vector<GoneUses::Mistaken> found_;
};

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

GoneUses goneUses(const Graph& graph) {
  GoneUses uses{leftOutCalls(graph), MistakenReads(graph).run(), {}};
  for (const SignatureParameter& buffer : signatureBuffers(graph)) {
    const bool counts = buffer.name.ends_with("num_batches_tracked") ||
                        buffer.name.find("running_") != buffer.name.npos || namesBuffer(buffer.name);
    if (!counts && !findValue(graph, buffer.name).valid()) uses.buffers.push_back(buffer.name);
  }
  return uses;
}

std::vector<LostParameter> parametersOf(const Graph& graph, const GoneUses& uses) {
  constexpr int64_t kMostFolded = 8192;  // elements, of the exporter's optimizer
  std::map<std::string, LostParameter> found;
  for (const GoneUses::Mistaken& mistaken : uses.mistaken) {
    if (!stillReads(graph, mistaken)) continue;
    found.emplace(mistaken.parameter,
                  LostParameter{mistaken.parameter,
                                fmt::format("'{}' reads '{}' in the place of '{}', which was equal to it",
                                            mistaken.reader, mistaken.read, mistaken.lost)});
  }
  if (uses.left_out.empty()) return listOf(std::move(found));
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isMarkedParameter(value) || !isFloatingPoint(value.data_type) ||
        elementCount(graph.shape(id)) > kMostFolded || !isConvertible(value.data_type, DataType::kFloat64))
      continue;
    const std::optional<Bytes> bytes = initializerBytes(graph, id);
    if (!bytes || bytes->empty()) continue;
    const bool neutral = mayBeNeutral(numbersOf(value.data_type, *bytes));
    for (const LeftOutCall& call : uses.left_out) {
      const bool starts_at_buffer =
          !isProductCall(call.name) && std::ranges::any_of(uses.buffers, [&](const std::string& buffer) {
            return areRelated(ownerOf(buffer), ownerOf(value.name));
          });
      if (!(neutral || starts_at_buffer) || !mayRead(call, value.name)) continue;
      found.emplace(value.name,
                    LostParameter{value.name,
                                  fmt::format("'{}' may read it, too, which is left out, as one side of it "
                                              "was {}",
                                              call.name, isProductCall(call.name) ? 1 : 0),
                                  LostParameter::Instead::kItself});
    }
  }
  return listOf(std::move(found));
}

}  // namespace pipeshard
