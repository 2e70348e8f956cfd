#include "runtime/execute/accumulation.h"

#include <algorithm>
#include <span>

namespace pipeshard {
namespace {

// By buffer: positions of instructions, ascending; all in one list.
class PositionLists {
 public:
  // `visit` calls what it is given with every pair of a buffer and a position, in the order of positions.
  template <typename Visit>
  PositionLists(size_t buffers, const Visit& visit) : begins_(buffers + 1) {
    visit([&](BufferId id, size_t) { ++begins_[id.index() + 1]; });
    for (size_t b = 0; b < buffers; ++b) begins_[b + 1] += begins_[b];
    positions_.resize(begins_.back());
    std::vector<size_t> next = begins_;
    visit([&](BufferId id, size_t position) { positions_[next[id.index()]++] = position; });
  }

  std::span<const size_t> operator[](BufferId id) const {
    return std::span(positions_).subspan(begins_[id.index()], begins_[id.index() + 1] - begins_[id.index()]);
  }

 private:
  std::vector<size_t> begins_;
  std::vector<size_t> positions_;
};

// By buffer: the instructions that read or write it; frees and results apart.
struct Uses {
  explicit Uses(const Program& program)
      : reads(program.buffers.size(),
              [&](const auto& add) {
                for (size_t i = 0; i < program.instructions.size(); ++i) {
                  if (program.instructions[i].kind == InstructionKind::kFree) continue;
                  for (const BufferId id : program.instructions[i].inputs) add(id, i);
                }
              }),
        writes(program.buffers.size(),
               [&](const auto& add) {
                 for (size_t i = 0; i < program.instructions.size(); ++i) {
                   for (const BufferId id : program.instructions[i].outputs) add(id, i);
                 }
               }),
        is_result(program.buffers.size(), false) {
    for (const Result& result : program.results) is_result[result.buffer.index()] = true;
  }

  bool touched(BufferId id, size_t begin, size_t end) const {
    const auto within = [&](std::span<const size_t> list) {
      const auto first = std::lower_bound(list.begin(), list.end(), begin);
      return first != list.end() && *first < end;
    };
    return within(reads[id]) || within(writes[id]);
  }

  PositionLists reads;
  PositionLists writes;
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
    const std::span<const size_t> writes = uses.writes[part], reads = uses.reads[part];
    if (part == total || isPersistent(program.buffer(part).kind) || uses.is_result[part.index()]) continue;
    if (writes.size() != 1 || writes[0] >= i || reads.size() != 1 || reads[0] != i) continue;
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
