#include "runtime/execute/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/execute/occupied_memory.h"

namespace pipeshard {
namespace {

// Of many blocks the earliest-first order is good enough where it needs so little more than the bound: the
// other takes seconds for a million.
constexpr size_t kManyBlocks = 1 << 14;
constexpr int64_t kLittleOfMany = 256;  // a 256th

// When blocks come and go; ascending, without duplicates.
std::vector<int64_t> momentsOf(std::span<const LiveBlock> blocks) {
  std::vector<int64_t> moments;
  for (const LiveBlock& block : blocks) {
    moments.push_back(block.begin);
    moments.push_back(block.end);
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  return moments;
}

// Places blocks in the given order, each in the smallest gap (between blocks that are live with it) that
// holds it, else on top: `place` finds and takes it.
template <class Place>
Placement placeInOrder(std::span<const LiveBlock> blocks, const std::vector<size_t>& order, int64_t alignment,
                       const Place& place) {
  Placement placement;
  placement.offsets.assign(blocks.size(), 0);
  for (const size_t b : order) {
    const LiveBlock& block = blocks[b];
    const int64_t need = alignedBytes(block.bytes, alignment);
    const int64_t offset = place(need, block.begin, block.end);
    placement.offsets[b] = offset;
    placement.total_bytes = std::max(placement.total_bytes, offset + need);
  }
  return placement;
}

// The moment when most bytes are live. Only begins can be maxima.
int64_t peakMoment(std::span<const LiveBlock> blocks, int64_t alignment, int64_t& peak_bytes) {
  std::map<int64_t, int64_t> change;
  for (const LiveBlock& block : blocks) {
    if (block.begin >= block.end) continue;
    change[block.begin] += alignedBytes(block.bytes, alignment);
    change[block.end] -= alignedBytes(block.bytes, alignment);
  }
  int64_t live = 0;
  int64_t moment = 0;
  peak_bytes = 0;
  for (const auto& [time, delta] : change) {
    live += delta;
    if (live <= peak_bytes) continue;
    peak_bytes = live;
    moment = time;
  }
  return moment;
}

}  // namespace

int64_t& partOf(MemoryParts& parts, BufferKind kind) {
  switch (kind) {
    case BufferKind::kParameter:
    case BufferKind::kWeightVersion:
    case BufferKind::kWeight: return parts.parameters;
    case BufferKind::kOptimizerState:
    case BufferKind::kForwardState:
    case BufferKind::kStep: return parts.states;
    case BufferKind::kGradient:
    case BufferKind::kAccumulator: return parts.gradients;
    case BufferKind::kInput:
    case BufferKind::kActivation: return parts.activations;
  }
  return parts.activations;
}

Placement placeBlocks(std::span<const LiveBlock> blocks, int64_t alignment) {
  std::vector<size_t> by_size;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].bytes > 0 && blocks[b].begin < blocks[b].end) by_size.push_back(b);
  }
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(-blocks[i].bytes, blocks[i].begin - blocks[i].end, blocks[i].begin);
    };
    return key(a) < key(b);
  });
  std::vector<size_t> by_time = by_size;
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
  MemoryInOrder in_order;
  Placement earliest_first = placeInOrder(
      blocks, by_time, alignment,
      [&](int64_t need, int64_t begin, int64_t end) { return in_order.place(need, begin, end); });
  const int64_t bound = liveLowerBound(blocks, alignment);
  const int64_t more = by_size.size() < kManyBlocks ? 0 : bound / kLittleOfMany;
  if (earliest_first.total_bytes <= bound + more) return earliest_first;
  OccupiedMemory occupied(momentsOf(blocks));
  Placement largest_first =
      placeInOrder(blocks, by_size, alignment, [&](int64_t need, int64_t begin, int64_t end) {
        const int64_t offset = occupied.bestFit(need, begin, end);
        occupied.occupy({offset, offset + need}, begin, end);
        return offset;
      });
  return earliest_first.total_bytes < largest_first.total_bytes ? earliest_first : largest_first;
}

