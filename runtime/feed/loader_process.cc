#include "runtime/feed/loader_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// For a command that has closed its output, and one that was asked to end.
constexpr std::chrono::milliseconds kMoment{500};
constexpr std::chrono::milliseconds kNap{5};

// Between fork and exec: only async-signal-safe calls, since other threads may have held locks.
[[noreturn]] void becomeLoader(const char* command, int output, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  ::execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
  ::_exit(127);
}

}  // namespace

LoaderProcess::LoaderProcess(const std::string& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail(ErrorCode::kOutOfMemory, "cannot make a pipe: {}; check `ulimit -n`", std::strerror(errno));
  output_ = Descriptor(ends[0]);
  const Descriptor write_end(ends[1]);
  const int parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0)
    fail(ErrorCode::kOutOfMemory, "cannot start `{}`: {}; check `ulimit -u` and memory", command,
         std::strerror(errno));
  if (pid_ == 0) becomeLoader(command.c_str(), write_end.get(), parent);
  ::setpgid(pid_, pid_);  // whoever is first
}

LoaderProcess::~LoaderProcess() {
  ::kill(-pid_, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (!reap(false) && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kNap);
  ::kill(-pid_, SIGKILL);
  reap(true);
}

bool LoaderProcess::reap(bool wait) {
  while (!reaped_) {
    const int got = ::waitpid(pid_, &status_, wait ? 0 : WNOHANG);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return false;
    reaped_ = true;
  }
  return true;
}

std::string LoaderProcess::describeEnd(bool& failed) {
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (!reap(false) && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kNap);
  failed = reaped_ && status_ != 0;
  if (!reaped_) return "closed its output";
  if (WIFSIGNALED(status_))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status_), ::strsignal(WTERMSIG(status_)));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status_));
}

}  // namespace pipeshard
