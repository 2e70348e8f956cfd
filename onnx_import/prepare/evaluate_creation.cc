// Operators that make constants out of attributes and shapes.
#include <cmath>
#include <cstring>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

using Result = std::optional<std::vector<Constant>>;

// Attributes that are opaque here (sparse, external, string tensors) stay nodes.
Result constantNode(const Node& node) {
  if (node.attributes.size() != 1) return std::nullopt;
  const auto& [name, attribute] = *node.attributes.begin();
  if (const auto* constant = std::get_if<Constant>(&attribute)) return Result{{*constant}};
  if (const auto* i = std::get_if<int64_t>(&attribute)) return Result{{makeConstant<int64_t>({}, {*i})}};
  if (const auto* f = std::get_if<float>(&attribute)) return Result{{makeConstant<float>({}, {*f})}};
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) {
    return Result{{makeConstant<int64_t>({std::ssize(*ints)}, *ints)}};
  }
  if (const auto* floats = std::get_if<std::vector<float>>(&attribute)) {
    return Result{{makeConstant<float>({static_cast<int64_t>(floats->size())}, *floats)}};
  }
  return std::nullopt;
}

Result constantOfShape(const Node& node, const ConstantInputs& inputs) {
  const Shape shape = integerElements(*inputs.at(0));
  Constant value = makeScalar(DataType::kFloat32, 0);
  const auto it = node.attributes.find("value");
  if (it != node.attributes.end()) {
    const auto* given = std::get_if<Constant>(&it->second);
    if (given == nullptr) return std::nullopt;
    value = *given;
  }
  if (elementCount(value.shape) != 1)
    fail(ErrorCode::kBadModel, "attribute 'value' should have one element, found the shape {}",
         shapeToString(value.shape));
  return Result{{copyStrided(value, shape, 0, std::vector<int64_t>(shape.size(), 0))}};
}

Result range(const ConstantInputs& inputs) {
  if (inputs.size() != 3 || inputs[0]->data_type != inputs[1]->data_type ||
      inputs[0]->data_type != inputs[2]->data_type)
    return std::nullopt;
  for (const Constant* input : inputs) {
    if (elementCount(input->shape) != 1) return std::nullopt;
  }
  Result result;
  withElementType(inputs[0]->data_type, [&](auto tag) {
    using T = decltype(tag);
    const T start = *elementsOf<T>(*inputs[0]);
    const T limit = *elementsOf<T>(*inputs[1]);
    const T delta = *elementsOf<T>(*inputs[2]);
    if (delta == T{0}) return;
    const double steps =
        std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
    if (!(steps < 1e9)) return;
    std::vector<T> elements(steps > 0 ? static_cast<size_t>(steps) : 0);
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = static_cast<T>(start + static_cast<T>(i) * delta);
    Constant constant = makeZeros(inputs[0]->data_type, {std::ssize(elements)});
    if (!elements.empty()) std::memcpy(constant.bytes.data(), elements.data(), constant.bytes.size());
    result = std::vector<Constant>{std::move(constant)};
  });
  return result;
}

Result nonZero(const Constant& input) {
  std::vector<int64_t> found;
  const bool known =
      withElementType(input.data_type == DataType::kBool ? DataType::kUint8 : input.data_type, [&](auto tag) {
        using T = decltype(tag);
        for (int64_t i = 0; i < elementCount(input.shape); ++i) {
          if (elementsOf<T>(input)[i] != T{0}) found.push_back(i);
        }
      });
  if (!known) return std::nullopt;
  const Shape strides = rowMajorStrides(input.shape);
  const int64_t count = found.size();
  Constant result = makeZeros(DataType::kInt64, {std::ssize(input.shape), count});
  auto* out = elementsOf<int64_t>(result);
  for (size_t axis = 0; axis < input.shape.size(); ++axis) {
    for (int64_t flat : found) *out++ = flat / strides[axis] % input.shape[axis];
  }
  return Result{{std::move(result)}};
}

// The weights that take a spectrum of dft_length / 2 + 1 numbers to num_mel_bins: column i is a triangle,
// whose foot, top and foot lie at points i to i + 2 of those that are equally far apart in mels.
Result melWeightMatrix(const Node& node, const ConstantInputs& inputs) {
  std::vector<double> given;  // bins, length, rate, lower edge, upper edge
  for (const Constant* input : inputs) {
    if (input == nullptr || elementCount(input->shape) != 1 ||
        !isConvertible(input->data_type, DataType::kFloat64))
      return std::nullopt;
    convertElements(input->data_type, input->bytes.data(), DataType::kFloat64, &given.emplace_back(), 1);
  }
  // More than 2^24 of anything is no spectrum.
  if (given.size() != 5 || !(given[0] >= 1 && given[1] >= 1 && given[0] * given[1] < 0x1p24))
    return std::nullopt;
  const auto bins = static_cast<int64_t>(given[0]);
  const auto rows = static_cast<int64_t>(given[1]) / 2 + 1;
  const auto mels = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = mels(given[3]);
  const double step = (mels(given[4]) - low) / static_cast<double>(bins + 2);
  std::vector<int64_t> point;
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (low + static_cast<double>(i) * step) / 2595) - 1);
    const double at = std::floor((given[1] + 1) * hertz / given[2]);
    // The last point is a foot, which may lie one behind the end.
    const auto end = static_cast<double>(i == bins + 1 ? rows + 1 : rows);
    if (!(at >= (i == 0 ? 0 : static_cast<double>(point.back())) && at < end)) {
      fail(ErrorCode::kBadModel,
           "its edges, {} and {} Hz, do not lie one above the other in a spectrum of {} numbers up to {} Hz",
           given[3], given[4], rows, given[2] / 2);
    }
    point.push_back(static_cast<int64_t>(at));
  }
  std::vector<double> weights(bins * rows);
  for (int64_t i = 0; i < bins; ++i) {
    const int64_t left = point[i], top = point[i + 1], right = point[i + 2];
    for (int64_t row = left; row < top; ++row)
      weights[row * bins + i] = static_cast<double>(row - left) / static_cast<double>(top - left);
    for (int64_t row = top + 1; row < right; ++row)
      weights[row * bins + i] = static_cast<double>(right - row) / static_cast<double>(right - top);
    weights[top * bins + i] = 1;
  }
  const auto type =
      static_cast<DataType>(node.intAttribute("output_datatype", static_cast<int64_t>(DataType::kFloat32)));
  if (!isConvertible(DataType::kFloat64, type)) return std::nullopt;
  Constant result = makeZeros(type, {rows, bins});
  convertElements(DataType::kFloat64, weights.data(), type, result.bytes.data(), weights.size());
  return Result{{std::move(result)}};
}

}  // namespace

std::optional<std::vector<Constant>> evaluateCreation(const Node& node, const ConstantInputs& inputs) {
  if (node.is("Constant")) return constantNode(node);
  if (inputs.empty() || inputs[0] == nullptr) return std::nullopt;
  if (node.is("ConstantOfShape") && inputs[0]->data_type == DataType::kInt64)
    return constantOfShape(node, inputs);
  if (node.is("Range") && inputs.size() == 3 && inputs[1] != nullptr && inputs[2] != nullptr)
    return range(inputs);
  if (node.is("NonZero")) return nonZero(*inputs[0]);
  if (node.is("MelWeightMatrix")) return melWeightMatrix(node, inputs);
  return std::nullopt;
}

}  // namespace pipeshard
