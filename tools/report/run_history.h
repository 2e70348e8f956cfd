// What a run has written while it trained (`run --log`, tools/observe/run_log.h), read again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pipeshard {

struct RunHistory {
  struct Step {
    int64_t step = 0;
    std::optional<double> loss;  // nothing: the plan has none, or it was not finite
    double seconds = 0;
    std::optional<double> examples_per_second;
    std::optional<double> tokens_per_second;
    std::optional<double> learning_rate;
    std::optional<double> gradient_norm;
  };
  struct Evaluation {
    int64_t step = 0;
    std::optional<double> loss;  // of held-out data
    double seconds = 0;
  };
  // Of `run --restarts`.
  struct Restart {
    int64_t step = 0;  // the newest that had been done
    int64_t from = 0;  // behind which it went on
    double seconds = 0;
    std::string lost;
  };
  std::vector<Step> steps;              // ascending
  std::vector<Evaluation> evaluations;  // ascending
  std::vector<int64_t> resumed;         // the steps behind which the run, or a new one, has gone on
  std::vector<Restart> restarts;        // as they came
};

// A line that is being written, the last one without an end, is left out. Errors: kMissingInput where the
// folder has no log, or what is no file; kConfiguration and kBadModel (too long) naming file and line.
RunHistory readRunHistory(const std::string& directory);

}  // namespace pipeshard
