#include "sharding/specs/node_emitter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/graph_print.h"

namespace pipeshard {
namespace {

std::string keyOf(std::string_view op_type, const std::vector<ValueId>& inputs,
                  const NodeEmitter::Attributes& attributes) {
  std::string key(op_type);
  for (const ValueId input : inputs) key += fmt::format(" {}", input);
  for (const auto& [name, attribute] : attributes)
    key += fmt::format(" {}={}", name, printAttribute(attribute));
  return key;
}

std::string_view withoutDomain(std::string_view op_type) {
  const size_t colons = op_type.find("::");
  return colons == std::string_view::npos ? op_type : op_type.substr(colons + 2);
}

}  // namespace

ValueId EmittedValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? ValueId() : found->second;
}

void NodeEmitter::append(std::string_view op_type, std::vector<ValueId> inputs, ValueId output,
                         Attributes attributes) {
  const std::string_view name = withoutDomain(op_type);
  const std::string_view domain =
      name.size() == op_type.size() ? "" : op_type.substr(0, op_type.size() - name.size() - 2);
  Graph& graph = builder_.graph();
  if (!domain.empty()) graph.opset_imports.try_emplace(std::string(domain), 1);
  Node& node = graph.node(builder_.addNode(domain, name, std::move(inputs), {output}, std::move(attributes)));
  node.name = origin_.name;
  node.metadata = origin_.metadata;
}

template <typename Key, typename Make>
ValueId NodeEmitter::once(const Key& key, const Make& make) {
  if (emitted_ == nullptr) return make();
  std::string name = key();
  const ValueId found = emitted_->find(name);
  if (found.valid()) return found;
  const ValueId made = make();
  emitted_->put(std::move(name), made);
  return made;
}

ValueId NodeEmitter::emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
                          Attributes attributes) {
  return once([&] { return keyOf(op_type, inputs, attributes); },
              [&] {
                const ValueId result = builder_.addValue(fmt::format("{}/{}", name_, withoutDomain(op_type)),
                                                         type, std::move(shape));
                append(op_type, std::move(inputs), result, std::move(attributes));
                return result;
              });
}

ValueId NodeEmitter::unsqueeze(ValueId x, const std::vector<int64_t>& axes) {
  if (axes.empty()) return x;
  Shape result = shape(x);
  for (const int64_t axis : axes) result.insert(result.begin() + axis, 1);
  return op("Unsqueeze", {x, integers(axes)}, type(x), std::move(result));
}

ValueId NodeEmitter::squeeze(ValueId x, int64_t axis) {
  Shape result = shape(x);
  result.erase(result.begin() + axis);
  return op("Squeeze", {x, integers({axis})}, type(x), std::move(result));
}

ValueId NodeEmitter::reshape(ValueId x, const std::vector<int64_t>& pattern, Shape wanted) {
  return op("Reshape", {x, integers(pattern)}, type(x), std::move(wanted));
}

ValueId NodeEmitter::allReduce(ValueId x, const std::vector<GroupId>& groups, std::string_view reduction) {
  for (const GroupId group : groups) {
    x = op("pipeshard::AllReduce", {x}, type(x), shape(x),
           {{"group", static_cast<int64_t>(group.index())}, {"reduction", std::string(reduction)}});
  }
  return x;
}

ValueId NodeEmitter::scalar(DataType type, double number) {
  return once([&] { return fmt::format("scalar {} {}", dataTypeName(type), number); },
              [&] { return builder_.addConstant(name_ + "/number", makeScalar(type, number)); });
}

ValueId NodeEmitter::integers(const std::vector<int64_t>& numbers) {
  return integersOfDevice(fmt::format("{}", fmt::join(numbers, " ")), numbers);
}

ValueId NodeEmitter::integersOfDevice(std::string_view key, const std::vector<int64_t>& numbers) {
  return once([&] { return fmt::format("integers {}", key); },
              [&] {
                const int64_t count = numbers.size();
                return builder_.addConstant(name_ + "/integers", makeConstant<int64_t>({count}, numbers));
              });
}

ValueId NodeEmitter::ofDevice(std::string_view key, DataType type, int64_t number) {
  return once(
      [&] { return fmt::format("own {} {}", dataTypeName(type), key); },
      [&] { return builder_.addConstant(name_ + "/number", makeScalar(type, static_cast<double>(number))); });
}

ValueId NodeEmitter::target(size_t position, DataType type, Shape shape) {
  if (!wants(position)) return {};
  outputs_.resize(std::max(outputs_.size(), position + 1));
  if (!outputs_[position].valid()) outputs_[position] = value(type, std::move(shape));
  return outputs_[position];
}

ValueId NodeEmitter::ofPlace(const std::string& key, DataType type, DeviceId device,
                             const std::function<int64_t(DeviceId)>& number) {
  return constantOfPlace(
      fmt::format("{} {}", dataTypeName(type), key), device,
      [type, number](DeviceId of) { return makeScalar(type, static_cast<double>(number(of))); }, "number");
}

ValueId NodeEmitter::constantOfPlace(const std::string& key, DeviceId device,
                                     std::function<Constant(DeviceId)> of, std::string_view name) {
  return once([&] { return "own constant " + key; },
              [&] {
                const ValueId value = builder_.addConstant(fmt::format("{}/{}", name_, name), of(device));
                if (emitted_ != nullptr) emitted_->own.push_back({value, key, std::move(of)});
                return value;
              });
}

void NodeEmitter::give(size_t position, std::string_view op_type, std::vector<ValueId> inputs, DataType type,
                       Shape shape, Attributes attributes) {
  const ValueId output = target(position, type, std::move(shape));
  if (output.valid()) append(op_type, std::move(inputs), output, std::move(attributes));
}

void NodeEmitter::copyAs(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes,
                         std::vector<ValueId> outputs) {
  Node node = origin_;
  node.op_type = op_type;
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  while (!outputs.empty() && !outputs.back().valid()) outputs.pop_back();
  node.outputs = std::move(outputs);
  node.opaque.clear();
  builder_.graph().nodes.push_back(std::move(node));
}

void NodeEmitter::giveElementwise(size_t position, std::string_view op_type, std::vector<ValueId> inputs) {
  const Shape result =
      inputs.size() > 1 ? broadcastShapes(shape(inputs[0]), shape(inputs[1])) : shape(inputs[0]);
  const DataType element = type(inputs[0]);
  give(position, op_type, std::move(inputs), element, result);
}

void NodeEmitter::giveCast(size_t position, ValueId x, DataType wanted) {
  give(position, "Cast", {x}, wanted, shape(x), {{"to", static_cast<int64_t>(wanted)}});
}

void NodeEmitter::giveAllReduce(size_t position, ValueId x, const std::vector<GroupId>& groups,
                                std::string_view reduction) {
  if (groups.empty()) return give(position, "Identity", {x}, type(x), shape(x));
  const ValueId before = allReduce(x, {groups.begin(), groups.end() - 1}, reduction);
  give(position, "pipeshard::AllReduce", {before}, type(x), shape(x),
       {{"group", static_cast<int64_t>(groups.back().index())}, {"reduction", std::string(reduction)}});
}

}  // namespace pipeshard
