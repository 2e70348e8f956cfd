#include "runtime/execute/device_times.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

using std::chrono::nanoseconds;

namespace {

constexpr TraceLane kLanes[] = {TraceLane::kForeground, TraceLane::kBackground, TraceLane::kPosted};

}  // namespace

DeviceTimes::DeviceTimes(DeviceQueue& foreground, DeviceQueue& background, TraceRecorder& recorder)
    : recorder_(recorder),
      now_(foreground.device().makeTimedEvent()),
      tracks_{{foreground, {}, 0, {}}, {background, {}, 0, {}}, {foreground, {}, 0, {}}} {
  for (const TraceLane lane : kLanes) {
    Track& track = trackOf(lane);
    track.pairs.resize(recorder.room(lane));
    for (Pair& pair : track.pairs) {
      pair.begin = track.queue.device().makeTimedEvent();
      pair.end = track.queue.device().makeTimedEvent();
    }
  }
}

void DeviceTimes::beginStep(Time start) {
  for (Track& track : tracks_) {
    track.used = 0;
    track.ended = start;
  }
}

size_t DeviceTimes::begin(TraceLane lane) {
  Track& track = trackOf(lane);
  PIPESHARD_CHECK(track.used < track.pairs.size(), "more than the {} records of a step", track.pairs.size());
  Pair& pair = track.pairs[track.used];
  pair.record = recorder_.last(lane);
  track.queue.record(*pair.begin);
  return track.used++;
}

void DeviceTimes::end(TraceLane lane, size_t pair, Time met) {
  Track& track = trackOf(lane);
  track.pairs[pair].met = met;
  track.queue.record(*track.pairs[pair].end);
}

void DeviceTimes::resolve() {
  DeviceQueue& queue = tracks_[0].queue;
  const Time before = std::chrono::steady_clock::now();
  queue.record(*now_);
  queue.synchronize();
  const Time now = before + (std::chrono::steady_clock::now() - before) / 2;
  for (const TraceLane lane : kLanes) resolve(lane, now);
}

// Devices give differences that are rounded: what follows on a queue is not let begin before what it follows,
// and a collective stays inside its instruction. Receives that were posted overlap.
void DeviceTimes::resolve(TraceLane lane, Time now) {
  Track& track = trackOf(lane);
  Device& device = track.queue.device();
  Time& whole_ends = track.ended;
  Time part_ended;
  for (size_t i = 0; i < track.used; ++i) {
    const Pair& pair = track.pairs[i];
    Time start = now - device.between(*pair.begin, *now_);
    Time end = now - device.between(*pair.end, *now_);
    if (lane == TraceLane::kPosted) {
      end = std::max(start, end);
    } else if (recorder_.isPart(lane, pair.record)) {
      start = std::clamp(start, part_ended, whole_ends);
      end = std::clamp(end, start, whole_ends);
    } else {
      start = std::max(start, whole_ends);
      end = whole_ends = std::max(start, end);
    }
    part_ended = recorder_.isPart(lane, pair.record) ? end : start;
    const nanoseconds waited = pair.met == Time() ? nanoseconds() : nanoseconds(pair.met - start);
    recorder_.correct(lane, pair.record, start, end,
                      std::clamp(waited, nanoseconds(), nanoseconds(end - start)));
  }
}

}  // namespace pipeshard
