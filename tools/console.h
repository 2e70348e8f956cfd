// What the command prints for people: progress on standard error, tables on standard output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

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

// Columns padded to their widest cell; the first row is the heading. Numbers are right-aligned.
std::string formatTable(const std::vector<std::vector<std::string>>& rows);

// "1.5 MiB", "2.3 GFLOP".
std::string formatBytes(int64_t bytes);
std::string formatFlops(int64_t flops);

// Says on standard error that a job of so many workers has far more of them than this machine has processors
// (more than two on each), which works but takes its time. Says nothing otherwise.
void noteCrowding(int workers);

// Why a file of the user's choice cannot be written: Error(kMissingInput) where its folder is missing,
// Error(kConfiguration) where it is a folder or not for this user to write, else Error(kDiskFull).
[[noreturn]] void failToWrite(const std::string& path, int error_number);

// Throws as failToWrite does if the file cannot be opened for writing: asked before long work.
void requireWritable(const std::string& path);

// Writes text to a file of the user's choice. Errors as failToWrite.
void writeOutputFile(const std::string& path, const std::string& text);

}  // namespace pipeshard
