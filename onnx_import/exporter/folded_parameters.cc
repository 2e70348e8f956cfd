#include "onnx_import/exporter/folded_parameters.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "ir/base/convert.h"
#include "ir/base/tensor_box.h"
#include "onnx_import/exporter/parameter_copies.h"
#include "onnx_import/exporter/parameter_unfolding.h"
#include "onnx_import/exporter/recurrent_parameters.h"
#include "onnx_import/exporter/window_biases.h"
#include "onnx_import/format/initializer_bytes.h"

namespace pipeshard {
namespace {

// The places of an axis hold equal bytes.
bool isRepeated(const std::vector<std::byte>& bytes, const Shape& shape, size_t axis, size_t element_bytes) {
  size_t inner = element_bytes, outer = 1;
  for (size_t a = 0; a < shape.size(); ++a) (a < axis ? outer : inner) *= a == axis ? 1 : shape[a];
  for (size_t o = 0; o < outer; ++o) {
    const auto first = bytes.begin() + static_cast<int64_t>(o * shape[axis] * inner);
    for (int64_t place = 1; place < shape[axis]; ++place) {
      if (!std::equal(first, first + inner, first + place * static_cast<int64_t>(inner))) return false;
    }
  }
  return true;
}

class Unfolder {
 public:
  explicit Unfolder(Graph& graph) : unfolding_(graph), graph_(graph) {}

  int run() {
    if (!unfolding_.hasParameters()) return 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      unfoldRecurrence(unfolding_, n);
      for (size_t i = 0; i < graph_.nodes[n].inputs.size(); ++i) unfold(n, i);
    }
    for (const Node& node : graph_.nodes) {
      for (const ValueId input : node.inputs) taken_apart_.erase(input);
    }
    for (const ValueId constant : taken_apart_) graph_.initializers.erase(constant);
    return unfolding_.finish();
  }

 private:
  void unfold(size_t reader, size_t input) {
    const ValueId constant = graph_.nodes[reader].inputs[input];
    const Fold fold = unfolding_.foldOf(constant);
    if (fold.parameters.size() != 1) return;
    const ExportedCall call = exportedCall(graph_.nodes[reader]);
    if (isCallOf(call, "group_norm")) return unfoldGroupNorm(reader, input, call, fold);
    // What is computed under torch.no_grad() may not be trained.
    if (!tracedRegion(graph_.nodes[reader]).name.empty()) return;
    if (isCallOf(call, "aten.prelu.")) return unfoldSlope(reader, input, call);
    const std::string& name = graph_.value(constant).name;
    if (callKind(name) == "add") return unfoldOnePlus(reader, input, call, fold);
    const bool is_argument = std::ranges::find(call.arguments, name) != call.arguments.end();
    if (!is_argument) return;
    if (!unfolding_.isFree(fold.parameters[0])) return recomputeCopy(unfolding_, reader, constant, fold);
    if (unfoldWindowBiases(unfolding_, reader, constant, fold)) return;
    unfoldMoved(reader, constant, fold);
  }

  // Functions of single numbers and views, in any order: what is moved does not change what they give.
  void unfoldMoved(size_t reader, ValueId constant, Fold fold) {
    const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph_, constant);
    if (!bytes) return;
    const DataType type = graph_.dataType(constant);
    const std::optional<FoldedFunction> function = takeFunction(fold, type, *bytes);
    if (!function || !fold.hasOnly({"unsqueeze", "view", "reshape", "expand", "clone", "contiguous"})) return;
    const std::optional<std::vector<std::byte>> before = beforeFunction(*function, type, *bytes);
    if (before) unfoldViews(reader, constant, fold, *function, *before);
  }

