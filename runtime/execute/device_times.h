// When a device that works beside the host did what the records of a trace are about. The host's times would
// say when the work was given. So each instruction and each collective gets a pair of timed events on its
// queue, and behind the step, when all has happened, its record gets the device's times on the host's clock.
//
//   DeviceTimes times(compute, lane, recorder);   // the events are made
//   times.beginStep(now);
//   recorder.begin(lane, 7, now);
//   const size_t pair = times.begin(lane);
//   ...                                           // work on the queue
//   times.end(lane, pair, met);
//   times.resolve();                              // the queues have done all that they were given
//
// The host's clock and the device's meet in one event that is recorded when all is done: the host looks at
// its clock before and behind it, and takes the middle. So times are wrong by half of that, about 10
// microseconds at most, all of a step alike. A record whose step fails keeps the host's times.
//
// Thread rules: as the recorder's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/trace/trace_recorder.h"

namespace pipeshard {

class DeviceTimes {
 public:
  using Time = TraceRecorder::Time;

  // Receives that were posted are of the foreground's queue: from where it came to the posting to where it
  // has what it takes up then.
  DeviceTimes(DeviceQueue& foreground, DeviceQueue& background, TraceRecorder& recorder);

  // All of it is later than `start`, and than earlier steps.
  void beginStep(Time start);
  // Of the record that has begun last on the lane, from here on the queue.
  size_t begin(TraceLane lane);
  // `met`: when the peers had come whom the host waited for; Time(): nobody was waited for.
  void end(TraceLane lane, size_t pair, Time met = {});
  void resolve();

 private:
  struct Pair {
    std::unique_ptr<DeviceEvent> begin, end;
    size_t record = 0;
    Time met;
  };
  struct Track {
    DeviceQueue& queue;
    std::vector<Pair> pairs;
    size_t used = 0;
    Time ended;  // the last instruction; the step's start
  };

  void resolve(TraceLane lane, Time now);
  Track& trackOf(TraceLane lane) { return tracks_[static_cast<size_t>(lane)]; }

  TraceRecorder& recorder_;
  std::unique_ptr<DeviceEvent> now_;
  Track tracks_[kTraceLanes];
};

// What an executor records of its steps: what the host knows at once and, where the device works beside it,
// the device's times. Costs nothing but looks at two pointers while nothing is recorded.
class StepRecord {
 public:
  using Time = TraceRecorder::Time;

  // From here on, as program `number` of `recorder`; `times`: nullptr where the device works in the host's
  // own time. nullptr, nullptr: no more. Not inside a step.
  void recordInto(TraceRecorder* recorder, uint32_t number, std::unique_ptr<DeviceTimes> times) {
    recorder_ = recorder;
    program_ = number;
    times_ = std::move(times);
  }
  bool isOn() const { return recorder_ != nullptr; }
  DeviceTimes* deviceTimes() const { return times_.get(); }

  void beginStep(int64_t step, Time start) {
    if (recorder_ != nullptr) recorder_->beginStep(step, program_, start);
    if (times_) times_->beginStep(start);
  }
  // All queues have done what they were given.
  void resolveStep() {
    if (times_) times_->resolve();
  }
  void endStep() {
    if (recorder_ != nullptr) recorder_->endStep(now());
  }

  // By the host.
  void begin(TraceLane lane, size_t instruction, Time start) {
    if (recorder_ != nullptr) recorder_->begin(lane, instruction, start);
  }
  void begin(TraceLane lane, size_t instruction) {
    if (recorder_ != nullptr) recorder_->begin(lane, instruction, now());
  }
  void end(TraceLane lane, Time end, std::chrono::nanoseconds waited) {
    if (recorder_ != nullptr) recorder_->end(lane, end, waited);
  }
  void end(TraceLane lane, std::chrono::nanoseconds waited) {
    if (recorder_ != nullptr) recorder_->end(lane, now(), waited);
  }
  void endPosted(size_t receive, Time arrived) {
    if (recorder_ != nullptr) recorder_->endPosted(receive, arrived, now());
  }

  // By the device: of the record that has begun last on the lane. The pair is for its end.
  size_t beginOnDevice(TraceLane lane) { return times_ ? times_->begin(lane) : 0; }
  void endOnDevice(TraceLane lane, size_t pair, Time met = {}) {
    if (times_) times_->end(lane, pair, met);
  }
  // When peers are called, for `met`; Time() where nobody asks.
  Time callsPeers() const { return times_ ? now() : Time(); }

 private:
  static Time now() { return std::chrono::steady_clock::now(); }

  TraceRecorder* recorder_ = nullptr;
  uint32_t program_ = 0;
  std::unique_ptr<DeviceTimes> times_;
};

}  // namespace pipeshard
