#include "runtime/execute/memory_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/background.h"

namespace pipeshard {
namespace {

// So many runs may each have places of their own for their temporaries. Of more, those that are alike have
// the same, and so one action does for many (executor_actions.cc).
constexpr size_t kRunsWithOwnPlaces = 256;
// Of very many blocks a plan that needs so little more than the bound is good enough: a better one takes
// seconds.
constexpr size_t kManyInArena = 1 << 14;
constexpr int64_t kLittleOfArena = 64;  // a 64th
// Placing is tried so often, and fewer times where it is of many blocks.
constexpr int kMostRounds = 8;
constexpr size_t kBlocksOfRounds = 1 << 15;
// Of still more, the temporaries of a run count as one block.
constexpr size_t kMostInArena = 1 << 17;

// Runs whose temporaries are at the same addresses.
struct RunGroup {
  const RunMemory* run = nullptr;
  std::vector<int64_t> starts;  // moments
};

std::vector<RunGroup> groupRuns(std::span<const RunMemory* const> runs, int64_t stride,
                                std::vector<uint32_t>& group_of) {
  const auto count =
      static_cast<size_t>(std::ranges::count_if(runs, [](auto* run) { return run != nullptr; }));
  std::vector<RunGroup> groups;
  std::map<const RunMemory*, size_t> group_of_alike;
  group_of.assign(runs.size(), 0);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i] == nullptr) continue;
    size_t group = groups.size();
    if (count > kRunsWithOwnPlaces) group = group_of_alike.try_emplace(runs[i], group).first->second;
    if (group == groups.size()) groups.push_back({runs[i], {}});
    groups[group].starts.push_back(static_cast<int64_t>(i) * stride);
    group_of[i] = static_cast<uint32_t>(group);
  }
  return groups;
}

// By step: of a run's temporaries.
std::vector<int64_t> bytesByStep(const RunMemory& run, int64_t alignment) {
  std::vector<int64_t> bytes(run.count + 1);
  for (const LiveBlock& block : run.temporaries) {
    bytes[block.begin] += alignedBytes(block.bytes, alignment);
    bytes[block.end] -= alignedBytes(block.bytes, alignment);
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  return bytes;
}

// What does not live throughout a step: buffers, and temporaries of runs.
class Transient {
 public:
  Transient(std::vector<LiveBlock> buffers, const std::vector<RunGroup>& groups, int64_t alignment)
      : buffers_(std::move(buffers)), groups_(groups), alignment_(alignment) {
    for (const RunGroup& group : groups_) block_count_ += group.run->temporaries.size() * group.starts.size();
    apart_ = block_count_ > kMostInArena;
    block_count_ += buffers_.size();
  }

  struct Places {
    std::vector<int64_t> offsets;  // by buffer
    std::vector<std::vector<int64_t>> run_offsets;
    int64_t total_bytes = 0;
  };
  // `bound`: of what is live at one moment.
  Places place(int64_t bound) const {
    Places above = placeAbove();
    const int64_t more = block_count_ < kManyInArena ? 0 : bound / kLittleOfArena;
    if (above.total_bytes <= bound + more) return above;
    Places among = placeAmong(bound);
    return among.total_bytes < above.total_bytes ? among : above;
  }

 private:
  // Temporaries above all buffers.
  Places placeAbove() const {
    const Placement placed = placeEarliestFirst(buffers_, alignment_);
    verifyPlacement(buffers_, placed, alignment_);
    Places places{placed.offsets, {}, placed.total_bytes};
    for (const RunGroup& group : groups_) {
      places.run_offsets.push_back(moved(group.run->apart.offsets, placed.total_bytes));
      places.total_bytes = std::max(
          places.total_bytes, placed.total_bytes + alignedBytes(group.run->apart.total_bytes, alignment_));
    }
    return places;
  }

  // Temporaries wherever buffers leave room.
  Places placeAmong(int64_t bound) const {
    std::vector<RepeatedBlock> blocks;
    for (const LiveBlock& block : buffers_) blocks.push_back({block.bytes, {block.begin, block.end}});
    for (const RunGroup& group : groups_) {
      const LiveBlock whole{group.run->apart.total_bytes, 0, group.run->count};
      const std::span<const LiveBlock> each = group.run->temporaries;
      for (const LiveBlock& block : apart_ ? std::span(&whole, 1) : each)
        blocks.push_back({block.bytes, {block.begin, block.end, group.starts}});
    }
    const int rounds = std::min<int>(kMostRounds, kBlocksOfRounds / (1 + block_count_));
    const Placement placed = placeFirstFit(blocks, bound, rounds, alignment_);
    verifyRepeated(blocks, placed);
    const auto first_of_runs = placed.offsets.begin() + std::ssize(buffers_);
    Places places{{placed.offsets.begin(), first_of_runs}, {}, placed.total_bytes};
    auto next = first_of_runs;
    for (const RunGroup& group : groups_) {
      const auto begin = next;
      next += apart_ ? 1 : std::ssize(group.run->temporaries);
      places.run_offsets.push_back(apart_ ? moved(group.run->apart.offsets, *begin)
                                          : std::vector(begin, next));
    }
    return places;
  }

  void verifyRepeated(const std::vector<RepeatedBlock>& blocks, const Placement& placed) const {
    std::vector<LiveBlock> each;
    Placement where{{}, placed.total_bytes};
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (const int64_t start : blocks[b].times.starts) {
        each.push_back({blocks[b].bytes, start + blocks[b].times.begin, start + blocks[b].times.end});
        where.offsets.push_back(placed.offsets[b]);
      }
    }
    verifyPlacement(each, where, alignment_);
  }

  static std::vector<int64_t> moved(std::vector<int64_t> offsets, int64_t by) {
    for (int64_t& offset : offsets) offset += by;
    return offsets;
  }

  std::vector<LiveBlock> buffers_;
  const std::vector<RunGroup>& groups_;
  int64_t alignment_;
  size_t block_count_ = 0;
  bool apart_ = false;  // a run's temporaries are one block
};

