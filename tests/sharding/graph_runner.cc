#include "tests/sharding/graph_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "ir/base/error.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::testing {

namespace {

std::vector<bool> neededNodes(const Graph& graph, const std::vector<std::string>& wanted) {
  std::set<ValueId> needed;
  for (const std::string& name : wanted) needed.insert(findValue(graph, name));
  std::vector<bool> result(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    result[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                            [&](ValueId id) { return id.valid() && needed.contains(id); });
    if (result[n]) needed.insert(node.inputs.begin(), node.inputs.end());
  }
  return result;
}

const Constant& valueOf(const Graph& graph, const Tensors& values, ValueId id) {
  const auto found = values.find(graph.value(id).name);
  if (found != values.end()) return found->second;
  const Constant* constant = graph.constant(id);
  PIPESHARD_CHECK(constant != nullptr, "no data for '{}'", graph.value(id).name);
  return *constant;
}

struct Blocks {
  size_t outer = 1;
  size_t axis_size = 1;
  size_t bytes = 1;  // of one entry of the axis
};

Blocks blocksOf(const Constant& tensor, size_t axis) {
  Blocks blocks;
  for (size_t a = 0; a < axis; ++a) blocks.outer *= static_cast<size_t>(tensor.shape[a]);
  blocks.axis_size = tensor.shape[axis];
  blocks.bytes = static_cast<size_t>(rowMajorStrides(tensor.shape)[axis]) * dataTypeSize(tensor.data_type);
  return blocks;
}

template <typename T>
Constant constantOf(const Shape& shape, const std::vector<T>& elements) {
  Constant constant{dataTypeOf<T>(), shape, std::vector<std::byte>(elements.size() * sizeof(T))};
  std::memcpy(constant.bytes.data(), elements.data(), constant.bytes.size());
  return constant;
}

}  // namespace

void runNode(const Graph& graph, const Node& node, Tensors& values, Collectives* collectives) {
  KernelSpec spec;
  spec.node = &node;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (ValueId id : node.inputs) {
    spec.inputs.emplace_back();
    inputs.push_back(nullptr);
    if (!id.valid()) continue;
    const Constant& tensor = valueOf(graph, values, id);
    spec.inputs.back() = {tensor.data_type, tensor.shape, graph.constant(id)};
    inputs.back() = tensor.bytes.data();
  }
  for (ValueId id : node.outputs) {
    spec.outputs.emplace_back();
    outputs.push_back(nullptr);
    if (!id.valid()) continue;
    Constant& tensor = values[graph.value(id).name];
    tensor = {graph.dataType(id), graph.shape(id), std::vector<std::byte>(graph.bytes(id))};
    spec.outputs.back() = {tensor.data_type, tensor.shape, nullptr};
    outputs.back() = tensor.bytes.data();
  }
  const std::unique_ptr<Kernel> kernel = cpuKernels().create(spec);
  std::vector<std::byte> workspace(kernel->workspaceBytes() + 64);
  const size_t misaligned = reinterpret_cast<uintptr_t>(workspace.data()) % 64;
  kernel->run({inputs, outputs, workspace.data() + (64 - misaligned) % 64, collectives});
}

Tensors runGraph(const Graph& graph, const Tensors& given, const std::vector<std::string>& wanted,
                 Collectives* collectives) {
  const std::vector<bool> needed = neededNodes(graph, wanted);
  Tensors values = given;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (needed[n]) runNode(graph, graph.nodes[n], values, collectives);
  }
  Tensors results;
  for (const std::string& name : wanted) results[name] = valueOf(graph, values, findValue(graph, name));
  return results;
}

Constant randomReals(std::mt19937_64& generator, const Shape& shape, DataType type) {
  std::normal_distribution<double> normal;
  std::vector<double> elements(elementCount(shape));
  for (double& element : elements) element = normal(generator);
  if (type == DataType::kFloat64) return constantOf(shape, elements);
  return constantOf(shape, std::vector<float>(elements.begin(), elements.end()));
}

Constant randomIntegers(std::mt19937_64& generator, const Shape& shape, int64_t low, int64_t high) {
  std::uniform_int_distribution<int64_t> uniform(low, high - 1);
  std::vector<int64_t> elements(elementCount(shape));
  for (int64_t& element : elements) element = uniform(generator);
  return constantOf(shape, elements);
}

Constant randomFlags(std::mt19937_64& generator, const Shape& shape) {
  Constant flags{DataType::kBool, shape, std::vector<std::byte>(elementCount(shape))};
  for (std::byte& flag : flags.bytes) flag = std::byte(generator() & 1);
  return flags;
}

Constant selectAlong(const Constant& tensor, size_t axis, const std::vector<int64_t>& indices) {
  const Blocks blocks = blocksOf(tensor, axis);
  Constant part{tensor.data_type, tensor.shape, {}};
  part.shape[axis] = std::ssize(indices);
  part.bytes.resize(blocks.outer * indices.size() * blocks.bytes);
  std::byte* out = part.bytes.data();
  for (size_t o = 0; o < blocks.outer; ++o) {
    for (int64_t index : indices) {
      const size_t from = (o * blocks.axis_size + static_cast<size_t>(index)) * blocks.bytes;
      if (blocks.bytes > 0) std::memcpy(out, tensor.bytes.data() + from, blocks.bytes);
      out += blocks.bytes;
    }
  }
  return part;
}

void placeAlong(Constant& whole, const Constant& part, size_t axis, const std::vector<int64_t>& indices) {
  const Blocks blocks = blocksOf(whole, axis);
  const std::byte* in = part.bytes.data();
  for (size_t o = 0; o < blocks.outer; ++o) {
    for (int64_t index : indices) {
      const size_t to = (o * blocks.axis_size + static_cast<size_t>(index)) * blocks.bytes;
      if (blocks.bytes > 0) std::memcpy(whole.bytes.data() + to, in, blocks.bytes);
      in += blocks.bytes;
    }
  }
}

double distance(const Constant& a, const Constant& b) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  if (a.data_type != b.data_type || a.shape != b.shape) return kFar;
  const std::vector<double> left = numericElements(a);
  const std::vector<double> right = numericElements(b);
  double largest = 1;
  double difference = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i]) != std::isnan(right[i])) return kFar;
    if (std::isnan(left[i]) || left[i] == right[i]) continue;
    largest = std::max(largest, std::abs(right[i]));
    difference = std::max(difference, std::abs(left[i] - right[i]));
  }
  return difference / largest;
}

}  // namespace pipeshard::testing
