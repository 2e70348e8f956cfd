#include "tests/onnx_import/autodiff/interpreter.h"

#include <cmath>
#include <random>

#include "ir/base/error.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard::testing {
namespace {

TensorSpec specOf(const Graph& graph, ValueId id) {
  if (!id.valid()) return {};
  return {graph.dataType(id), graph.shape(id), graph.constant(id)};
}

std::unique_ptr<Kernel> makeNodeKernel(const Graph& graph, const Node& node) {
  KernelSpec spec;
  spec.node = &node;
  for (ValueId id : node.inputs) spec.inputs.push_back(specOf(graph, id));
  for (ValueId id : node.outputs) spec.outputs.push_back(specOf(graph, id));
  return cpuKernels().create(spec);
}

}  // namespace

Interpreter::Interpreter(const Graph& graph, std::vector<NodeId> nodes) : graph_(graph) {
  const bool all = nodes.empty();
  for (size_t n = 0; all && n < graph.nodes.size(); ++n) nodes.push_back(NodeId(n));
  for (NodeId id : nodes) steps_.push_back({id, makeNodeKernel(graph, graph.node(id))});
}

Tensors Interpreter::run(const Tensors& inputs) const {
  Tensors computed;
  const auto read = [&](ValueId id) -> const void* {
    if (!id.valid()) return nullptr;
    const std::string& name = graph_.value(id).name;
    if (const auto it = computed.find(name); it != computed.end()) return it->second.bytes.data();
    if (const auto it = inputs.find(name); it != inputs.end()) return it->second.bytes.data();
    const Constant* constant = graph_.constant(id);
    PIPESHARD_CHECK(constant != nullptr, "the interpreter was not given '{}'", name);
    return constant->bytes.data();
  };
  for (const Step& step : steps_) {
    const Node& node = graph_.node(step.node);
    std::vector<const void*> sources;
    for (ValueId id : node.inputs) sources.push_back(read(id));
    std::vector<Constant> results;
    for (ValueId id : node.outputs) {
      if (id.valid())
        results.push_back({graph_.dataType(id), graph_.shape(id), std::vector<std::byte>(graph_.bytes(id))});
      else
        results.emplace_back();
    }
    std::vector<void*> targets;
    for (size_t i = 0; i < results.size(); ++i)
      targets.push_back(node.outputs[i].valid() ? results[i].bytes.data() : nullptr);
    std::vector<std::byte> workspace(step.kernel->workspaceBytes() + 64);
    void* aligned = workspace.data();
    size_t space = workspace.size();
    std::align(64, step.kernel->workspaceBytes(), aligned, space);
    step.kernel->run({sources, targets, aligned});
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i].valid()) computed[graph_.value(node.outputs[i]).name] = std::move(results[i]);
    }
  }
  return computed;
}

Constant makeTensor(Shape shape, const std::vector<double>& elements) {
  return makeConstant<double>(std::move(shape), elements);
}

Constant randomTensor(const Shape& shape, uint64_t seed, double low, double high) {
  std::mt19937_64 generator(seed);
  std::vector<double> elements(elementCount(shape));
  for (double& element : elements)
    element = low + (high - low) * static_cast<double>(generator() >> 11) * 0x1p-53;
  return makeTensor(shape, elements);
}

std::vector<double> elementsOf(const Constant& tensor) { return numericElements(tensor); }

double relativeError(const Constant& a, const Constant& b) {
  PIPESHARD_CHECK(a.shape == b.shape, "{} against {}", shapeToString(a.shape), shapeToString(b.shape));
  const std::vector<double> left = elementsOf(a);
  const std::vector<double> right = elementsOf(b);
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    difference += (left[i] - right[i]) * (left[i] - right[i]);
    norm += right[i] * right[i];
  }
  return std::sqrt(difference) / (std::sqrt(norm) < 1e-3 ? 1 : std::sqrt(norm));
}

}  // namespace pipeshard::testing