// A moment of the background lane's work, which no instruction's place says.
constexpr size_t kSometime = std::numeric_limits<size_t>::max();

bool isMessage(InstructionKind kind) {
  return kind == InstructionKind::kSend || kind == InstructionKind::kReceive ||
         kind == InstructionKind::kAllReduce;
}

// The last instruction that has touched each byte, or kSometime.
class LastTouches {
 public:
  void touch(int64_t offset, int64_t bytes, size_t by) {
    if (bytes == 0) return;
    split(offset);
    split(offset + bytes);
    last_.erase(last_.lower_bound(offset), last_.lower_bound(offset + bytes));
    last_[offset] = {offset + bytes, by};
  }
  std::optional<size_t> last(int64_t offset, int64_t bytes) const {
    std::optional<size_t> found;
    auto range = last_.upper_bound(offset);
    if (range != last_.begin() && std::prev(range)->second.end > offset) --range;
    for (; range != last_.end() && range->first < offset + bytes; ++range)
      found = std::max(found, std::optional(range->second.by));
    return found;
  }

 private:
  struct Range {
    int64_t end = 0;
    size_t by = 0;
  };
  // No range goes on through this place.
  void split(int64_t at) {
    const auto next = last_.lower_bound(at);
    if (next == last_.begin()) return;
    Range& before = std::prev(next)->second;
    if (before.end <= at) return;
    last_[at] = before;
    before.end = at;
  }

  std::map<int64_t, Range> last_;  // by beginning; they do not overlap
};

LivePeak highest(const std::vector<LivePeak>& peaks) {
  LivePeak most;
  for (const LivePeak& peak : peaks) {
    if (peak.bytes > most.bytes) most = peak;
  }
  return most;
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
                            std::span<const RunMemory* const> runs) {
  FineIntervals fine{bufferIntervals(program, accumulation)};
  const std::vector<LiveBlock> coarse = fine.blocks;
  for (const RunMemory* run : runs) fine.stride = std::max(fine.stride, run == nullptr ? 1 : run->count);
  for (LiveBlock& block : fine.blocks) block.begin *= fine.stride, block.end *= fine.stride;
  const std::vector<size_t> last = lastReads(program);
  size_t next = 0;
  for (const Instruction& instruction : program.instructions) {
    const size_t i = next++;
    if (runs[i] == nullptr) continue;
    const int64_t at = static_cast<int64_t>(i) * fine.stride;
    for (size_t input = 0; input < instruction.inputs.size(); ++input) {
      const BufferId id = instruction.inputs[input];
      if (last[id.index()] != i || accumulation.placeOf(id) != id) continue;
      fine.blocks[id.index()].end = at + runs[i]->input_ends[input];
    }
    std::map<size_t, int64_t> begins;  // by buffer that holds nothing before
    for (size_t output = 0; output < instruction.outputs.size(); ++output) {
      const size_t place = accumulation.placeOf(instruction.outputs[output]).index();
      if (coarse[place].begin != static_cast<int64_t>(i) ||
          isPersistent(program.buffer(BufferId(place)).kind))
        continue;
      const int64_t begin = at + runs[i]->output_begins[output];
      const auto [entry, is_new] = begins.try_emplace(place, begin);
      if (!is_new) entry->second = std::min(entry->second, begin);
    }
    for (const auto& [place, begin] : begins) fine.blocks[place].begin = begin;
  }
  return fine;
}

std::vector<LivePeak> livePeaks(const FineIntervals& intervals, std::span<const RunMemory* const> runs,
                                int64_t alignment) {
  std::map<int64_t, int64_t> change;
  for (const LiveBlock& block : intervals.blocks) {
    if (block.begin >= block.end) continue;
    change[block.begin] += alignedBytes(block.bytes, alignment);
    change[block.end] -= alignedBytes(block.bytes, alignment);
  }
  std::map<const RunMemory*, std::vector<int64_t>> by_step;
  std::vector<LivePeak> peaks(runs.size());
  int64_t buffers = 0;
  auto next = change.begin();
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * intervals.stride, end = begin + intervals.stride;
    const std::vector<int64_t>* own = nullptr;
    if (runs[i] != nullptr) {
      const auto [entry, is_new] = by_step.try_emplace(runs[i]);
      if (is_new) entry->second = bytesByStep(*runs[i], alignment);
      own = &entry->second;
    }
    peaks[i].moment = begin;
    for (int64_t moment = begin; moment < end;) {
      for (; next != change.end() && next->first <= moment; ++next) buffers += next->second;
      const int64_t step = moment - begin;
      const bool runs_now = own != nullptr && step < std::ssize(*own);
      const int64_t live = buffers + (runs_now ? (*own)[step] : 0);
      if (live > peaks[i].bytes) peaks[i] = {live, moment};
      moment = runs_now ? moment + 1 : next == change.end() ? end : std::min(end, next->first);
    }
  }
  return peaks;
}

