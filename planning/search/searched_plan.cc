#include "planning/search/searched_plan.h"

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "planning/model/microbatches.h"
#include "planning/programs/plan_within_memory.h"
#include "planning/programs/step_programs.h"
#include "planning/search/stage_search.h"
#include "runtime/job/job.h"

namespace pipeshard {

BatchCut planSearched(const PlanRequest& request, const PartitionOptions& options, ForwardModel& model,
                      const ProgressCallback& progress, Interruption& interruption,
                      PlannedTraining& planned) {
  interruption.searching = true;
  StageSearchResult found = searchStages(request, model, options, progress, &interruption.asked);
  interruption.searching = false;
  if (found.choices.empty()) throw JobInterrupted(SIGINT);
  interruption.asked = false;
  Plan undecided = planned.plan;
  undecided.notes.insert(undecided.notes.end(), found.notes.begin(), found.notes.end());
  for (size_t i = 0;; ++i) {
    const StageChoice& choice = found.choices[i];
    setMicrobatches(choice.microbatches, model);
    planned.plan = undecided;
    if (std::string note = normalizedRowsNote(request, model); !note.empty())
      planned.plan.notes.push_back(std::move(note));
    try {
      const BatchCut batch = planWithinMemory(request, model, choice.options, progress, planned);
      found.record.chosen = i;
      planned.plan.search = std::move(found.record);
      return batch;
    } catch (const Error& error) {
      const bool other = error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kConfiguration;
      if (!other || i + 1 == found.choices.size()) throw;
      undecided.notes.push_back(
          fmt::format("plan {} of the search cannot be made: {}", i + 1, error.message()));
    }
  }
}

}  // namespace pipeshard
