// What can be done with an operator: asked of the table of operators (what workers
// have a kernel for), of gradient rules and of factor rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Whether workers can run the node, and whether they can train through it.
bool canRun(const Node& node);
bool canTrain(const Node& node);

// The operators of a prepared graph that the CPU cannot run, differentiate or cut, each with a node that uses
// it.
struct OperatorSupport {
  std::string op;  // "onnx::Conv"
  int64_t count = 0;
  std::string example;
  bool kernel = false;
  bool gradient = false;
  bool factor_rule = false;
};
std::vector<OperatorSupport> operatorSupport(const Graph& graph);

}  // namespace pipeshard
