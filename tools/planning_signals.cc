#include "tools/planning_signals.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
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

void PlanningSignals::check() {
  const int signal = signal_;
  if (signal == 0) return;
  throw JobInterrupted(signal);
}

// Until the work has ended because somebody has checked, or for long enough; then this thread ends the
// process.
void PlanningSignals::awaitCheck() {
  constexpr std::chrono::milliseconds kPatience{800};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    if (ended_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const JobInterrupted interrupted(signal_);
  fmt::print(stderr, "pipeshard: {}\n", interrupted.message());
  std::fflush(stderr);
  std::_Exit(128 + interrupted.signal());
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
      return awaitCheck();
    }
  }
}

}  // namespace pipeshard
