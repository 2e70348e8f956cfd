// What the command prints for people: progress on standard error, tables on standard output.
#pragma once

#include <chrono>
#include <string>

#include "ir/base/error.h"

namespace pipeshard {

// Shows what is going on if it takes longer than a moment: on a terminal one line that is rewritten,
// otherwise a line per phase that began after two seconds of silence. Not thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void phase(const std::string& text);
  void clear();  // before other output

 private:
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_output_;
};

// Says on standard error that a job of so many workers has far more of them than this machine has processors
// (more than two on each), which works but takes its time. Says nothing otherwise.
void noteCrowding(int workers);

// Says on standard error what ends the command. Returns its exit code.
int reportError(const Error& error);

}  // namespace pipeshard
