#include "tools/planning_signals.h"

#include <csignal>

#include <poll.h>

#include "runtime/job/job.h"

namespace pipeshard {

PlanningSignals::PlanningSignals(SignalWatch& signals) : thread_([this, &signals] { watch(signals); }) {}

PlanningSignals::~PlanningSignals() {
  ended_ = true;
  if (thread_.joinable()) thread_.join();
}

void PlanningSignals::finish() {
  ended_ = true;
  thread_.join();
  check();
}

void PlanningSignals::check() const {
  if (const int signal = signal_; signal != 0) throw JobInterrupted(signal);
}

void PlanningSignals::watch(SignalWatch& signals) {
  constexpr int kMilliseconds = 20;
  while (!ended_) {
    pollfd waiting{signals.descriptor(), POLLIN, 0};
    if (::poll(&waiting, 1, kMilliseconds) <= 0) continue;
    const int signal = signals.take();
    if (signal == 0) continue;
    if (signal == SIGINT && interruption_.searching && !interruption_.asked) {
      interruption_.asked = true;
    } else {
      signal_ = signal;
    }
  }
}

}  // namespace pipeshard
