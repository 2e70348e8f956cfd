#include "runtime/job/restarts.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "ir/base/error.h"
#include "runtime/job/child_process.h"
#include "runtime/job/coordinator.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

bool mayBeStartedAgain(ErrorCode code) {
  return code == ErrorCode::kPeerUnavailable || code == ErrorCode::kHang || code == ErrorCode::kOutOfMemory;
}

class Restarts {
 public:
  Restarts(const JobSpec& spec, int restarts, const JobProgressCallback& progress)
      : spec_(spec), left_(restarts), allowed_(restarts), progress_(progress) {
    // One watch for all attempts: a signal between two of them must not be lost.
    if (spec_.signals == nullptr && spec_.handle_signals) spec_.signals = &own_signals_.emplace();
  }

  JobResult run() {
    while (true) {
      try {
        return runJob(spec_, [this](const JobProgress& event) { hear(event); });
      } catch (const JobInterrupted&) {
        throw;
      } catch (const Error& error) {
        if (left_ == 0 || !mayBeStartedAgain(error.code())) throw;
        const int signal = spec_.signals == nullptr ? 0 : spec_.signals->take();
        if (signal != 0) throw JobInterrupted(signal, std::string());
        startAgain(error);
      }
    }
  }

 private:
  void startAgain(const Error& error) {
    fruitless_ = newest_step_ > step_of_last_restart_ ? 1 : fruitless_ + 1;
    if (fruitless_ > kFruitlessRestarts) {
      fail(ErrorCode::kNoProgress, "no step was done after each of {} restarts; the last one ended so: {}",
           kFruitlessRestarts, error.message());
    }
    step_of_last_restart_ = newest_step_;
    --left_;
    lost_at_ = Clock::now();
    notice(fmt::format("restart {} of {}: {}", allowed_ - left_, allowed_, error.message()));
  }

  void hear(const JobProgress& event) {
    if (event.kind == JobProgress::Kind::kStep) {
      newest_step_ = std::max(newest_step_, event.step);
      if (lost_at_) {
        notice(fmt::format("step {} is done {:.1f} s after the loss; {} had been done before", event.step,
                           std::chrono::duration<double>(Clock::now() - *lost_at_).count(),
                           step_of_last_restart_));
        lost_at_.reset();
      }
    }
    if (progress_) progress_(event);
  }

  void notice(std::string text) {
    if (progress_) progress_({.kind = JobProgress::Kind::kNotice, .text = std::move(text)});
  }

  JobSpec spec_;
  int left_;
  int allowed_;
  const JobProgressCallback& progress_;
  std::optional<SignalWatch> own_signals_;
  int64_t newest_step_ = 0;  // done by any attempt
  int64_t step_of_last_restart_ = -1;
  int fruitless_ = 0;
  std::optional<Clock::time_point> lost_at_;
};

}  // namespace

JobResult runWithRestarts(const JobSpec& spec, int restarts, const JobProgressCallback& progress) {
  return Restarts(spec, restarts, progress).run();
}

}  // namespace pipeshard
