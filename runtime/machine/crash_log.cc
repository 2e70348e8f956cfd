#include "runtime/machine/crash_log.h"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace pipeshard {
namespace {

constexpr int kMostFrames = 64;
constexpr size_t kStackBytes = size_t{64} << 10;
constexpr std::array<int, 5> kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Set before any handler can run.
std::array<char, 128> crash_name{};

void writeOut(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) {
    // nobody reads it: the process ends all the same
  }
}

// The handler is reset before it runs (SA_RESETHAND): what is raised again ends the process.
void onCrash(int signal) {
  writeOut(crash_name.data());
  writeOut(": ended by SIG");
  const char* name = ::sigabbrev_np(signal);
  writeOut(name == nullptr ? "?" : name);
  writeOut("; backtrace:\n");
  std::array<void*, kMostFrames> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), kMostFrames), STDERR_FILENO);
  ::raise(signal);
}

}  // namespace

void writeBacktraceOnCrash(const std::string& who) {
  who.copy(crash_name.data(), crash_name.size() - 1);
  std::array<void*, 1> first{};
  ::backtrace(first.data(), 1);  // loads what it needs, which a handler may not
  static std::array<std::byte, kStackBytes> stack;
  stack_t other{};
  other.ss_sp = stack.data();
  other.ss_size = stack.size();
  ::sigaltstack(&other, nullptr);
  for (const int signal : kCrashes) {
    struct sigaction action {};
    action.sa_handler = onCrash;
    action.sa_flags = SA_ONSTACK | static_cast<int>(SA_RESETHAND) | SA_NODEFER;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace pipeshard
