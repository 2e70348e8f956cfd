// Records what one rank does when, without allocation: numbers of instructions and times, in memory that
// somebody else may keep when this process dies. Names are put to it afterwards, from the Programs
// (runtime/job/trace_merge.h).
//
//   // the last 20 steps are kept
//   TraceRecorder recorder(rank, {{&main, live bytes by instruction}, {&last_batch, ...}}, 20);
//   recorder.place(memory);         // recorder.bytes() zeroed bytes, shared with whoever reads them
//   executor.record(&recorder, 0);  // the executor calls what follows
//   recorder.beginStep(1, 0);
//   recorder.begin(TraceLane::kForeground, 7, t);  ...  recorder.end(TraceLane::kForeground, t2, waited);
//   recorder.endStep(t3);
//   const TraceRecords records = readTraceRecords(memory);  // also when the writer was killed
//
// It is a ring of steps: when it is full, the oldest ones are overwritten. Batches of an evaluation have a
// ring of their own, as long, so that they overwrite no step. Times are nanoseconds of this machine's
// CLOCK_MONOTONIC (std::chrono::steady_clock). Cost: about as much as the two looks at the clock that an
// instruction takes anyway.
//
// Thread rules: the foreground's thread, but for calls with kBackground, which are its own thread's; that one
// does nothing while a step begins or ends.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// One instruction, or one collective inside a run.
struct TraceRecord {
  int64_t start_ns = 0;
  int64_t end_ns = 0;     // 0: it had not ended
  int64_t waited_ns = 0;  // receives and collectives: until the peers had come
  uint32_t instruction = 0;
  uint32_t part = 0;  // 0: the instruction; n: the n-th collective inside it, from 1 on
};

// kBackground: collectives of the rank's background lane. kPosted: receives that the foreground has posted
// and waits for later.
enum class TraceLane : uint8_t { kForeground, kBackground, kPosted };
inline constexpr size_t kTraceLanes = 3;

// What the recorder knows of a program.
struct TracedProgram {
  const Program* program = nullptr;
  std::vector<int64_t> live_bytes;  // by instruction: what the rank holds while it runs
  bool evaluates = false;           // held-out data, a batch where another program has a step
};

// Of one step, read back.
struct TraceStepRecords {
  int64_t step = 0;
  int64_t batch = 0;     // of the evaluation behind this step; 0: the step itself
  uint32_t program = 0;  // its place among those of the recorder
  int64_t start_ns = 0;
  int64_t end_ns = 0;  // 0: it had not ended
  std::vector<TraceRecord> lanes[kTraceLanes];
};

// Of a rank: one for every size of step, and of a batch of an evaluation.
inline constexpr size_t kMostTracedPrograms = 32;

struct TraceRecords {
  RankId rank;
  std::vector<std::vector<int64_t>> live_bytes;  // by program
  std::vector<TraceStepRecords> steps;           // as they were done
};

class TraceRecorder {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // From one to kMostTracedPrograms programs. Room for `steps` steps, and as many batches where a program
  // evaluates, or as many of them as fit `most_bytes`, at least one.
  TraceRecorder(RankId rank, std::vector<TracedProgram> programs, int64_t steps,
                size_t most_bytes = kMostBytes);

  size_t bytes() const { return bytes_; }
  // At least bytes() bytes, zeroed, 64-byte aligned; used until destruction.
  void place(std::span<std::byte> memory);

  // The job goes on behind this step: batches that are evaluated before the next one are of it.
  void goOnAfter(int64_t step) { last_step_ = step; }
  // Or, of a program that evaluates, a batch.
  void beginStep(int64_t step, uint32_t program, Time start);
  void endStep(Time end);
  // Of an instruction. Those of a lane follow each other, but for kPosted: each of these ends with endPosted.
  void begin(TraceLane lane, size_t instruction, Time start);
  void end(TraceLane lane, Time end, std::chrono::nanoseconds waited = {});
  void endPosted(size_t instruction, Time arrived, Time end);
  // Of a collective inside the instruction that has begun last.
  void beginPart(TraceLane lane, Time start);
  void endPart(TraceLane lane, Time end, std::chrono::nanoseconds waited);

  // For times that are known later. The record that has begun last on this lane, of those of the step; how
  // many a step may have; whether one is a collective inside an instruction; other times for one.
  size_t last(TraceLane lane) const { return tracks_[static_cast<size_t>(lane)].count - 1; }
  size_t room(TraceLane lane) const { return capacity_[static_cast<size_t>(lane)]; }
  bool isPart(TraceLane lane, size_t record) const {
    return tracks_[static_cast<size_t>(lane)].records[record].part > 0;
  }
  void correct(TraceLane lane, size_t record, Time start, Time end, std::chrono::nanoseconds waited);

 private:
  struct Slot;
  struct Track {
    TraceRecord* records = nullptr;
    size_t capacity = 0;
    size_t count = 0;
    size_t current = 0;  // the instruction's record
    uint32_t parts = 0;  // of it
  };

  Slot& slot(size_t index) const;
  TraceRecord* append(TraceLane lane);

  RankId rank_;
  std::vector<TracedProgram> programs_;
  size_t capacity_[kTraceLanes] = {};  // records of a step
  size_t slot_bytes_ = 0;
  size_t ring_slots_ = 0;
  size_t slots_ = 0;  // of one ring, or of two
  size_t slots_offset_ = 0;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  Slot* current_ = nullptr;
  uint64_t begun_[2] = {};  // steps, batches
  int64_t last_step_ = 0;
  Track tracks_[kTraceLanes];
};

// How many of the first bytes matter: what is behind has never been written. 0: nothing was recorded. Errors
// as below.
size_t usedTraceBytes(std::span<const std::byte> memory);

// What is there; nothing when the memory was never used. Error(kConfiguration) when it is no recording, or
// contradicts itself.
std::optional<TraceRecords> readTraceRecords(std::span<const std::byte> memory);

}  // namespace pipeshard
