// The verifier of Programs: the proof, before anything runs, that a step of all ranks together can run and
// uses its buffers soundly.
#pragma once

#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// Proves of all ranks' programs together:
//   * Messages. Every receive has its send, in a compatible order and with equal type and shape. A buffer
//     name that both sides of a pair know stands for the same content, and the same part of a tensor, so a
//     swap is found.
//   * Results. The parts of a result together are the whole. A gradient of an update is read by that update.
//   * Lifetimes. Every buffer is written before it is read, not used after it is freed, freed once, and freed
//     at all unless it is persistent or a result.
//   * Versions. All runs of a microbatch read one version of a parameter. A forward state that the runs of a
//     microbatch read is replaced before another microbatch, or the next step, reads it.
//   * Waits. No cycle exists, where receives wait for sends; frees and overwrites of sent buffers for the
//     receive; collectives, also those inside subgraphs, for their whole group; instructions for the
//     background ones whose buffers they touch.
//   * Collectives. Ranks that meet do so in the same microbatch and phase, all in the background or none.
// Throws Error(kInternal) naming rank, instruction and buffer.
void verifyPrograms(const std::vector<Program>& programs);

// What of it one program shows alone: forms, ids in range, shapes, peers and groups that exist, lifetimes and
// versions. Whoever uses a program's ids as indices needs that much. Throws likewise.
void verifyProgram(const Program& program);

// The parts of it, for ranks that stand for others (ir/program/program_set.h): all but the results of ranks
// that are a sample; and the results of all ranks, of whose programs nothing else is looked at.
void verifySample(const std::vector<Program>& programs);
void verifyResults(const std::vector<Program>& programs);

}  // namespace pipeshard
