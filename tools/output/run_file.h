// The file of `run --json`: steps as they are done, which need not stay in memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/job.h"

namespace pipeshard {

class RunFile {
 public:
  // "": nothing is written. Errors as failToWrite (ir/base/text_file.h).
  explicit RunFile(std::string path);

  // Takes what is to be said of a step. Where a job begins again, its steps take the place of those before.
  void take(const JobProgress& event);
  // Writes the file, whole. Errors as failToWrite.
  // `operators`: of `run --operators`, JSON; "": none.
  void finish(const JobResult& result, const std::string& operators = "");

  const std::optional<double>& firstLoss() const { return first_loss_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  // Of held-out data; few beside the steps.
  struct Evaluation {
    int64_t step = 0;
    std::optional<double> loss;
    double seconds = 0;
  };
  std::string evaluationsText() const;

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> steps_;  // a file without a name
  int64_t last_step_ = -1;
  std::optional<double> first_loss_;
  std::vector<Evaluation> evaluations_;
};

}  // namespace pipeshard
