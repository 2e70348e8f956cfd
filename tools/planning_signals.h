// Ctrl-C while a plan is made: during a search it means "the best so far", the second time and at any other
// moment "stop". Whatever is at work then, the process ends within a second: where nobody checks in time, at
// once. A folder that is half written is then left beside its name; who plans there next removes it.
#pragma once

#include <atomic>
#include <thread>

#include "planning/request/progress.h"
#include "runtime/job/child_process.h"

namespace pipeshard {

// Takes the signals of the watch while it lives.
class PlanningSignals {
 public:
  explicit PlanningSignals(SignalWatch& signals);
  ~PlanningSignals();
  PlanningSignals(const PlanningSignals&) = delete;
  PlanningSignals& operator=(const PlanningSignals&) = delete;

  Interruption& interruption() { return interruption_; }
  void check();   // throws JobInterrupted when a signal has come that means "stop"
  void finish();  // takes no more of them, and checks: none is lost between the last check and the end

 private:
  void watch(SignalWatch& signals);
  void awaitCheck();

  Interruption interruption_;
  std::atomic<int> signal_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace pipeshard
