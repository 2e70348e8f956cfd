// The line that `run` shows while it trains.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/job/job.h"
#include "tools/observe/run_figures.h"

namespace pipeshard {

// At most `width` columns; 0: as wide as it gets. What does not fit is left out, the least important first:
//   step 12/500  loss 5.4  held-out 5.5  12 steps/s  6.31k tokens/s  lr 0.00025  norm 1.2  512 MiB  31s left
// Left out in this order: memory, norm, rate of learning, tokens or examples, held-out loss, steps, time
// left, loss; then "12/500", "12", nothing. No number is ever cut off. A held-out loss that is approximate is
// "~5.5".
std::string progressText(const RunFigures& figures, int width);

// What standard output is.
struct ProgressOutput {
  bool rewrites = false;  // a terminal on which a line can be written anew
  int width = 0;          // columns; 0: no limit
};
// Asked anew for every line: windows change. A terminal that is dumb (TERM) gets lines, like a file.
ProgressOutput progressOutput();

// Prints on standard output what a run does: on a terminal one line that is rewritten, elsewhere a line for
// the first step, the last, every one with an evaluation, and at most one a second of the others; and always
// a line for what becomes of checkpoints and for every evaluation.
class ProgressLine {
 public:
  ProgressLine() = default;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { endLine(); }

  // `figures`: of the step, or those of the last one.
  void show(const JobProgress& event, const RunFigures& figures);
  // Before other output: a line that is open is ended, and stays.
  void endLine();

 private:
  void print(const std::string& text);
  void showEvaluation(const JobProgress& event);
  void showStep(const JobProgress& event, const RunFigures& figures);

  int64_t last_step_ = -1;
  std::optional<RunFigures> unshown_;  // of the last step, where it had no line
  bool is_open_ = false;               // a line that may be rewritten
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace pipeshard
