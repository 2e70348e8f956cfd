#include "ir/trace/trace_names.h"

#include <fmt/format.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

// Of a run that has a stage and a microbatch.
TraceWork passOf(const Subgraph& subgraph) {
  switch (subgraph.phase) {
    case Phase::kForward: return subgraph.recomputation ? TraceWork::kRecomputation : TraceWork::kForward;
    case Phase::kBackward: return TraceWork::kBackward;
    case Phase::kBackwardInput: return TraceWork::kBackwardInput;
    case Phase::kBackwardWeight: return TraceWork::kBackwardWeight;
    default: return TraceWork::kOther;
  }
}

}  // namespace

TraceWork traceWork(const Program& program, const Instruction& instruction) {
  if (instruction.kind == InstructionKind::kUpdate) return TraceWork::kUpdate;
  const bool of_pass =
      instruction.subgraph.valid() && instruction.stage.valid() && instruction.microbatch >= 0;
  return of_pass ? passOf(program.subgraphs[instruction.subgraph.index()]) : TraceWork::kOther;
}

std::string traceName(const Program& program, const Instruction& instruction) {
  const auto pass = [&](char kind) {
    return fmt::format("{}{}{}", instruction.stage, kind, instruction.microbatch);
  };
  switch (traceWork(program, instruction)) {
    case TraceWork::kForward: return pass('F');
    case TraceWork::kBackward: return pass('B');
    case TraceWork::kBackwardInput: return pass('I');
    case TraceWork::kBackwardWeight: return pass('W');
    case TraceWork::kRecomputation: return "recompute " + pass('F');
    default: break;
  }
  if (instruction.subgraph.valid()) return program.subgraphs[instruction.subgraph.index()].name;
  const std::vector<BufferId>& named = instruction.outputs.empty() ? instruction.inputs : instruction.outputs;
  return fmt::format("{} {}", instructionKindName(instruction.kind),
                     named.empty() ? "" : program.nameOf(named[0]));
}

TraceEvent traceEventOf(const Program& program, const Instruction& instruction) {
  TraceEvent event;
  event.work = traceWork(program, instruction);
  event.stage = instruction.stage;
  event.microbatch = instruction.microbatch;
  event.name = traceName(program, instruction);
  return event;
}

}  // namespace pipeshard
