// A program that a test of the stand-ins runs: how it ended, and what it said.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <array>
#include <string>

namespace standin_test {

struct Ended {
  int code = 0;
  std::string output;
};

// By the shell; add 2>&1 for what it says on standard error.
inline Ended runCommand(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  Ended ended;
  std::array<char, 4096> some{};
  while (const size_t read = ::fread(some.data(), 1, some.size(), pipe))
    ended.output.append(some.data(), read);
  ended.code = WEXITSTATUS(::pclose(pipe));
  return ended;
}

}  // namespace standin_test
