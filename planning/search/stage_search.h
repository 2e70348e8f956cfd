// `--stages auto`: what the options leave open is searched (partition/search/plan_search.h), over the model's
// training step.
//
// The search runs once more with finer layers, four for each stage and 16 to 64 in all, where nobody gave
// their number, the busiest device of the best plan works an eighth longer than the average, and finer layers
// can be more even. The better plan is taken: a note says what finer layers gained, and a reason of the
// record, "layers", what a step with the other number of layers takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/plan/optimizer.h"
#include "planning/model/forward_model.h"

namespace pipeshard {

// One plan of the search, as partitionTraining takes it.
struct StageChoice {
  PartitionOptions options;
  int64_t microbatches = 1;
};

struct StageSearchResult {
  std::vector<StageChoice> choices;  // best first
  SearchRecord record;
  std::vector<std::string> notes;
};

// Errors: kUsage (options that exclude --stages auto), kConfiguration and kBadModel (the batch cannot be cut
// as asked), kOutOfMemory (nothing fits: the message says the least memory that would do), and where the
// search was interrupted before it had found anything, an empty result.
StageSearchResult searchStages(const PlanRequest& request, const ForwardModel& model,
                               const PartitionOptions& options, const ProgressCallback& progress,
                               const std::atomic<bool>* interrupted);

}  // namespace pipeshard
