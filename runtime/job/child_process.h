// A child process that cannot outlive this one, and signals as something to wait for. Internal to the
// coordinator.
#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/files/posix_file.h"

namespace pipeshard {

// Started by fork and exec; killed by the kernel when the thread that started it ends; killed and reaped when
// destroyed.
class ChildProcess {
 public:
  // For a process that was sent SIGKILL to be gone. One that is frozen, or waits inside the kernel, takes
  // longer: it is given up, and goes when it is thawed or its wait is over.
  static constexpr std::chrono::milliseconds kLongestEnd{5'000};

  // `arguments` without argv[0]. `environment` ("NAME=value") overrides that of this process. Standard input
  // is /dev/null, standard output goes where standard error goes, and what SignalWatch takes is ignored (the
  // parent decides when it ends); not so with `is_command`: then it reads, writes and is interrupted as if
  // the user had started it. Errors: kMissingInput (cannot be executed), kOutOfMemory (cannot fork),
  // kPeerUnavailable (stopped before it has begun).
  // `output`: where standard output and error go instead; -1: where this process's standard error goes.
  static ChildProcess start(const std::string& executable, const std::vector<std::string>& arguments,
                            const std::vector<std::string>& environment, bool is_command = false,
                            int output = -1);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  int pid() const { return pid_; }
  int descriptor() const { return descriptor_.get(); }  // readable when it has ended
  bool isReaped() const { return status_.has_value(); }
  // Takes the exit status if it has ended. Never waits.
  bool tryReap();
  // SIGKILL, and waits for the end, at most until `deadline` (default: kLongestEnd from the first call on).
  // False: it has not ended.
  bool kill(std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt);
  void sendKill();  // without waiting
  bool endedBySigkill() const;
  // "was killed by signal 9 (Killed)", "ended with exit code 3". Only when reaped.
  std::string describeEnd() const;
  int exitCode() const;  // 128 + signal if one ended it. Only when reaped.

 private:
  ChildProcess() = default;
  int pid_ = -1;
  Descriptor descriptor_;
  std::optional<int> status_;
  std::optional<std::chrono::steady_clock::time_point> kill_sent_;
};

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGPIPE (who read the output is gone) make
// `descriptor()` readable instead of ending the process; SIGHUP and SIGPIPE stay ignored where they were
// (nohup). One at a time.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  int descriptor() const { return read_end_.get(); }
  int take();  // the first signal that came, 0 if none has

 private:
  Descriptor read_end_;
  Descriptor write_end_;
  static constexpr std::array<int, 5> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> previous_{};
};

}  // namespace pipeshard
