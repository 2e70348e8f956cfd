// What a process leaves in its log when it crashes.
#pragma once

#include <string>

namespace pipeshard {

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write `who`, the signal and a backtrace to standard
// error before they end the process as they would have. Also when a stack is full. Once per process.
void writeBacktraceOnCrash(const std::string& who);

}  // namespace pipeshard
