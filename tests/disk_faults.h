// A disk that refuses or is slow, for whole jobs: calls that change files below a folder, of a process and
// all that it starts, are stopped by the kernel (seccomp's user notification) and answered by the test.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <sys/types.h>

#include "runtime/files/posix_file.h"

namespace pipeshard {

struct DiskCall {
  int number = 0;    // among those below the folder, from 1
  std::string name;  // "open", "write", "sync", "rename", "make" (a folder), "remove", "resize"
  std::string path;  // what is written, made, removed or renamed
};

struct DiskAnswer {
  int error = 0;                       // 0: the call is made
  std::chrono::milliseconds delay{0};  // before that
};

class DiskFaults {
 public:
  // `answer` is asked for every call, by one thread. "open" is one for writing.
  DiskFaults(std::string folder, std::function<DiskAnswer(const DiskCall&)> answer);
  DiskFaults(const DiskFaults&) = delete;
  DiskFaults& operator=(const DiskFaults&) = delete;
  ~DiskFaults();  // calls that are waiting are made

  // Whether the system allows this at all.
  static bool areAvailable();

  // In a process that was forked, once: its calls are watched from now on. Ends it with 125 where that fails.
  void enter() const;
  // Runs `body` in a forked process that is watched; its exit code: what body returns, or 128 + signal.
  int runForked(const std::function<int()>& body) const;

 private:
  struct Pending;
  void serve();
  bool takeCall(Pending& pending);
  bool describe(const void* request, DiskCall& call) const;

  std::string folder_;
  std::function<DiskAnswer(const DiskCall&)> answer_;
  Descriptor here_, there_;  // a listening process sends its descriptor from there
  Descriptor listener_;
  Descriptor stop_;
  int calls_ = 0;
  std::thread thread_;
};

}  // namespace pipeshard
