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
  std::vector<Step> steps;              // ascending
  std::vector<Evaluation> evaluations;  // ascending
  std::vector<int64_t> resumed;         // the steps behind which the run, or a new one, has gone on
};

// A line that is being written, the last one without an end, is left out. Errors: kMissingInput where the
// folder has no log, kConfiguration naming file and line.
RunHistory readRunHistory(const std::string& directory);

}  // namespace pipeshard