void verifyPlacement(std::span<const LiveBlock> blocks, const Placement& placement, int64_t alignment) {
  PIPESHARD_CHECK(placement.offsets.size() == blocks.size(), "{} offsets for {} blocks",
                  placement.offsets.size(), blocks.size());
  // Sweep over time with the live blocks kept by offset: a block overlaps a live one only if it overlaps a
  // neighbour.
  std::vector<size_t> begins;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t offset = placement.offsets[b];
    PIPESHARD_CHECK(offset >= 0 && offset % alignment == 0, "block {} is at offset {}", b, offset);
    PIPESHARD_CHECK(offset + blocks[b].bytes <= placement.total_bytes, "block {} ends beyond the total", b);
    if (blocks[b].bytes > 0 && blocks[b].begin < blocks[b].end) begins.push_back(b);
  }
  std::vector<size_t> ends = begins;
  std::stable_sort(begins.begin(), begins.end(),
                   [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](size_t a, size_t b) { return blocks[a].end < blocks[b].end; });
  std::map<int64_t, size_t> live;
  size_t next_end = 0;
  for (const size_t b : begins) {
    while (next_end < ends.size() && blocks[ends[next_end]].end <= blocks[b].begin)
      live.erase(placement.offsets[ends[next_end++]]);
    const int64_t offset = placement.offsets[b];
    const auto [entry, inserted] = live.emplace(offset, b);
    PIPESHARD_CHECK(inserted, "blocks {} and {} are live together at offset {}", b, entry->second, offset);
    const auto after = std::next(entry);
    PIPESHARD_CHECK(after == live.end() || offset + blocks[b].bytes <= after->first,
                    "blocks {} and {} overlap", b, after->second);
    if (entry == live.begin()) continue;
    const auto before = std::prev(entry);
    PIPESHARD_CHECK(before->first + blocks[before->second].bytes <= offset, "blocks {} and {} overlap",
                    before->second, b);
  }
}

int64_t liveLowerBound(std::span<const LiveBlock> blocks, int64_t alignment) {
  int64_t peak = 0;
  peakMoment(blocks, alignment, peak);
  return peak;
}

std::vector<LiveBlock> bufferIntervals(const Program& program, const Accumulation& accumulation) {
  const int64_t end_of_step = program.instructions.size();
  std::vector<LiveBlock> blocks(program.buffers.size());
  std::vector<bool> written(program.buffers.size(), false);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Buffer& buffer = program.buffer(BufferId(b));
    // end < begin for a buffer that nothing touches: it needs no memory.
    blocks[b] = {byteCount(buffer.data_type, buffer.shape), 0, 0};
    if (!isPersistent(buffer.kind)) continue;
    blocks[b].end = end_of_step + 1;
    written[b] = true;
  }
  int64_t next = 0;
  for (const Instruction& instruction : program.instructions) {
    const int64_t i = next++;
    for (const BufferId input : instruction.inputs) {
      const BufferId id = accumulation.placeOf(input);
      PIPESHARD_CHECK(written[id.index()],
                      "rank {}, instruction {}: buffer '{}' is read before it is written", program.rank, i,
                      program.nameOf(id));
      if (instruction.kind == InstructionKind::kFree && id == input) blocks[id.index()].end = i;
    }
    for (const BufferId output : instruction.outputs) {
      const BufferId id = accumulation.placeOf(output);
      if (written[id.index()]) continue;
      written[id.index()] = true;
      blocks[id.index()].begin = i;
      blocks[id.index()].end = end_of_step + 1;
    }
  }
  return blocks;
}

std::vector<size_t> lastReads(const Program& program) {
  const size_t none = program.instructions.size();
  std::vector<size_t> last(program.buffers.size(), none);
  std::vector<bool> kept(program.buffers.size(), false);
  for (size_t b = 0; b < kept.size(); ++b) kept[b] = isPersistent(program.buffer(BufferId(b)).kind);
  for (const Result& result : program.results) kept[result.buffer.index()] = true;
  if (program.guard.valid()) kept[program.guard.index()] = true;
  size_t next = 0;
  for (const Instruction& instruction : program.instructions) {
    const size_t i = next++;
    if (instruction.kind == InstructionKind::kFree) continue;
    const bool later = instruction.background || instruction.kind == InstructionKind::kSend;
    const auto touch = [&](BufferId id, bool reads) {
      last[id.index()] = reads && instruction.kind == InstructionKind::kRun ? i : none;
      if (later) kept[id.index()] = true;
    };
    for (const BufferId id : instruction.inputs) touch(id, true);
    for (const BufferId id : instruction.outputs) touch(id, false);
  }
  for (size_t b = 0; b < last.size(); ++b) {
    if (kept[b]) last[b] = none;
  }
  return last;
}

