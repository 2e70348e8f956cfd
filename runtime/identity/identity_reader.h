// Reads a job's identity in a thread of its own, so that whoever asked for it goes on answering.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "runtime/identity/job_identity.h"

namespace pipeshard {

class IdentityReader {
 public:
  explicit IdentityReader(IdentityRequest request);  // begins
  IdentityReader(const IdentityReader&) = delete;
  IdentityReader& operator=(const IdentityReader&) = delete;
  ~IdentityReader();  // stops it at the next block of a file

  // It is read, or has failed.
  bool isDone() const { return done_.load(); }
  // When it is done. Errors as readJobIdentity.
  JobIdentity take();
  // A line for people, from two seconds on at most every five: "comparing files with other hosts: 3.1 GB of
  // 12.4 GB".
  std::optional<std::string> takeNotice();

 private:
  void read();

  IdentityRequest request_;
  ReadingProgress progress_;
  JobIdentity identity_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};
  std::chrono::steady_clock::time_point next_notice_;
  std::thread thread_;  // last: started when all else is there
};

}  // namespace pipeshard
