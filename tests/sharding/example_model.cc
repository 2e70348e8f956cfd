#include "tests/sharding/example_model.h"

#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/prepare.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard::testing {

ForwardGraph exampleForward(const std::string& name, int64_t rows) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + name);
  const std::string loss = graph.value(graph.outputs.at(0)).name;
  PrepareOptions options;
  options.dimensions = {{"batch", rows}};
  options.supported = [](const Node& node) {
    return cpuKernels().has(node.domain, node.op_type) && hasGradientRule(node.domain, node.op_type);
  };
  ForwardGraph forward;
  forward.graph = prepareModel(std::move(graph), options);
  for (const ValueId input : forward.graph.inputs) forward.inputs.push_back({input, 0});
  forward.loss = findValue(forward.graph, loss);
  return forward;
}

}  // namespace pipeshard::testing
