#include "runtime/execute/accumulation.h"

#include <algorithm>
#include <span>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/execute/subgraph.h"

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
                size_t i = 0;
                for (const Instruction& instruction : program.instructions) {
                  if (instruction.kind != InstructionKind::kFree) {
                    for (const BufferId id : instruction.inputs) add(id, i);
                  }
                  ++i;
                }
              }),
        writes(program.buffers.size(),
               [&](const auto& add) {
                 size_t i = 0;
                 for (const Instruction& instruction : program.instructions) {
                   for (const BufferId id : instruction.outputs) add(id, i);
                   ++i;
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

void checkCollectives(const Program& program, const Subgraph& description, const CompiledSubgraph& subgraph) {
  const std::vector<GroupId> groups = subgraph.collectiveGroups();
  if (groups != description.collectives) {
    fail(ErrorCode::kConfiguration,
         "subgraph '{}': {} has collectives over the groups [{}], but program.json says [{}]; the files "
         "belong to different plans",
         description.name, description.file, fmt::join(groups, ","), fmt::join(description.collectives, ","));
  }
  for (GroupId group : groups) {
    if (group < program.groups.nextId()) continue;
    fail(ErrorCode::kConfiguration,
         "subgraph '{}': a collective goes over group {}, but the program has {} groups", description.name,
         group, program.groups.size());
  }
  subgraph.checkGroupSizes(program.groups);
}

void checkBinding(const Program& program, const Instruction& instruction, const CompiledSubgraph& subgraph) {
  if (instruction.inputs.size() != subgraph.inputCount() ||
      instruction.outputs.size() != subgraph.outputCount()) {
    fail(ErrorCode::kConfiguration,
         "subgraph '{}' has {} inputs and {} outputs, an instruction binds {} and {}", subgraph.name(),
         subgraph.inputCount(), subgraph.outputCount(), instruction.inputs.size(),
         instruction.outputs.size());
  }
  const auto check = [&](const Value& value, BufferId id) {
    const Buffer& buffer = program.buffer(id);
    if (buffer.data_type == value.data_type && value.shape && buffer.shape == *value.shape) return;
    fail(ErrorCode::kConfiguration, "subgraph '{}': '{}' is {}{}, but buffer '{}' is {}{}", subgraph.name(),
         value.name, dataTypeName(value.data_type), value.shape ? shapeToString(*value.shape) : "?",
         program.nameOf(id), dataTypeName(buffer.data_type), shapeToString(buffer.shape));
  };
  for (size_t i = 0; i < instruction.inputs.size(); ++i) check(subgraph.input(i), instruction.inputs[i]);
  for (size_t o = 0; o < instruction.outputs.size(); ++o) check(subgraph.output(o), instruction.outputs[o]);
}

}  // namespace

Accumulation accumulationOf(const Program& program, const std::vector<const CompiledSubgraph*>& subgraphs) {
  for (size_t s = 0; s < subgraphs.size(); ++s)
    checkCollectives(program, program.subgraphs[s], *subgraphs[s]);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.subgraph.valid())
      checkBinding(program, instruction, *subgraphs.at(instruction.subgraph.index()));
  }
  return findAccumulation(program, [&](const Instruction& run, size_t output) {
    return subgraphs.at(run.subgraph.index())->mayAccumulate(output);
  });
}

Accumulation findAccumulation(const Program& program,
                              const std::function<bool(const Instruction& run, size_t output)>& may_add) {
  const Uses uses(program);
  Accumulation found{std::vector<BufferId>(program.buffers.size()),
                     std::vector<bool>(program.buffers.size(), false),
                     std::vector<bool>(program.instructions.size(), false)};
  const InstructionReader instructions(program.instructions);
  size_t next = 0;
  for (const Instruction& accumulation : program.instructions) {
    const size_t i = next++;
    if (accumulation.kind != InstructionKind::kAccumulate) continue;
    const BufferId part = accumulation.inputs[0];
    const BufferId total = accumulation.outputs[0];
    const std::span<const size_t> writes = uses.writes[part], reads = uses.reads[part];
    if (part == total || isPersistent(program.buffer(part).kind) || uses.is_result[part.index()]) continue;
    if (writes.size() != 1 || writes[0] >= i || reads.size() != 1 || reads[0] != i) continue;
    const Instruction& run = instructions[writes[0]];
    if (run.kind != InstructionKind::kRun || run.background || uses.touched(total, writes[0], i)) continue;
    const auto position = std::find(run.outputs.begin(), run.outputs.end(), part) - run.outputs.begin();
    if (!accumulation.overwrite && !may_add(run, position)) continue;
    found.place[part.index()] = total;
    found.adds[part.index()] = !accumulation.overwrite;
    found.done[i] = true;
  }
  return found;
}

BufferPlaces mostAccumulation(const std::vector<Program>& programs) {
  BufferPlaces places;
  for (const Program& program : programs) {
    const Accumulation shared = findAccumulation(program, [](const Instruction&, size_t) { return true; });
    std::vector<BufferId>& own = places.emplace_back();
    for (size_t b = 0; b < program.buffers.size(); ++b) own.push_back(shared.placeOf(BufferId(b)));
  }
  return places;
}

}  // namespace pipeshard
