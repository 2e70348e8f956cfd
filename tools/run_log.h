// What a run writes while it trains (`run --log DIR`): one line per step, for people's own tools.
//
//   DIR/steps.jsonl {"step":17,"loss":5.43,"seconds":0.081,"examples_per_second":98.7,"time":1790000000.123}
//   DIR/steps.csv     the same columns, with a heading
//   DIR/events.jsonl  {"time":..., "event":"checkpoint","step":20,"text":"saved/step-000020"}: checkpoints,
//   what the run goes
//                     on from, notices
//
// A run that goes on from a checkpoint appends; steps behind the checkpoint, which are done again, are taken
// out first.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "runtime/job/job.h"

namespace pipeshard {

class RunLog {
 public:
  // "": nothing is written. `examples`: rows of a batch; 0: not known. Error(kDiskFull, kConfiguration) where
  // the folder cannot be written.
  RunLog(const std::string& directory, int64_t examples);

  void take(const JobProgress& event);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Closer>;

  File open(const std::string& name, const std::string& heading) const;
  void dropStepsBehind(int64_t step);
  void write(File& file, const std::string& line, const std::string& name);

  std::string directory_;
  int64_t examples_;
  int64_t last_step_ = 0;
  File steps_;
  File table_;
  File events_;
};

}  // namespace pipeshard
