// Which results of a run are computed where they are accumulated, so that a gradient needs no memory and no
// pass of its own.
//
//   3 run        "backward" -> "w_grad@0"                              3 run "backward" -> "w.gradient"
//   4 accumulate overwrite "w_grad@0" -> "w.gradient"    is done as    4 nothing
//   5 free       "w_grad@0"                                            5 nothing
//
// Without `overwrite`, the kernel that makes the result adds it to the accumulator (Kernel::mayAccumulate),
// to the same bits as the separate addition.
#pragma once

#include <functional>
#include <vector>

#include "ir/program/communication_order.h"
#include "ir/program/program.h"

namespace pipeshard {

class CompiledSubgraph;  // runtime/execute/subgraph.h

struct Accumulation {
  // by buffer: the accumulator in whose memory it is; invalid: it has memory of its own
  std::vector<BufferId> place;
  std::vector<bool> adds;  // by buffer: it is added to what its place holds
  std::vector<bool> done;  // by instruction: an accumulation that its run has done already

  // The buffer whose memory holds `id`.
  BufferId placeOf(BufferId id) const { return place[id.index()].valid() ? place[id.index()] : id; }
};

// A buffer is computed in its accumulator when one kRun (not in the background) writes it, only one
// kAccumulate reads it, it is no result, and no instruction from the run up to the accumulation touches the
// accumulator. `may_add(run, o)`: can the run add its output o to what is there?
Accumulation findAccumulation(const Program& program,
                              const std::function<bool(const Instruction& run, size_t output)>& may_add);

// Where buffers are if every run can add every output: nobody waits for more than a proof with these sees.
BufferPlaces mostAccumulation(const std::vector<Program>& programs);

// findAccumulation with the program's subgraphs, by SubgraphId. Error(kConfiguration) where they do not fit:
// buffers that an instruction binds, groups of collectives.
Accumulation accumulationOf(const Program& program, const std::vector<const CompiledSubgraph*>& subgraphs);

}  // namespace pipeshard
