// The file of `run --json`: steps as they are done, which need not stay in memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/job.h"
#include "tools/output/beside_training.h"

namespace pipeshard {

// All steps and evaluations of this process that count, also where its job was started again.
class RunFile {
 public:
  // "": nothing is written. `notice` hears of what cannot be written while the run goes on. Errors as
  // failToWrite (ir/base/text_file.h).
  explicit RunFile(std::string path, const std::function<void(const std::string&)>& notice = {});

  // Takes what is to be said of a step. Where a job goes back, what it does again takes the place of what
  // was.
  void take(const JobProgress& event);
  // Writes the file, whole. Errors as failToWrite, also of what could not be written before.
  // `operators`: of `run --operators`, JSON; "": none.
  void finish(const JobResult& result, const std::string& operators = "");
  // Of a run that ends before its last step, for the reason `ended`: what was done until then, if anything
  // was, and "ended" instead of what is known at the end alone. What cannot be written is a notice.
  void finishEarly(const std::string& ended);

  bool hasEvaluations() const { return !evaluations_.empty(); }
  int64_t stepsDone() const { return first_step_ < 0 ? 0 : last_step_ - first_step_ + 1; }
  int64_t stepsLeftOut() const { return std::ssize(left_out_); }
  const std::optional<double>& firstLoss() const { return first_loss_; }
  const std::optional<double>& lastLoss() const { return last_loss_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  // Of held-out data; few beside the steps.
  struct Evaluation {
    int64_t step = 0;
    std::optional<double> loss;
    double seconds = 0;
    bool exact = true;
  };
  void goBackBehind(int64_t step);
  void writeStep(const StepResult& step, bool goes_back);
  // `head`, the steps, the evaluations, `tail`.
  void writeFile(const std::string& head, const std::string& tail);
  std::string evaluationsText() const;

  std::string path_;
  BesideTraining file_;
  std::unique_ptr<std::FILE, CloseFile> steps_;  // a file without a name: a line per step
  int64_t first_step_ = -1;
  int64_t last_step_ = -1;
  std::optional<double> first_loss_;
  std::optional<double> last_loss_;
  std::vector<int64_t> left_out_;  // steps, in order
  std::vector<Evaluation> evaluations_;
};

}  // namespace pipeshard