  // Every call has parameters of its own. It mentions scale and bias in this order.
  void unfoldGroupNorm(size_t reader, size_t input, const ExportedCall& call, const Fold& fold) {
    const std::vector<std::string> names = unfolding_.mentioned(call);
    const Node& node = graph_.nodes[reader];
    const ValueId constant = node.inputs[input];
    if (names.size() != 2 || !(node.is("Mul") || node.is("Add")) || !fold.calls.empty() ||
        longAxes(graph_.shape(constant)) > 1)
      return;
    const std::string& name = names[node.is("Mul") ? 0 : 1];
    if (!unfolding_.isFree(name)) return;
    const ValueId parameter =
        unfolding_.addParameter(name, graph_.dataType(constant), {elementCount(graph_.shape(constant))},
                                graph_.initializers.at(constant));
    taken_apart_.insert(constant);
    unfolding_.addBefore(reader, [&](ReplacementWriter& writer) {
      graph_.nodes[reader].inputs[input] = writer.add(
          "Reshape", {parameter, writer.integers(graph_.shape(constant))}, graph_.dataType(parameter));
    });
  }

  // The slope of a PRelu, a vector, which the call itself brings to the rank of what it is for: the call says
  // which parameter that is, also where the file has one constant for several equal ones.
  void unfoldSlope(size_t reader, size_t input, ExportedCall call) {
    const ValueId constant = graph_.nodes[reader].inputs[input];
    const DataType type = graph_.dataType(constant);
    const Shape shape = graph_.shape(constant);
    if (!graph_.nodes[reader].is("PRelu") || input != 1 || call.arguments.size() != 2 ||
        longAxes(shape) > 1 || unfolding_.isParameter(graph_.value(constant).name))
      return;
    call.arguments.erase(call.arguments.begin());  // what it is for
    const std::vector<std::string> names = unfolding_.mentioned(call);
    if (names.empty()) return;
    ValueId slope = findValue(graph_, names[0]);
    if (!slope.valid()) {
      slope =
          unfolding_.addParameter(names[0], type, {elementCount(shape)}, graph_.initializers.at(constant));
    } else if (graph_.initializers.contains(slope) && graph_.dataType(slope) == type &&
               initializerBytes(graph_, slope) == initializerBytes(graph_, constant)) {
      unfolding_.countCopy();
    } else {
      return;
    }
    taken_apart_.insert(constant);
    unfolding_.addBefore(reader, [&](ReplacementWriter& writer) {
      graph_.nodes[reader].inputs[input] = writer.add("Reshape", {slope, writer.integers(shape)}, type);
    });
  }

  // The module of the call has the parameter, and its code adds 1; several modules may read one constant.
  void unfoldOnePlus(size_t reader, size_t input, const ExportedCall& call, const Fold& fold) {
    const std::string name = call.module + ".weight";
    const ValueId constant = graph_.nodes[reader].inputs[input];
    const std::string code = lastLineOfCode(graph_.nodes[reader]);
    const bool adds_one = code.find("1 + self.weight") != std::string::npos ||
                          code.find("1.0 + self.weight") != std::string::npos;
    if (!adds_one || !fold.hasOnly({"add", "scalar_tensor_default"}) || !unfolding_.isParameter(name) ||
        !unfolding_.isFree(name))
      return;
    const DataType type = graph_.dataType(constant);
    const Shape shape = graph_.shape(constant);
    std::optional<std::vector<std::byte>> less = lessOne(constant);
    if (!less) return;
    const ValueId parameter =
        unfolding_.addParameter(name, type, shape, Constant{type, shape, std::move(*less)});
    taken_apart_.insert(constant);
    unfolding_.addBefore(reader, [&](ReplacementWriter& writer) {
      graph_.nodes[reader].inputs[input] = writer.add("Add", {parameter, writer.number(type, 1)}, type);
    });
  }

  // Numbers that give the constant's own when 1 is added.
  std::optional<std::vector<std::byte>> lessOne(ValueId constant) const {
    const DataType type = graph_.dataType(constant);
    std::optional<std::vector<std::byte>> bytes = initializerBytes(graph_, constant);
    if (!bytes || !isConvertible(type, DataType::kFloat64)) return std::nullopt;
    std::vector<double> numbers = numbersOf(type, *bytes);
    for (double& number : numbers) number -= 1;
    std::vector<std::byte> less = bytesOf(type, numbers);
    numbers = numbersOf(type, less);
    for (double& number : numbers) number += 1;
    return bytesOf(type, numbers) == *bytes ? std::optional(std::move(less)) : std::nullopt;
  }

