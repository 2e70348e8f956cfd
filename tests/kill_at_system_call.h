// Crashes at any moment, for tests of what is written to disk.
#pragma once

#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

namespace pipeshard {

// Runs `body` in a child that is killed at its n-th system call, from 1 on. False: it ended by itself before,
// which is a failed test where it did not end with 0. Its threads are not there, and it has one processor, so
// that work makes none and every run the same calls. `count`: how many were made.
template <typename Body>
bool killAtSystemCall(int n, const Body& body, int* count = nullptr) {
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (int stops = 0; WIFSTOPPED(status); ++stops) {
    if (stops == 2 * n - 1) {  // at the entry: the call does not happen
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return true;
    }
    if (count != nullptr) *count = (stops + 1) / 2;
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) break;
    ::waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return false;
}

}  // namespace pipeshard
