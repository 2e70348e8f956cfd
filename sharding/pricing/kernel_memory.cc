#include "sharding/pricing/kernel_memory.h"

#include <algorithm>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

bool isOneMatrix(const Shape& shape) {
  return shape.size() <= 2 ||
         std::all_of(shape.begin(), shape.end() - 2, [](int64_t size) { return size == 1; });
}

}  // namespace

bool addsToResult(const Graph& graph, const Node& node) {
  switch (operatorFacts(node).adds_up) {
    case AddsUp::kNever: return false;
    case AddsUp::kAlways: return true;
    case AddsUp::kOneProduct: return isOneMatrix(graph.shape(node.outputs.at(0)));
    case AddsUp::kWithoutBias: return node.inputs.size() < 3 || !node.inputs[2].valid();
  }
  return false;
}

bool overwritesInput(const Node& node, size_t input) {
  return operatorFacts(node).overwrites.contains(input);
}

int64_t kernelWorkspace(const Node& node, const std::vector<int64_t>& inputs, int64_t output, int64_t rows) {
  if (inputs.size() < 2) return 0;
  rows = std::max<int64_t>(1, rows);
  switch (operatorFacts(node).workspace) {
    case Workspace::kNone: return 0;
    case Workspace::kConvolution: return inputs[1] + (inputs[0] + output) / rows;
    case Workspace::kConvolutionWeights: return inputs[1] + inputs[0] / rows + output;
  }
  return 0;
}

}  // namespace pipeshard