  // The same numbers in the same order, some of them again along axes that expand() has made longer, `before`
  // a function was computed of each.
  void unfoldViews(size_t reader, ValueId constant, const Fold& fold, const FoldedFunction& function,
                   const std::vector<std::byte>& before) {
    const Shape shape = graph_.shape(constant);
    const bool expands = fold.count("expand") > 0;
    const std::optional<Shape> own = expands ? notExpanded(constant) : notViewed(shape, fold);
    if (!own) return;
    const DataType type = graph_.dataType(constant);
    Initializer content = graph_.initializers.at(constant);
    if (expands || !function.empty())
      content = Constant{type, *own, expands ? firstOf(before, type, shape, *own) : before};
    const ValueId parameter = unfolding_.addParameter(fold.parameters[0], type, *own, std::move(content));
    std::vector<std::string> operators = function;
    if (function.empty() || *own != shape) operators.emplace_back(expands ? "Expand" : "Reshape");
    unfolding_.compute(reader, constant, parameter, operators);
  }

  // With 1 for each axis along which all is equal. Equal numbers everywhere (a token of zeros) do not tell:
  // then that of the batch, which is the first, if all others but the last are 1.
  std::optional<Shape> notExpanded(ValueId constant) const {
    Shape shape = graph_.shape(constant);
    const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph_, constant);
    if (!bytes || shape.empty()) return std::nullopt;
    const size_t element = dataTypeSize(graph_.dataType(constant));
    std::vector<size_t> repeated;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] > 1 && isRepeated(*bytes, shape, axis, element)) repeated.push_back(axis);
    }
    if (std::ssize(repeated) == longAxes(shape)) {
      const Shape inner(shape.begin() + 1, shape.end());
      if (!inner.empty() && longAxes(inner) > (inner.back() > 1 ? 1 : 0)) return std::nullopt;
      repeated = {0};
    }
    for (const size_t axis : repeated) shape[axis] = 1;
    return shape;
  }

  // Without the axes that unsqueeze() has added, where the file tells which they are; a vector, where only
  // one axis is longer than 1.
  static Shape notViewed(const Shape& shape, const Fold& fold) {
    if (fold.calls.empty()) return shape;
    const bool vector = longAxes(shape) == 1 && fold.count("unsqueeze") == 0;
    const auto ones = std::ranges::count(shape, int64_t{1});
    if (!vector && (ones != fold.count("unsqueeze") || !fold.hasOnly({"unsqueeze", "clone", "contiguous"})))
      return shape;
    Shape own = shape;
    std::erase(own, int64_t{1});
    return own;
  }

  // Of elements of `shape` those at place 0 of the axes that `own` has as 1.
  static std::vector<std::byte> firstOf(const std::vector<std::byte>& bytes, DataType type,
                                        const Shape& shape, const Shape& own) {
    const auto element = static_cast<int64_t>(dataTypeSize(type));
    std::vector<std::byte> first;
    const Shard box{Shape(own.size(), 0), own};
    forEachRun(shape, box, [&](int64_t begin, int64_t count) {
      const auto from = bytes.begin() + begin * element;
      first.insert(first.end(), from, from + count * element);
    });
    return first;
  }

  static int64_t longAxes(const Shape& shape) {
    return std::ranges::count_if(shape, [](int64_t extent) { return extent > 1; });
  }

  Unfolding unfolding_;
  Graph& graph_;
  std::set<ValueId> taken_apart_;  // constants that some calls do not read any more
};

}  // namespace

int unfoldParameters(Graph& graph) { return Unfolder(graph).run(); }

}  // namespace pipeshard
