#include "ir/trace/trace_names.h"

#include <fmt/format.h>

namespace pipeshard {
namespace {

std::string runName(const Subgraph& subgraph, const Instruction& instruction) {
  if (instruction.stage < 0 || instruction.microbatch < 0) return subgraph.name;
  const auto pass = [&](char kind) {
    return fmt::format("{}{}{}", instruction.stage, kind, instruction.microbatch);
  };
  switch (subgraph.phase) {
    case Phase::kForward: return (subgraph.recomputation ? "recompute " : "") + pass('F');
    case Phase::kBackwardInput: return pass('I');
    case Phase::kBackwardWeight: return pass('W');
    default: return subgraph.name;
  }
}

}  // namespace

std::string traceName(const Program& program, const Instruction& instruction) {
  if (instruction.subgraph.valid())
    return runName(program.subgraphs[instruction.subgraph.index()], instruction);
  const std::vector<BufferId>& named = instruction.outputs.empty() ? instruction.inputs : instruction.outputs;
  return fmt::format("{} {}", instructionKindName(instruction.kind),
                     named.empty() ? "" : program.buffer(named[0]).name);
}

}  // namespace pipeshard
