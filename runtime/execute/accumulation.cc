#include "runtime/execute/accumulation.h"

#include <algorithm>

namespace pipeshard {
namespace {

// By buffer: the instructions that read or write it, ascending; frees and results apart.
struct Uses {
  explicit Uses(const Program& program)
      : reads(program.buffers.size()),
        writes(program.buffers.size()),
        is_result(program.buffers.size(), false) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      for (const BufferId id : instruction.outputs) writes[id.index()].push_back(i);
      if (instruction.kind == InstructionKind::kFree) continue;
      for (const BufferId id : instruction.inputs) reads[id.index()].push_back(i);
    }
    for (const Result& result : program.results) is_result[result.buffer.index()] = true;
  }

  bool touched(BufferId id, size_t begin, size_t end) const {
    const auto within = [&](size_t i) { return i >= begin && i < end; };
    return std::any_of(reads[id.index()].begin(), reads[id.index()].end(), within) ||
           std::any_of(writes[id.index()].begin(), writes[id.index()].end(), within);
  }

  std::vector<std::vector<size_t>> reads;
  std::vector<std::vector<size_t>> writes;
  std::vector<bool> is_result;
};

}  // namespace

Accumulation findAccumulation(const Program& program,
                              const std::function<bool(const Instruction& run, size_t output)>& may_add) {
  const Uses uses(program);
  Accumulation found{std::vector<BufferId>(program.buffers.size()),
                     std::vector<bool>(program.buffers.size(), false),
                     std::vector<bool>(program.instructions.size(), false)};
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& accumulation = program.instructions[i];
    if (accumulation.kind != InstructionKind::kAccumulate) continue;
    const BufferId part = accumulation.inputs[0];
    const BufferId total = accumulation.outputs[0];
    const std::vector<size_t>& writes = uses.writes[part.index()];
    if (part == total || isPersistent(program.buffer(part).kind) || uses.is_result[part.index()]) continue;
    if (writes.size() != 1 || writes[0] >= i || uses.reads[part.index()] != std::vector<size_t>{i}) continue;
    const Instruction& run = program.instructions[writes[0]];
    if (run.kind != InstructionKind::kRun || run.background || uses.touched(total, writes[0], i)) continue;
    const auto position = std::find(run.outputs.begin(), run.outputs.end(), part) - run.outputs.begin();
    if (!accumulation.overwrite && !may_add(run, position)) continue;
    found.place[part.index()] = total;
    found.adds[part.index()] = !accumulation.overwrite;
    found.done[i] = true;
  }
  return found;
}

}  // namespace pipeshard
