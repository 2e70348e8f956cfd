// What a run writes while it trains (`run --log DIR`), for people's own tools and for `report --log`.
//
//   DIR/steps.jsonl        {"step":17,"loss":5.43,"seconds":0.081,"examples_per_second":98.7,
//                          "time":1790000000.123,"learning_rate":0.0003,"gradient_norm":1.2,
//                          "tokens_per_second":6317,"resident_bytes":536870912}, in one line
//   DIR/steps.csv          the same columns, with a heading
//   DIR/evaluations.jsonl  {"step":20,"loss":5.51,"seconds":1.3,"time":1790000001.5}: of held-out data
//   DIR/events.jsonl       {"time":..., "event":"checkpoint","step":20,"text":"saved/step-000020"}:
//                          checkpoints, evaluations, what the run goes on from, notices; and
//                          {"time":..., "event":"restart","step":31,"from":20,"seconds":1.7,"text":...}: what
//                          was lost behind which step, and how long until one was done again, behind "from"
//   DIR/events.out.tfevents.*
//                          the numbers for TensorBoard (event_file.h); each beginning has a file
//
// Rates are of the one step. What there is no number for is null, and empty in the table. A run that goes on
// from a checkpoint appends; steps behind the checkpoint, which are done again, are taken out first. Lines
// are there a twentieth of a second after the step, at the latest when the next step is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "runtime/job/job.h"
#include "tools/observe/event_file.h"
#include "tools/observe/run_figures.h"

namespace pipeshard {

class RunLog {
 public:
  // "": nothing is written. Error(kDiskFull, kConfiguration) where the folder cannot be written, or has a
  // table of other columns.
  RunLog(const std::string& directory, const RunFacts& facts);

  // `figures`: of the step, or those of the last one.
  void take(const JobProgress& event, const RunFigures& figures);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Closer>;

  File open(const std::string& name, const std::string& heading) const;
  void beginAt(int64_t step);
  void takeStep(const JobProgress& event, const RunFigures& figures);
  void takeEvaluation(const JobProgress& event);
  void takeEvent(const char* name, const JobProgress& event);
  void dropStepsBehind(int64_t step);
  void write(File& file, const std::string& line, const std::string& name);
  void flush();

  std::string directory_;
  RunFacts facts_;
  int64_t last_step_ = 0;
  File steps_;
  File table_;
  File evaluations_;
  File events_;
  std::optional<EventFile> event_file_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace pipeshard