std::vector<std::optional<size_t>> waitsOfMessages(const Program& program, const Accumulation& accumulation,
                                                   const MemoryPlan& plan,
                                                   std::span<const RunMemory* const> runs) {
  std::vector<std::optional<size_t>> waits(program.instructions.size());
  LastTouches touched, written;
  const auto touch = [&](BufferId id, size_t by, bool writes) {
    const Buffer& buffer = program.buffer(id);
    const int64_t offset = plan.offsets[id.index()], bytes = byteCount(buffer.data_type, buffer.shape);
    touched.touch(offset, bytes, by);
    if (writes) written.touch(offset, bytes, by);
  };
  const auto last = [&](BufferId id, const LastTouches& touches) {
    const Buffer& buffer = program.buffer(id);
    return touches.last(plan.offsets[id.index()], byteCount(buffer.data_type, buffer.shape));
  };
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (isPersistent(program.buffer(BufferId(b)).kind)) touch(BufferId(b), 0, true);
  }
  size_t next = 0;
  for (const Instruction& instruction : program.instructions) {
    const size_t i = next++;
    if (isMessage(instruction.kind) && !isOfLane(instruction)) {
      for (const BufferId id : instruction.inputs) waits[i] = std::max(waits[i], last(id, written));
      for (const BufferId id : instruction.outputs) waits[i] = std::max(waits[i], last(id, touched));
      if (waits[i] == kSometime) waits[i] = i + 1;
      continue;
    }
    waits[i] = i + 1;
    if (instruction.kind == InstructionKind::kFree || accumulation.done[i]) continue;
    const size_t by = isOfLane(instruction) ? kSometime : i + 1;
    for (const BufferId id : instruction.inputs) touch(id, by, false);
    for (const BufferId id : instruction.outputs) touch(id, by, true);
    if (runs[i] == nullptr) continue;
    const std::vector<int64_t>& offsets = plan.run_offsets[plan.run_of[i]];
    for (size_t t = 0; t < offsets.size(); ++t) {
      touched.touch(plan.run_base + offsets[t], runs[i]->temporaries[t].bytes, by);
      written.touch(plan.run_base + offsets[t], runs[i]->temporaries[t].bytes, by);
    }
  }
  return waits;
}

MemoryPlan planMemory(const Program& program, const Accumulation& accumulation,
                      const FineIntervals& intervals, std::span<const RunMemory* const> runs,
                      int64_t lane_bytes, int64_t alignment) {
  const std::vector<LiveBlock>& blocks = intervals.blocks;
  MemoryPlan plan;
  plan.offsets.assign(blocks.size(), 0);
  int64_t top = 0;
  std::vector<LiveBlock> transient(blocks.size());  // persistent ones stay empty here
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!isPersistent(program.buffer(BufferId(b)).kind)) {
      transient[b] = blocks[b];
      continue;
    }
    plan.offsets[b] = top;
    top += alignedBytes(blocks[b].bytes, alignment);
  }
  const std::vector<RunGroup> groups = groupRuns(runs, intervals.stride, plan.run_of);
  const int64_t bound = highest(livePeaks(intervals, runs, alignment)).bytes - top;
  Transient::Places placed = Transient(std::move(transient), groups, alignment).place(bound);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!isPersistent(program.buffer(BufferId(b)).kind)) plan.offsets[b] = top + placed.offsets[b];
  }
  for (size_t b = 0; b < blocks.size(); ++b)
    plan.offsets[b] = plan.offsets[accumulation.placeOf(BufferId(b)).index()];
  plan.run_offsets = std::move(placed.run_offsets);
  plan.run_base = top;
  plan.lane_offset = top + placed.total_bytes;
  plan.total_bytes = plan.lane_offset + alignedBytes(lane_bytes, alignment);

  const std::vector<LivePeak> peaks = livePeaks(intervals, runs);
  for (const LivePeak& peak : peaks) plan.live_bytes.push_back(peak.bytes + lane_bytes);
  const LivePeak peak = highest(peaks);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].begin > peak.moment || peak.moment >= blocks[b].end) continue;
    partOf(plan.parts, program.buffer(BufferId(b)).kind) += blocks[b].bytes;
    plan.parts.workspace -= blocks[b].bytes;
  }
  plan.parts.workspace += peak.bytes + lane_bytes;
  plan.parts.padding = plan.total_bytes - plan.parts.total();
  return plan;
}

}  // namespace pipeshard
