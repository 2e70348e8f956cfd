// The batches of a job that come through a pipe: reads them beside the job, ahead of its steps, into memory
// that its workers share (batch_ring.h). Made by the coordinator of a job on one machine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ir/base/error.h"
#include "ir/program/program.h"
#include "runtime/data/batch_ring.h"
#include "runtime/data/data_description.h"
#include "runtime/feed/loader_process.h"

namespace pipeshard {

class RowStream;  // row_stream.h

class LoaderFeed {
 public:
  // Starts the command of a pipe (isPipe). Of steps that were done before, the command is told where it has
  // "{step}"; else their rows are read and left out, with a notice. Nothing is read behind `last_step`, and
  // nothing is started where all steps were done.
  // Errors: kUsage (standard input is a terminal), as LoaderProcess and BatchRing.
  LoaderFeed(const DataDescription& description, const std::vector<ProgramInput>& inputs,
             const ShorterInputs& shorter, int64_t steps_done, int64_t last_step);
  LoaderFeed(const LoaderFeed&) = delete;
  LoaderFeed& operator=(const LoaderFeed&) = delete;
  // Ends the command.
  ~LoaderFeed();

  // What workers read: by BatchRing::inherit of its descriptor, or of a copy of it.
  const BatchRing& ring() const { return ring_; }
  int64_t stepsDone() const { return steps_done_; }  // before
  // Readable when something was published since takeNews().
  int newsDescriptor() const { return news_.get(); }
  void takeNews() const;
  // All ranks have done the step.
  void release(int64_t step);
  // All batches that came have been used, and more are to come: the job waits for the loader, which has a
  // deadline of its own.
  bool isAwaited();
  // What people should know of the loader's messages, and of rows that are left out, once.
  std::optional<std::string> takeNotice();
  // What ended the feeding, once: kPeerUnavailable (the command failed), kMissingInput (it ended too early),
  // kHang (it took longer for a batch than DataDescription::loader_timeout), and as RowStream.
  std::optional<Error> failure();

 private:
  void feed(const std::vector<ProgramInput>& inputs, const ShorterInputs& shorter, int64_t steps_done,
            int64_t last_step);
  size_t read(std::span<std::byte> out);
  [[noreturn]] void failEarly(const RowStream& stream, int64_t last_step);
  bool waitForPlace(int64_t step);
  void skipDone(RowStream& stream, int64_t steps_done, int64_t last_step);
  void tell(const std::string& notice);
  void bringNews() const;

  DataDescription description_;
  std::string source_;  // for messages
  BatchRing ring_;
  std::optional<LoaderProcess> process_;
  int input_ = -1;
  bool skips_ = false;
  Descriptor stop_, news_;  // eventfds
  const int64_t steps_done_;
  std::chrono::steady_clock::time_point deadline_;
  int64_t reading_ = 0;  // the step whose rows are waited for

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t released_;
  int64_t last_step_;
  bool stopping_ = false;
  std::optional<Error> failure_;
  std::optional<std::string> notice_;
  std::thread thread_;  // last: started when all else is there
};

}  // namespace pipeshard
