// What Prometheus and its like read of a run: the text of /metrics (exposition format 0.0.4).
#pragma once

#include <cstdint>
#include <string>

#include "runtime/job/job.h"
#include "tools/observe/run_figures.h"

namespace pipeshard {

// Collects what is told; all metrics begin with "pipeshard_".
class MetricsPage {
 public:
  explicit MetricsPage(const RunFacts& facts);

  void take(const JobProgress& event, const RunFigures& figures);
  // A number that is not known yet has no line.
  std::string text() const;

 private:
  RunFacts facts_;
  RunFigures figures_;
  double start_ = 0;        // seconds since 1970
  int64_t steps_done_ = 0;  // by this process, those that were done again included
  int64_t restarts_ = 0;
  int64_t checkpoint_step_ = -1;
  int64_t evaluation_step_ = -1;
  IdVector<RankId, double> compute_seconds_;   // of the last step
  IdVector<RankId, double> transfer_seconds_;  // likewise
};

}  // namespace pipeshard
