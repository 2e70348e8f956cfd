// What the parts of Executor share; for its own files only (executor*.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/program_print.h"
#include "runtime/execute/collective_call.h"
#include "runtime/execute/executor.h"

namespace pipeshard {

using Clock = std::chrono::steady_clock;

inline double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline std::string describePlace(const Program& program, size_t index) {
  return fmt::format("rank {}, instruction {}: {}", program.rank, index,
                     describeInstruction(program, program.instructions.copyAt(index)));
}

// What an instruction does, with its pointers. Instructions of a loop that are on the same memory in several
// iterations share one; an instruction whose work goes on behind it has its own (hasOwnAction).
struct Executor::Action {
  size_t position = 0;                // of the first instruction that does it
  const Instruction* form = nullptr;  // all but the numbers of these instructions (LoopedList::form)
  BoundRun run;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* host = nullptr;  // staging for `bytes`; nullptr: the host works on input and output themselves
  size_t bytes = 0;
  size_t elements = 0;
  DataType data_type = DataType::kUndefined;
  bool done = false;            // kAccumulate: by the run that made the input
  size_t data_input = 0;        // kLoadInput: index into program.inputs
  Shard box;                    // kLoadInput: of the whole batch
  std::vector<RowCopy> copies;  // kSlice, kConcatenate
  std::vector<uint32_t> sends;  // in pending_sends_: of the memory that it writes, sends or frees
  // Of the lane's: what is before it on this thread's queue, and its end on the lane's.
  std::unique_ptr<DeviceEvent> posted, finished;
  size_t posted_pair = 0;  // of a posted receive, in the recorded step
};

inline Executor::Action& Executor::actionAt(size_t position) { return actions_[action_of_[position]]; }

// Groups by their number in the program. Keeps the time that collectives take, which includes waiting for the
// others. Where communicators work on the host's memory and the device does not, tensors go through
// `staging`, as large as the largest call's both sides.
class Executor::GroupCollectives : public Collectives {
 public:
  GroupCollectives(const Program& program, Communicator& communicator, std::atomic<bool>& waiting,
                   DeviceQueue& queue, std::optional<MemoryBlock> staging)
      : program_(program),
        communicator_(communicator),
        waiting_(waiting),
        queue_(queue),
        staging_(std::move(staging)) {}

  void call(const CollectiveCall& call) override {
    CollectiveCall on_host = call;
    Clock::time_point start = Clock::now();
    if (recorder_ != nullptr) recorder_->beginPart(lane_, start);
    const size_t pair = times_ == nullptr ? 0 : times_->begin(lane_);
    if (staging_) {
      PIPESHARD_CHECK(call.inputBytes() + call.outputBytes() <= staging_->bytes.size(),
                      "a collective of {} and {} bytes", call.inputBytes(), call.outputBytes());
      on_host.input = staging_->bytes.data();
      on_host.output = staging_->bytes.data() + call.inputBytes();
      queue_.download(static_cast<const std::byte*>(call.input), staging_->bytes.data(), call.inputBytes());
      queue_.synchronize();
      start = Clock::now();
    }
    waiting_.store(true, std::memory_order_relaxed);
    runCollective(communicator_, program_.groups.at(call.group), on_host);
    waiting_.store(false, std::memory_order_relaxed);
    if (staging_) {
      queue_.upload(static_cast<const std::byte*>(on_host.output), static_cast<std::byte*>(call.output),
                    call.outputBytes());
    }
    const Clock::time_point end = Clock::now();
    if (recorder_ != nullptr) recorder_->endPart(lane_, end, communicator_.waited());
    if (times_ != nullptr) times_->end(lane_, pair, start + communicator_.waited());
    seconds_ += std::chrono::duration<double>(end - start).count();
  }
  // As parts of the instruction that has begun last on this lane. `times`: nullptr where the device works in
  // the host's own time.
  void record(TraceRecorder* recorder, TraceLane lane, DeviceTimes* times) {
    recorder_ = recorder;
    lane_ = lane;
    times_ = times;
  }

  // Since the last call.
  double takeSeconds() { return std::exchange(seconds_, 0); }

 private:
  const Program& program_;
  Communicator& communicator_;
  std::atomic<bool>& waiting_;
  DeviceQueue& queue_;
  std::optional<MemoryBlock> staging_;  // nothing: there is no need
  TraceRecorder* recorder_ = nullptr;
  TraceLane lane_ = TraceLane::kForeground;
  DeviceTimes* times_ = nullptr;
  double seconds_ = 0;
};

}  // namespace pipeshard
