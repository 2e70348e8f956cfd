// Offsets for memory that is needed for a while: every buffer of a program in one arena, and the temporaries
// of a subgraph in one workspace. All sizes and lifetimes are known before the first step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/accumulation.h"

namespace pipeshard {

// `bytes` that are live in the half-open interval [begin, end) of some order (instructions, nodes).
struct LiveBlock {
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

struct Placement {
  std::vector<int64_t> offsets;  // by block; multiples of the alignment
  int64_t total_bytes = 0;
};

// Greedy best fit, tried with the earliest block first and, unless that reaches the lower bound (as chains
// do, where the other order is slow) or, of very many blocks, nearly does, with the largest block first; the
// smaller result is taken.
// Deterministic. Blocks of 0 bytes get offset 0. Never below liveLowerBound, which no placement can beat.
// `alignment`: bytes, a power of two.
Placement placeBlocks(std::span<const LiveBlock> blocks, int64_t alignment = kMemoryAlignment);

// Throws Error(kInternal) naming two blocks that are live together and overlap, or a block that is misaligned
// or outside.
void verifyPlacement(std::span<const LiveBlock> blocks, const Placement& placement,
                     int64_t alignment = kMemoryAlignment);

// The largest sum of (aligned) bytes that are live at one moment.
int64_t liveLowerBound(std::span<const LiveBlock> blocks, int64_t alignment = kMemoryAlignment);

// `bytes` up to the next multiple of `alignment`.
inline int64_t alignedBytes(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// What the memory is for, bytes, at the moment of a step when most is live; `padding` is what alignment and
// gaps add.
struct MemoryParts {
  int64_t parameters = 0;   // parameters and weights
  int64_t states = 0;       // optimizer states, forward states, step
  int64_t gradients = 0;    // accumulators of parameters' gradients, and the other accumulators
  int64_t activations = 0;  // activations, inputs
  int64_t workspace = 0;    // temporaries inside the subgraph that needs most
  int64_t padding = 0;
  int64_t total() const { return parameters + states + gradients + activations + workspace + padding; }
};

// The part that a buffer of this kind counts in.
int64_t& partOf(MemoryParts& parts, BufferKind kind);

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by buffer; that of the accumulator for one that is computed there
  int64_t workspace_offset = 0;
  int64_t workspace_bytes = 0;
  int64_t total_bytes = 0;  // of the arena; equals parts.total()
  MemoryParts parts;
};

// By buffer: persistent ones live throughout; others from the first instruction that writes them to their
// kFree, or to the end of the step. A buffer that is computed in its accumulator counts as that.
// Error(kInternal) for a buffer that is read but never written.
std::vector<LiveBlock> bufferIntervals(const Program& program, const Accumulation& accumulation);

// When a run is done with its inputs, and when it begins with its outputs: in its own steps, 0..count - 1.
struct RunMoments {
  int64_t count = 1;
  std::vector<int64_t> input_ends;     // by input: its buffer may be overwritten from then on
  std::vector<int64_t> output_begins;  // by output: what its buffer held is needed until then
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
// `moments`: by instruction; nullptr where there is nothing to know, as for all that is no kRun.
FineIntervals fineIntervals(const Program& program, const Accumulation& accumulation,
                            std::span<const RunMoments* const> moments);

// The most bytes that are live during each instruction.
std::vector<int64_t> liveBytes(const FineIntervals& intervals, size_t instructions);

// By buffer: the kRun behind which nobody needs its content, so that the run may overwrite it; instructions'
// count where there is none. Not of what lives across steps, is a result or the guard, is sent, or is touched
// in the background.
std::vector<size_t> lastReads(const Program& program);

// Persistent buffers first, then the others, then the workspace, which is live throughout. `intervals`: as
// fineIntervals.
MemoryPlan planMemory(const Program& program, const Accumulation& accumulation,
                      const FineIntervals& intervals, int64_t workspace_bytes,
                      int64_t alignment = kMemoryAlignment);

}  // namespace pipeshard
