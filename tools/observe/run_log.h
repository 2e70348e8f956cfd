// What a run writes while it trains (`run --log DIR`), for people's own tools and for `report --log`.
//
//   DIR/steps.jsonl        {"step":17,"loss":5.43,"seconds":0.081,"examples_per_second":98.7,
//                          "time":1790000000.123,"learning_rate":0.0003,"gradient_norm":1.2,
//                          "tokens_per_second":6317,"resident_bytes":536870912}, in one line
//   DIR/steps.csv          the same columns, with a heading
//   DIR/evaluations.jsonl  {"step":20,"loss":5.51,"seconds":1.3,"time":1790000001.5,"exact":true}: of
//                          held-out data; "exact":false where the loss is approximate
//   DIR/events.jsonl       {"time":..., "event":"checkpoint","step":20,"text":"saved/step-000020"}:
//                          checkpoints, evaluations, what the run goes on from, notices; and
//                          {"time":..., "event":"restart","step":31,"from":20,"seconds":1.7,"text":...}: what
//                          was lost behind which step, and how long until one was done again, behind "from"
//   DIR/events.out.tfevents.*
//                          the numbers for TensorBoard (event_file.h); each beginning has a file
//
// Rates are of the one step. What there is no number for is null, and empty in the table. A run that goes on
// from a checkpoint appends; steps behind the checkpoint, which are done again, are taken out first. So are
// those of an earlier run, where one begins anew in its folder; a notice says which. Lines are there a
// twentieth of a second after the step, at the latest when the next step is done.
//
// One job at a time: DIR/lock is held as long as it writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/files/durable_folder.h"
#include "runtime/job/job.h"
#include "tools/observe/event_file.h"
#include "tools/observe/run_figures.h"
#include "tools/output/beside_training.h"

namespace pipeshard {

class RunLog {
 public:
  // "": nothing is written. `notice` hears what people should know. Error(kDiskFull, kConfiguration) where
  // the folder cannot be written, or has a table of other columns; kAddressInUse: another job writes its log
  // there, and has not ended within `patience`.
  explicit RunLog(const std::string& directory, const std::function<void(const std::string&)>& notice = {},
                  std::chrono::milliseconds patience = FolderLock::kPatience);

  // `figures`: of the step, or those of the last one. What cannot be written is a notice, and the log ends
  // there.
  void take(const JobProgress& event, const RunFigures& figures);
  // At the end of the run: the error that ended the log before, if one did.
  void requireWhole() const { files_.requireWhole(); }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Closer>;

  std::string pathOf(const std::string& name) const;
  File open(const std::string& name, const std::string& heading) const;
  void record(const JobProgress& event, const RunFigures& figures);
  void beginAt(int64_t step);
  void takeStep(const JobProgress& event, const RunFigures& figures);
  void takeEvaluation(const JobProgress& event);
  void takeEvent(const char* name, const JobProgress& event);
  std::optional<int64_t> dropStepsBehind(int64_t step);  // the last that was there
  void write(File& file, const std::string& line, const std::string& name);
  void flush();

  std::string directory_;
  FolderLock lock_;
  std::function<void(const std::string&)> notice_;
  BesideTraining files_;
  int64_t last_step_ = 0;  // that was written; 0: none
  File steps_;
  File table_;
  File evaluations_;
  File events_;
  std::optional<EventFile> event_file_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace pipeshard
