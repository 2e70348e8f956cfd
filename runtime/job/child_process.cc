#include "runtime/job/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int kCannotExecute = 127;
constexpr int kLongestStart = 8'000;  // milliseconds from fork to exec
std::atomic<int> signal_pipe{-1};

void onSignal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  if (::write(signal_pipe.load(), &byte, 1) < 0) {
    // A full pipe holds an earlier signal, which is the one that counts.
  }
  errno = saved;
}

std::vector<std::string> mergedEnvironment(const std::vector<std::string>& overrides) {
  std::vector<std::string> merged = overrides;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool is_overridden = false;
    for (const std::string& override : overrides)
      is_overridden |= override.compare(0, override.find('='), name) == 0;
    if (!is_overridden) merged.emplace_back(text);
  }
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Between fork and exec: only async-signal-safe calls, since other threads may have held locks.
[[noreturn]] void becomeWorker(const char* executable, char* const* arguments, char* const* environment,
                               int parent, int report, bool is_command, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotExecute);  // the parent died before the line above
  struct sigaction action {};
  action.sa_handler = is_command ? SIG_DFL : SIG_IGN;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  if (!is_command) {  // these go to all processes of a terminal, or of a job of Slurm
    ::sigaction(SIGHUP, &action, nullptr);
    ::sigaction(SIGUSR1, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!is_command) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
    if (null > STDERR_FILENO) ::close(null);
    if (output >= 0) ::dup2(output, STDERR_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    // Where memory runs out, the kernel is to take a worker, and not who can say so.
    const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0 && ::write(score, "500", 3) < 0) ::close(score);
  }
  ::execve(executable, arguments, environment);
  const int reason = errno;
  if (::write(report, &reason, sizeof reason) < 0) ::_exit(kCannotExecute);
  ::_exit(kCannotExecute);
}

int openProcessDescriptor(int pid) { return ::syscall(SYS_pidfd_open, pid, 0); }

}  // namespace

ChildProcess ChildProcess::start(const std::string& executable, const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment, bool is_command, int output) {
  std::vector<std::string> argument_texts{executable};
  argument_texts.insert(argument_texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment_texts = mergedEnvironment(environment);
  const std::vector<char*> argv = pointers(argument_texts);
  const std::vector<char*> envp = pointers(environment_texts);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0)
    fail(ErrorCode::kOutOfMemory, "cannot make a pipe: {}; check `ulimit -n`", std::strerror(errno));
  Descriptor report_read(report[0]), report_write(report[1]);

  const int parent = ::getpid();
  ChildProcess child;
  child.pid_ = ::fork();
  if (child.pid_ < 0)
    fail(ErrorCode::kOutOfMemory, "cannot start a worker: {}; check `ulimit -u` and memory",
         std::strerror(errno));
  if (child.pid_ == 0)
    becomeWorker(executable.c_str(), argv.data(), envp.data(), parent, report_write.get(), is_command,
                 output);

  report_write.reset();
  ::pollfd begun{report_read.get(), POLLIN, 0};
  int ready = -1;
  do {
    ready = ::poll(&begun, 1, kLongestStart);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    fail(ErrorCode::kPeerUnavailable,
         "a worker (pid {}) did not begin within {} s of its start; something has stopped it", child.pid_,
         kLongestStart / 1000);
  }
  int reason = 0;
  ssize_t got = -1;
  do {
    got = ::read(report_read.get(), &reason, sizeof reason);  // ends with nothing when exec succeeds
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof reason)) {
    fail(ErrorCode::kMissingInput, "cannot execute the worker '{}': {}", executable, std::strerror(reason));
  }
  child.descriptor_.reset(openProcessDescriptor(child.pid_));
  if (!child.descriptor_.valid())
    fail(ErrorCode::kConfiguration, "cannot watch a worker: pidfd_open: {}; Linux 5.3 or newer is needed",
         std::strerror(errno));
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      descriptor_(std::move(other.descriptor_)),
      status_(other.status_),
      kill_sent_(other.kill_sent_) {}

ChildProcess::~ChildProcess() { kill(); }

bool ChildProcess::tryReap() {
  if (status_ || pid_ <= 0) return status_.has_value();
  int status = 0;
  const int got = ::waitpid(pid_, &status, WNOHANG);
  if (got == pid_) status_ = status;
  return status_.has_value();
}

void ChildProcess::sendKill() {
  if (pid_ <= 0 || status_) return;
  if (!kill_sent_) kill_sent_ = std::chrono::steady_clock::now();
  ::kill(pid_, SIGKILL);
}

bool ChildProcess::kill(std::optional<std::chrono::steady_clock::time_point> deadline) {
  if (pid_ <= 0 || status_) return true;
  sendKill();
  const auto end = deadline.value_or(*kill_sent_ + kLongestEnd);
  while (true) {
    int status = 0;
    const int got = ::waitpid(pid_, &status, WNOHANG);
    if (got == pid_ || (got < 0 && errno != EINTR)) {  // else somebody else reaped it
      status_ = status;
      return true;
    }
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    ::pollfd ended{descriptor_.get(), POLLIN, 0};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
    // A child that never began has no descriptor yet: looked at again and again.
    ::poll(&ended, 1, static_cast<int>(descriptor_.valid() ? wait : std::min<int64_t>(wait, 10)));
  }
}

bool ChildProcess::endedBySigkill() const {
  return status_ && WIFSIGNALED(*status_) && WTERMSIG(*status_) == SIGKILL;
}

std::string ChildProcess::describeEnd() const {
  PIPESHARD_CHECK(status_.has_value(), "process {} has not ended", pid_);
  if (WIFSIGNALED(*status_))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(*status_), strsignal(WTERMSIG(*status_)));
  return fmt::format("ended with exit code {}", WEXITSTATUS(*status_));
}

int ChildProcess::exitCode() const {
  PIPESHARD_CHECK(status_.has_value(), "process {} has not ended", pid_);
  return WIFSIGNALED(*status_) ? 128 + WTERMSIG(*status_) : WEXITSTATUS(*status_);
}

SignalWatch::SignalWatch() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    fail(ErrorCode::kOutOfMemory, "cannot make a pipe: {}", std::strerror(errno));
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  int expected = -1;
  PIPESHARD_CHECK(signal_pipe.compare_exchange_strong(expected, ends[1]),
                  "two jobs handle signals at the same time");
  struct sigaction action {};
  action.sa_handler = onSignal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &previous_[i]);
    const bool stays_ignored =
        (kSignals[i] == SIGHUP || kSignals[i] == SIGPIPE) && previous_[i].sa_handler == SIG_IGN;
    if (!stays_ignored) ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous_[i], nullptr);
  signal_pipe.store(-1);
}

int SignalWatch::take() {
  unsigned char signal = 0;
  return ::read(read_end_.get(), &signal, 1) == 1 ? signal : 0;
}

}  // namespace pipeshard
