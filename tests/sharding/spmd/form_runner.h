// Runs one operator as its exchange form: devices in threads, with real kernels and collectives
// (device_threads.h), against the operator on one device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sharding/spmd/exchange_forms.h"
#include "tests/sharding/device_threads.h"
#include "tests/sharding/graph_runner.h"

namespace pipeshard::testing {

// A graph of one node and the whole tensors that it reads.
struct FormProblem {
  Graph graph;
  Tensors given;  // by name, inputs that are no constants

  FormProblem();
  ValueId input(const std::string& name, Constant tensor);
  ValueId constant(const std::string& name, Constant tensor) {
    return GraphBuilder(graph).addConstant(name, std::move(tensor));
  }
  // Outputs are named "out0", "out1", ...; a type of kUndefined: absent.
  void node(const std::string& domain, const std::string& op_type, std::vector<ValueId> inputs,
            const std::vector<std::pair<DataType, Shape>>& outputs,
            std::map<std::string, Attribute> attributes = {});
  const Node& theNode() const { return graph.nodes.back(); }
};

// Every mesh axis cuts the factor of that name ("" : replicates).
Strategy strategyOf(const FormProblem& problem, const LogicalMesh& mesh,
                    const std::vector<std::string>& factors);

// The whole tensor's part, and the devices' local graphs; partial sums stay apart.
Constant partOf(const Constant& whole, const Shard& shard);

struct FormResult {
  std::vector<Graph> graphs;     // by device
  std::vector<Tensors> outputs;  // by device: "out0" ...
};
// Runs every device; what one throws is thrown on (the first device's).
FormResult runForm(const FormProblem& problem, const LogicalMesh& mesh, const Strategy& strategy);

// Expects that the form gives what the operator gives: within `tolerance` (distance() of graph_runner.h),
// that devices that hold the same part hold the same bits, and that all devices have the same nodes.
void expectAsWhole(const FormProblem& problem, const LogicalMesh& mesh,
                   const std::vector<std::string>& factors, double tolerance);

int countNodes(const Graph& graph, const std::string& op_type);

// Meshes and the factors of their axes on which a factor is cut: 2, 3 and 4 devices, and 2x2 with both axes
// on it.
std::vector<std::pair<LogicalMesh, std::vector<std::string>>> cutsOf(const std::string& factor);
inline double toleranceOf(DataType type) { return type == DataType::kFloat64 ? 1e-12 : 1e-5; }

}  // namespace pipeshard::testing
