// The engine of simulations: ranks that run lists of operations, links that carry messages, groups that meet.
// Events are handled in order of their time (at one time: in the order in which they came about), so the same
// input gives the same result.
//
// A rank has two streams: the foreground runs its operations in order, one at a time; a background operation
// runs beside it, after the background operations before it, from the moment when the foreground has come to
// it. An operation starts when its stream has come to it and all of `after` have ended.
//
//   rank 0: compute 2; send message 7 (occupancy 1, latency 3)    posted at 2, link free at 3, arrived at 6
//   rank 1: compute 1; receive message 7                          wanted at 1, ends at 6
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pipeshard {

using Ticks = int64_t;

struct EngineOperation {
  enum class Kind : uint8_t {
    kCompute,     // takes `duration`
    kSend,        // posts `message`; ends when the receiver has it
    kReceive,     // wants `message`; ends when it is there
    kCollective,  // begins when all members of `meeting` have come, takes the longest of their durations
  };
  Kind kind = Kind::kCompute;
  bool background = false;
  // kSend, kReceive: the stream goes on at once, others may wait for it (`after`)
  bool posted = false;
  Ticks duration = 0;              // kCompute, kCollective
  Ticks occupancy = 0;             // kSend: the link is taken so long
  Ticks latency = 0;               // kSend: then it takes so long
  int64_t message = -1;            // kSend, kReceive: any number from 0 on, one send and one receive each
  int64_t meeting = -1;            // kCollective: any number from 0 on
  int64_t meeting_size = 1;        // kCollective: how many operations meet
  std::vector<size_t> after = {};  // operations of this rank, by position
  int64_t memory_at_start = 0;     // changes of what the rank holds
  int64_t memory_at_end = 0;
};

struct EngineRequest {
  std::vector<std::vector<EngineOperation>> ranks;
  bool contention = true;   // the messages from one rank to another share a link, one after the other
  bool rendezvous = false;  // a message starts when it is posted and wanted; else when it is posted
  // A message travels while neither of its two ranks computes: it starts when it is posted and its receiver
  // is between two operations that compute, and neither of them computes before it has arrived. (Not with
  // `rendezvous`.)
  bool exposed = false;
};

struct OperationTimes {
  Ticks start = 0;  // kReceive, kCollective: wanted from then on
  // kReceive: the message started, but not before `start`; kCollective: all had come; else start
  Ticks begun = 0;
  Ticks end = 0;
};

struct MessageTimes {
  int64_t message = -1;
  size_t from = 0, to = 0;  // ranks
  Ticks posted = 0, started = 0, arrived = 0;
};

struct MemoryPoint {
  Ticks time = 0;
  int64_t held = 0;  // from this time on
};

struct EngineResult {
  std::vector<std::vector<OperationTimes>> ranks;  // as the operations
  std::vector<MessageTimes> messages;              // in the order in which they were posted
  std::vector<std::vector<MemoryPoint>> memory;    // by rank; times ascending, one point per time
  std::vector<int64_t> peak_memory;                // by rank; also within a moment
  Ticks end = 0;                                   // of the last operation
  // By rank: the first operation that cannot run, where operations wait for each other. Nothing anywhere: all
  // have run.
  std::vector<std::optional<size_t>> stuck;
  bool complete() const;
};

EngineResult runEngine(const EngineRequest& request);

}  // namespace pipeshard
