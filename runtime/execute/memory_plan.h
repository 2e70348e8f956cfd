// Offsets in the arena of a rank: of every buffer of its program, and of what its runs make for themselves.
// All sizes and lifetimes are known before the first step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/block_placement.h"

namespace pipeshard {

// What the memory is for, bytes, at the moment of a step when most is live; `padding` is what alignment and
// gaps add.
struct MemoryParts {
  int64_t parameters = 0;   // parameters and weights
  int64_t states = 0;       // optimizer states, forward states, step
  int64_t gradients = 0;    // accumulators of parameters' gradients, and the other accumulators
  int64_t activations = 0;  // activations, inputs
  int64_t workspace = 0;    // temporaries of the run; of the background lane all that it takes
  int64_t padding = 0;
  int64_t total() const { return parameters + states + gradients + activations + workspace + padding; }
};

// The part that a buffer of this kind counts in.
int64_t& partOf(MemoryParts& parts, BufferKind kind);

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by buffer; that of the accumulator for one that is computed there
  // Of the temporaries of runs, from run_base on; runs that are alike may have the same.
  std::vector<std::vector<int64_t>> run_offsets;
  int64_t run_base = 0;
  std::vector<uint32_t> run_of;  // by instruction: its run_offsets, where it is a run of the foreground
  int64_t lane_offset = 0;       // of the background lane's workspace
  int64_t total_bytes = 0;       // of the arena; equals parts.total()
  MemoryParts parts;
  // By instruction: the most that lives while it runs, of buffers (one computed in its accumulator counts as
  // that) and the run's temporaries, and the lane's workspace.
  std::vector<int64_t> live_bytes;
};

// By buffer: persistent ones live throughout; others from the first instruction that writes them to their
// kFree, or to the end of the step. A buffer that is computed in its accumulator counts as that.
// Error(kInternal) for a buffer that is read but never written.
std::vector<LiveBlock> bufferIntervals(const Program& program, const Accumulation& accumulation);

// What a run needs when, in its own steps, 0..count - 1.
struct RunMemory {
  int64_t count = 1;
  std::vector<int64_t> input_ends;     // by input: its buffer may be overwritten from then on
  std::vector<int64_t> output_begins;  // by output: what its buffer held is needed until then
  std::vector<LiveBlock> temporaries;  // what it makes for itself
  Placement apart;                     // where these are in memory of their own
};

// The same as bufferIntervals, in steps of runs: a buffer that a run is the last to read (lastReads) ends
// when the run is done with it, and one that a run is the first to write begins there. So what a backward
// pass makes last may lie where what it reads first was:
//
//   run 7 reads "h1" in its steps 0 and 1, "h0" in 2 and 3, and makes "dw1" in 1, "dw0" in 3
//   the buffers h1 and dw0 may be in one place, as h1 ends at 2; h0 and dw1 may not
struct FineIntervals {
  std::vector<LiveBlock> blocks;  // by buffer
  int64_t stride = 1;             // instruction i has the moments [i * stride, (i + 1) * stride)
};
// `runs`: by instruction; nullptr for all that is no run of the foreground.
FineIntervals fineIntervals(const Program& program, const Accumulation& accumulation,
                            std::span<const RunMemory* const> runs);

// The most that is live during an instruction, and when that is first so.
struct LivePeak {
  int64_t bytes = 0;
  int64_t moment = 0;
};
// By instruction: of buffers and temporaries, each a multiple of `alignment`.
std::vector<LivePeak> livePeaks(const FineIntervals& intervals, std::span<const RunMemory* const> runs,
                                int64_t alignment = 1);

// By buffer: the kRun behind which nobody needs its content, so that the run may overwrite it; instructions'
// count where there is none. Not of what lives across steps, is a result or the guard, is sent, or is touched
// in the background.
std::vector<size_t> lastReads(const Program& program);

// By instruction that communicates: for the work of how many instructions it waits, up to the last one before
// it that touches memory that it receives into, or writes memory that it sends. One more than are before it
// where nothing less is known: a collective inside a run, or of the background lane, or on what that has
// worked on. 0: for what was done before the step, with what lives across steps. None: nothing of the step
// has touched it. Messages count as no work: they wait for each other in any case.
//
//   0 run -> h0          none of these communicates
//   1 run h0 -> y
//   2 receive -> dy      1, where dy lies in the memory of what 0 has made for itself; else none
//   3 send y             2
std::vector<std::optional<size_t>> waitsOfMessages(const Program& program, const Accumulation& accumulation,
                                                   const MemoryPlan& plan,
                                                   std::span<const RunMemory* const> runs);

// Persistent buffers first, then the others and temporaries among them, then `lane_bytes`, which are the
// background lane's throughout. `intervals`: as fineIntervals.
MemoryPlan planMemory(const Program& program, const Accumulation& accumulation,
                      const FineIntervals& intervals, std::span<const RunMemory* const> runs,
                      int64_t lane_bytes = 0, int64_t alignment = kMemoryAlignment);

}  // namespace pipeshard