FineIntervals fineIntervals(const Program& program, const Accumulation& accumulation,
                            std::span<const RunMoments* const> moments) {
  FineIntervals fine{bufferIntervals(program, accumulation)};
  const std::vector<LiveBlock> coarse = fine.blocks;
  for (const RunMoments* of : moments) fine.stride = std::max(fine.stride, of == nullptr ? 1 : of->count);
  for (LiveBlock& block : fine.blocks) block.begin *= fine.stride, block.end *= fine.stride;
  const std::vector<size_t> last = lastReads(program);
  size_t next = 0;
  for (const Instruction& instruction : program.instructions) {
    const size_t i = next++;
    if (moments[i] == nullptr) continue;
    const int64_t at = static_cast<int64_t>(i) * fine.stride;
    for (size_t input = 0; input < instruction.inputs.size(); ++input) {
      const BufferId id = instruction.inputs[input];
      if (last[id.index()] != i || accumulation.placeOf(id) != id) continue;
      fine.blocks[id.index()].end = at + moments[i]->input_ends[input];
    }
    std::map<size_t, int64_t> begins;  // by buffer that holds nothing before
    for (size_t output = 0; output < instruction.outputs.size(); ++output) {
      const size_t place = accumulation.placeOf(instruction.outputs[output]).index();
      if (coarse[place].begin != static_cast<int64_t>(i) ||
          isPersistent(program.buffer(BufferId(place)).kind))
        continue;
      const int64_t begin = at + moments[i]->output_begins[output];
      const auto [entry, is_new] = begins.try_emplace(place, begin);
      if (!is_new) entry->second = std::min(entry->second, begin);
    }
    for (const auto& [place, begin] : begins) fine.blocks[place].begin = begin;
  }
  return fine;
}

std::vector<int64_t> liveBytes(const FineIntervals& intervals, size_t instructions) {
  std::map<int64_t, int64_t> change;
  for (const LiveBlock& block : intervals.blocks) {
    if (block.begin >= block.end) continue;
    change[block.begin] += block.bytes;
    change[block.end] -= block.bytes;
  }
  std::vector<int64_t> live(instructions, 0);
  int64_t now = 0;
  auto next = change.begin();
  for (size_t i = 0; i < instructions; ++i) {
    const int64_t end = static_cast<int64_t>(i + 1) * intervals.stride;
    const bool changes_at_once = next != change.end() && next->first == end - intervals.stride;
    live[i] = changes_at_once ? 0 : now;
    for (; next != change.end() && next->first < end; ++next) {
      now += next->second;
      live[i] = std::max(live[i], now);
    }
  }
  return live;
}

MemoryPlan planMemory(const Program& program, const Accumulation& accumulation,
                      const FineIntervals& intervals, int64_t workspace_bytes, int64_t alignment) {
  const std::vector<LiveBlock>& blocks = intervals.blocks;
  MemoryPlan plan;
  plan.offsets.assign(blocks.size(), 0);
  int64_t top = 0;
  std::vector<LiveBlock> temporary(blocks.size());  // persistent ones stay empty here
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!isPersistent(program.buffer(BufferId(b)).kind)) {
      temporary[b] = blocks[b];
      continue;
    }
    plan.offsets[b] = top;
    top += alignedBytes(blocks[b].bytes, alignment);
  }
  const Placement placement = placeBlocks(temporary, alignment);
  verifyPlacement(temporary, placement, alignment);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!isPersistent(program.buffer(BufferId(b)).kind)) plan.offsets[b] = top + placement.offsets[b];
  }
  for (size_t b = 0; b < blocks.size(); ++b)
    plan.offsets[b] = plan.offsets[accumulation.placeOf(BufferId(b)).index()];
  plan.workspace_offset = top + placement.total_bytes;
  plan.workspace_bytes = workspace_bytes;
  plan.total_bytes = plan.workspace_offset + alignedBytes(workspace_bytes, alignment);

  int64_t peak = 0;
  const int64_t moment = peakMoment(blocks, alignment, peak);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].begin <= moment && moment < blocks[b].end)
      partOf(plan.parts, program.buffer(BufferId(b)).kind) += blocks[b].bytes;
  }
  plan.parts.workspace = workspace_bytes;
  plan.parts.padding = plan.total_bytes - plan.parts.total();
  return plan;
}

}  // namespace pipeshard
