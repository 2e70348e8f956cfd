// Runs a prepared graph node by node with the CPU kernels: the plainest possible execution, as an oracle for
// tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::testing {

using Tensors = std::map<std::string, Constant>;  // by value name

// Kernels are created once; run may be called often.
class Interpreter {
 public:
  // The graph must outlive the interpreter. `nodes`: which to run, in order; empty: all.
  explicit Interpreter(const Graph& graph, std::vector<NodeId> nodes = {});

  // `inputs`: graph inputs and weight references. Returns every value that was computed.
  Tensors run(const Tensors& inputs) const;

 private:
  struct Step {
    NodeId node;
    std::unique_ptr<Kernel> kernel;
  };
  const Graph& graph_;
  std::vector<Step> steps_;
};

// float64 tensors for short tests.
Constant makeTensor(Shape shape, const std::vector<double>& elements);
// Deterministic, uniform in [low, high).
Constant randomTensor(const Shape& shape, uint64_t seed, double low = -1, double high = 1);
std::vector<double> elementsOf(const Constant& tensor);

// 2-norm of a - b over 2-norm of b (over 1 if b is smaller than 1e-3).
double relativeError(const Constant& a, const Constant& b);

}  // namespace pipeshard::testing
