// The second proof of waits: for devices whose work is in queues, where a send is a rendezvous.
//
// The first (program_verify_waits.h) lets a send wait for nobody: its bytes are buffered. NCCL's do not end
// before their receives have met them, and hold up what is behind them in their queue; its kernels take room
// on the device while they wait, and those of one communicator run in the order of the calls. So what is
// sound there may wait in a circle here:
//
//   1F1B, one queue for all transfers          one queue for sends to each peer, one for receives from it
//   rank 0: send y@0, send y@1, receive dy@0   send y@1 waits in a queue of its own, and
//   rank 1: receive y@0, send dy@0, ...        dy@0 meets its send
//   y@1 waits for rank 1 to receive it, which stands behind dy@0, which stands behind y@1.
//
// With a queue per pair a rank still has several kernels that wait. communicationOrder() finds one order of
// all messages and collectives of all ranks, in which none waits for a later one. Where every rank gives its
// part of them to its device in that order, each when the one before it has ended, none of them ever waits
// for one that is behind another: one queue and one communicator are enough, and room for one kernel.
//
// What waits for what, of each rank:
//   * instructions run in their order, in the compute queue; a foreground receive or collective is part of it
//   * a send, a posted receive and a background collective begin when the compute queue has come to them
//   * what frees, or writes, a sent buffer waits for the message; so does the end of the step
//   * background collectives run one after the other; who waits for them: background.h
//   * both sides of a message, and all members of a collective, meet
#pragma once

#include <cstddef>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// How the messages of a rank share queues. A queue does its work in the order of the program.
enum class TransferQueues : uint8_t {
  kPerPair,  // one for sends to each peer, one for receives from it
  kOne,      // one for all
};

// Of one rank: its part of a message, or of a collective.
struct CommunicationStep {
  size_t instruction = 0;
  size_t collective = 0;  // of those of its subgraph
  friend bool operator==(const CommunicationStep&, const CommunicationStep&) = default;
};

// By program, and in it by buffer: the buffer in whose memory it is. Empty: each has its own.
using BufferPlaces = std::vector<std::vector<BufferId>>;

// By program: its steps, in one order that is the same for all. It follows the moments in which they could
// begin if every pass took equally long. The programs have passed verifySample (program_verify.h), and are
// those of ranks 0, 1, ...: all, or a sample that stands for them (program_set.h), whose orders are then
// those of all others. Error(kConfiguration) with the circle of waits, where it cannot be shown that a step
// ends.
std::vector<std::vector<CommunicationStep>> communicationOrder(
    const std::vector<Program>& programs, TransferQueues queues = TransferQueues::kPerPair,
    const BufferPlaces& places = {});

// For tests, the proof by itself: the same of queues that are given: one per rank, for all of its
// communication, in the order of `steps`. Errors likewise; Error(kInternal) for steps that are not those of
// the program.
void verifyCommunicationOrder(const std::vector<Program>& programs,
                              const std::vector<std::vector<CommunicationStep>>& steps,
                              const BufferPlaces& places = {});

}  // namespace pipeshard
