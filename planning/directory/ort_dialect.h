// `--dialect ort`: collectives as ONNX Runtime has them, in the domain com.microsoft, where those mean the
// same.
#pragma once

#include <map>
#include <string>

#include "ir/graph/graph.h"
#include "ir/program/program.h"

namespace pipeshard {

// Which collectives an expanded rank's subgraphs have.
enum class Dialect : uint8_t { kPipeshard, kOrt };

struct DialectChanges {
  int changed = 0;
  std::map<std::string, int> kept;  // by why: "ReduceScatter: ONNX Runtime has none" -> 2
};

// Changes the collectives of one subgraph of a program. ONNX Runtime's (onnxruntime/core/graph/contrib_ops/
// collective_defs.cc) meet on all ranks of the job, AllReduce sums, AllGather takes parts of one size, and
// both know some types only; its AllToAll cuts and joins the first axis, which ours never does. All others
// keep their domain; what is kept, and why, is added to `changes`.
void writeOrtCollectives(const Program& program, Graph& graph, DialectChanges& changes);

// "5 collectives in com.microsoft; 2 are pipeshard's still (ReduceScatter: ONNX Runtime has none)"
std::string describeChanges(const DialectChanges& changes);

}  // namespace pipeshard
