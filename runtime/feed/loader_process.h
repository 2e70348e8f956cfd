// A shell command whose standard output is read.
#pragma once

#include <string>

#include "runtime/files/posix_file.h"

namespace pipeshard {

// Runs as `sh -c COMMAND` in a process group of its own, with nothing to read and with this process's
// standard error. It and what it started are killed when this is destroyed; the shell also when the thread
// that started it ends. Not for several threads.
class LoaderProcess {
 public:
  // Error(kOutOfMemory): it cannot be started.
  explicit LoaderProcess(const std::string& command);
  LoaderProcess(const LoaderProcess&) = delete;
  LoaderProcess& operator=(const LoaderProcess&) = delete;
  ~LoaderProcess();

  int pid() const { return pid_; }
  const Descriptor& output() const { return output_; }
  // How it ended: "ended with exit code 1", "was killed by signal 9 (Killed)"; "closed its output" when it
  // lives on for a moment longer. `failed`: other than by exit code 0.
  std::string describeEnd(bool& failed);

 private:
  bool reap(bool wait);

  int pid_ = -1;
  Descriptor output_;
  bool reaped_ = false;
  int status_ = 0;
};

}  // namespace pipeshard
