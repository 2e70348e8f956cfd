// What this machine lets a process have, asked before a job begins rather than found out by a library that
// aborts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "ir/base/error.h"

namespace pipeshard {

// Of the processes of a job on this host.
struct LimitNeeds {
  int workers = 0;
  int threads = 1;  // of each worker that compute
  int ranks = 0;    // of the job, on all hosts
  // Of the tensors of a worker, the largest, as far as it is known: a value of `ulimit -v` or `-d` that is
  // advised has room for it.
  uint64_t tensor_bytes = 0;
};

// Whether `ulimit -v` or `ulimit -d` says anything.
bool hasMemoryLimit();

// Raises the limits of open files and processes as far as this process may, and compares what the kernel,
// `ulimit` and the control group allow with what is needed. Error(kConfiguration) naming limit, what it is,
// what is needed and how to raise it; of address space as requireAddressSpace says. To be asked before the
// first socket: ZeroMQ aborts where it cannot start its threads.
void requireLimits(const LimitNeeds& needs);

// The value of each that requireLimits asks for.
int64_t openFilesNeeded(const LimitNeeds& needs);
int64_t tasksNeeded(const LimitNeeds& needs);  // processes and their threads

// Error(kConfiguration) where this process may not open as many files as any command does: what it reads
// would seem to be missing.
void requireFiles();

// The limit of the stack (`ulimit -s`) of this process, raised where it is below what a thread needs.
// Error(kConfiguration) where that is not allowed: the kernel would end the process in mid-work.
void requireStack();

// Error(kOutOfMemory) when `ulimit -v` or `ulimit -d` leave this process less than `bytes` beside what it has
// and what libraries take at work: some of them crash where an allocation fails. The value that is advised
// has room for what will be taken until a job is done, too.
void requireAddressSpace(uint64_t bytes);

// What `ulimit -v` and `ulimit -d` allow, behind a message that memory ran out: "; `ulimit -d` allows it 19.5
// MiB: raise it". "": they allow all.
std::string describeMemoryLimits();

// What the standard library says of the operating system: a thread that cannot be started is kOutOfMemory,
// with the limits that may be the cause; anything else is kInternal.
Error errorOfSystem(const std::system_error& error);

// Error(kDiskFull) when the file system of a folder (or of the one that it will lie in) has less free.
// `what`: "a checkpoint".
void requireSpace(const std::filesystem::path& folder, uint64_t bytes, std::string_view what);

// From now on a file that grows beyond `ulimit -f` is an error of the write, instead of SIGXFSZ.
void ignoreFileSizeSignal();

// Whoever starts a command may have SIGCHLD ignored; then no process sees how its children end. Called once,
// by a program's start.
void seeChildrenEnd();

}  // namespace pipeshard
