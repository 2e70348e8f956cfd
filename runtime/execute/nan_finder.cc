#include "runtime/execute/nan_finder.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

template <typename T>
std::optional<std::pair<size_t, double>> firstIn(const T* elements, size_t count, bool also_infinite) {
  const auto* const end = elements + count;
  const auto* const found =
      std::find_if(elements, end, [&](T x) { return also_infinite ? !std::isfinite(x) : std::isnan(x); });
  if (found == end) return std::nullopt;
  return std::pair(static_cast<size_t>(found - elements), static_cast<double>(*found));
}

std::string placeOf(const Shard& box, size_t element) {
  return shapeToString(placeInBox(box, static_cast<int64_t>(element)));
}

std::string placeOf(const Shape& shape, size_t element) {
  return placeOf(Shard{Shape(shape.size(), 0), shape}, element);
}

// A value of a node on the device, as far as it can be looked at.
std::optional<std::pair<size_t, double>> lookAt(const Graph& graph, ValueId id, const void* address,
                                                DeviceQueue& queue, bool also_infinite) {
  if (!id.valid() || address == nullptr) return std::nullopt;
  const Value& value = graph.value(id);
  if (!isFloatingPoint(value.data_type)) return std::nullopt;
  const auto bytes = static_cast<size_t>(byteCount(value.data_type, *value.shape));
  return firstNotFinite(value.data_type,
                        HostView(queue, {static_cast<const std::byte*>(address), bytes}).bytes(),
                        also_infinite);
}

}  // namespace

std::optional<std::pair<size_t, double>> firstNotFinite(DataType type, std::span<const std::byte> bytes,
                                                        bool also_infinite) {
  if (!isFloatingPoint(type)) return std::nullopt;
  const size_t count = bytes.size() / static_cast<size_t>(byteCount(type, {}));
  if (type == DataType::kFloat32)
    return firstIn(reinterpret_cast<const float*>(bytes.data()), count, also_infinite);
  if (type == DataType::kFloat64)
    return firstIn(reinterpret_cast<const double*>(bytes.data()), count, also_infinite);
  std::vector<double> elements(count);
  convertElements(type, bytes.data(), DataType::kFloat64, elements.data(), count);
  return firstIn(elements.data(), count, also_infinite);
}

std::string describeNotFinite(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

void NanFinder::lookAtNode(const Graph& graph, const Node& node, std::span<const void* const> inputs,
                           std::span<void* const> outputs, DeviceQueue& queue) {
  const auto infinite_inputs = [&] {
    std::vector<std::string> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (std::find(outputs.begin(), outputs.end(), inputs[i]) != outputs.end()) continue;  // replaced
      const auto first = lookAt(graph, node.inputs[i], inputs[i], queue, true);
      if (!first) continue;
      const Value& value = graph.value(node.inputs[i]);
      found.push_back(fmt::format("'{}' has {} at {}", value.name, describeNotFinite(first->second),
                                  placeOf(*value.shape, first->first)));
    }
    return found;
  };
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!lookAt(graph, node.outputs[o], outputs[o], queue, true)) continue;
    const Value& value = graph.value(node.outputs[o]);
    const std::vector<std::string> sources = infinite_inputs();
    const auto nan = lookAt(graph, node.outputs[o], outputs[o], queue, false);
    if (nan) {
      fail(ErrorCode::kNotANumber, "its result '{}' has nan at {}, the first there is{}{}", value.name,
           placeOf(*value.shape, nan->first),
           sources.empty() ? "" : fmt::format("; of its inputs, {}", fmt::join(sources, ", ")),
           first_infinite_);
    }
    if (!sources.empty() || !first_infinite_.empty()) continue;
    const auto first = lookAt(graph, node.outputs[o], outputs[o], queue, true);
    first_infinite_ =
        fmt::format("; the first infinite value was '{}' ({} '{}'): {} at {}", value.name, node.op_type,
                    node.name, describeNotFinite(first->second), placeOf(*value.shape, first->first));
  }
}

void NanFinder::lookAtTensor(const std::string& what, DataType type, const Shard& box,
                             std::span<const std::byte> bytes, const std::string& advice) const {
  const auto nan = firstNotFinite(type, bytes, false);
  if (!nan) return;
  fail(ErrorCode::kNotANumber, "{} has nan at {}, the first there is; {}", what, placeOf(box, nan->first),
       advice);
}

}  // namespace pipeshard
