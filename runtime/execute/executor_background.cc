// Instructions that go on beside others: posting them, and waiting for them.

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/program_print.h"
#include "runtime/execute/executor_parts.h"

namespace pipeshard {

void Executor::startLane() {
  waits_ = backgroundWaits(program(), [this](BufferId id) { return accumulation_.placeOf(id); });
  posted_receives_.resize(program().instructions.size());
  if (waits_.lane.empty()) return;
  for (const size_t position : waits_.lane) {
    actionAt(position).posted = device_->makeEvent();
    actionAt(position).finished = device_->makeEvent();
  }
  if (background_ == nullptr || background_->size() != program().world_size) {
    fail(ErrorCode::kConfiguration,
         "rank {}: the program has background collectives, but there is no second communicator of {} ranks "
         "for them",
         program().rank, program().world_size);
  }
  lane_ = std::make_unique<BackgroundLane>([this](size_t k) { performInBackground(waits_.lane[k]); },
                                           [this] { communicator_->interrupt(); });
}

// The lane's error if it has failed; it came first, or follows from the same cause.
void Executor::failStep(const Error& error) {
  watch_.awaits_lane.store(false);
  for (auto& receive : posted_receives_) receive.reset();  // nothing is written into the arena any more
  std::optional<Error> first;
  if (lane_ != nullptr) {
    first = lane_->failure();
    background_->interrupt();
    lane_->settle();
  }
  if (transfers_) {
    device_->watchWaits({});
    transfers_->abort();
  }
  comeToRest();
  throw Error(first ? *first : error);
}

// While the host waits for the device, it looks whether it waits in vain.
void Executor::beginTransfers() {
  if (!transfers_) return;
  transfers_->beginStep();
  device_->watchWaits([this] {
    transfers_->look();
    watch_.waiting.store(transfers_->isWaiting(), std::memory_order_relaxed);
  });
}

void Executor::runInstruction(size_t position, int64_t step, StepReport& report) {
  Action& action = actionAt(position);
  const Instruction& form = *action.form;
  if (options_.delays != nullptr) options_.delays->pause();
  const Clock::time_point start = Clock::now();
  waitForBackground(position);
  if (!form.outputs.empty()) waitForSends(action);
  if (form.background) {
    if (isOfLane(form)) {
      compute_->record(*action.posted);
      lane_->post();
    } else {
      record_.begin(TraceLane::kPosted, position);
      action.posted_pair = record_.beginOnDevice(TraceLane::kPosted);
      posted_receives_[position] = communicator_->postReceive(form.peer, hostSide(action));
    }
  }
  report.transfer_seconds += secondsSince(start);
  if (!form.background) execute(position, step, report);
}

// What the instruction at this position, or the end of the step, needs of those in the background.
void Executor::waitForBackground(size_t position) {
  const size_t before = waits_.before[position];
  if (before > 0 && lane_->done() < before) {
    watch_.awaits_lane.store(true);
    lane_->waitFor(before, [this] { return communicator_->progress(); });
    watch_.awaits_lane.store(false);
  }
  if (before > 0) compute_->wait(*actionAt(waits_.lane[before - 1]).finished);
  for (const size_t receive : waits_.receives[position]) {
    watch_.waiting.store(true, std::memory_order_relaxed);
    const Clock::time_point start = Clock::now();
    try {
      posted_receives_[receive]->wait();
    } catch (Error& error) {
      error.addContext(describePlace(program(), receive));
      throw;
    }
    watch_.waiting.store(false, std::memory_order_relaxed);
    const Clock::time_point arrived = start + posted_receives_[receive]->waited();
    record_.endPosted(receive, arrived);
    posted_receives_[receive].reset();
    upload(actionAt(receive), *compute_);
    // straight from a device nobody says when it has come
    record_.endOnDevice(TraceLane::kPosted, actionAt(receive).posted_pair,
                        transfers_ ? Clock::time_point() : arrived);
  }
}

// By the lane's thread.
void Executor::performInBackground(size_t position) {
  Action& action = actionAt(position);
  if (options_.delays != nullptr) options_.delays->pause();
  watch_.count.fetch_add(1, std::memory_order_relaxed);
  record_.begin(TraceLane::kBackground, position);
  try {
    std::chrono::nanoseconds waited{};
    Clock::time_point met;
    lane_queue_->wait(*action.posted);
    const size_t pair = record_.beginOnDevice(TraceLane::kBackground);
    if (action.form->kind == InstructionKind::kRun) {
      action.run.run(watch_.count);
    } else {
      download(action, *lane_queue_);
      const Clock::time_point called = record_.callsPeers();
      watch_.lane_waiting.store(true);
      allReduce(action, *background_);
      watch_.lane_waiting.store(false);
      upload(action, *lane_queue_);
      waited = background_->waited();
      met = called + waited;
    }
    record_.endOnDevice(TraceLane::kBackground, pair, met);
    lane_queue_->record(*action.finished);
    record_.end(TraceLane::kBackground, waited);
  } catch (Error& error) {
    watch_.lane_waiting.store(false);
    error.addContext(fmt::format("step {}, {}", watch_.step.load(), describePlace(program(), position)));
    throw;
  }
}

}  // namespace pipeshard
