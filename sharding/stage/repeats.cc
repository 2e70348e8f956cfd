#include "sharding/stage/repeats.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"

namespace pipeshard {
namespace {

// Larger constants are data, and no sizes or axes.
constexpr size_t kSizeConstantBytes = 512;

void addType(const Graph& graph, ValueId id, std::string& key) {
  const Value& value = graph.value(id);
  key += fmt::format("{}[", static_cast<int>(value.data_type));
  for (int64_t size : graph.shape(id)) key += fmt::format("{},", size);
  for (const std::string& symbol : value.symbols) key += symbol + ",";
  key += "]";
}

void addInput(const Graph& graph, const Node& node, size_t input, std::string& key) {
  const ValueId id = node.inputs[input];
  if (!id.valid()) {
    key += "-;";
    return;
  }
  addType(graph, id, key);
  key += graph.initializers.contains(id) ? "i" : "v";
  key += std::to_string(std::find(node.inputs.begin(), node.inputs.end(), id) - node.inputs.begin());
  const Constant* constant = graph.constant(id);
  if (constant != nullptr && constant->bytes.size() <= kSizeConstantBytes &&
      !isFloatingPoint(constant->data_type)) {
    key.append(reinterpret_cast<const char*>(constant->bytes.data()), constant->bytes.size());
  }
  key += ";";
}

}  // namespace

std::string structuralKey(const Graph& graph, const Node& node) {
  std::string key = fmt::format("{}|{}|{}|{}|", node.domain, node.op_type, node.overload, node.opset_version);
  for (const auto& [name, attribute] : node.attributes) key += name + "=" + printAttribute(attribute) + "|";
  for (size_t input = 0; input < node.inputs.size(); ++input) addInput(graph, node, input, key);
  key += ">";
  for (ValueId output : node.outputs) {
    if (output.valid()) addType(graph, output, key);
    key += ";";
  }
  return key;
}

std::vector<int> structuralNumbers(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> keys;
  for (NodeId node : nodes) {
    keys.push_back(numbers.try_emplace(structuralKey(graph, graph.node(node)), numbers.size()).first->second);
  }
  return keys;
}

RepeatedRun heaviestRun(const std::vector<int>& keys, const std::vector<int64_t>& weights,
                        size_t least_period) {
  PIPESHARD_CHECK(keys.size() == weights.size() && least_period > 0, "{} keys, {} weights", keys.size(),
                  weights.size());
  std::vector<int64_t> before(keys.size() + 1);  // by position: the weights in front of it
  for (size_t i = 0; i < keys.size(); ++i) before[i + 1] = before[i] + weights[i];
  RepeatedRun best;
  int64_t heaviest = 0;
  for (size_t period = least_period; 2 * period <= keys.size(); ++period) {
    size_t equal = 0;  // so many positions up to here equal those a period further
    for (size_t end = 0; end + period <= keys.size(); ++end) {
      if (end + period < keys.size() && keys[end] == keys[end + period]) {
        ++equal;
        continue;
      }
      const size_t begin = end - equal;
      const size_t repeats = equal / period + 1;
      const int64_t weight = repeats * (before[begin + period] - before[begin]);
      if (repeats > 1 && weight > heaviest) {
        heaviest = weight;
        best = {begin, period, repeats, equal + period};
      }
      equal = 0;
    }
  }
  return best;
}

}  // namespace pipeshard
