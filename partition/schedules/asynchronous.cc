#include <algorithm>

#include "ir/error.h"
#include "partition/schedules/families.h"

namespace pipeshard {
namespace {

// 1f1b in which a stage updates its weights after every `per_update` backward passes.
Schedule updatingPipeline(const FamilyRequest& request, int per_update) {
  Schedule schedule = oneForwardOneBackwardSchedule(request);
  schedule.microbatches_per_update = per_update;
  for (std::vector<Action>& order : schedule.orders) {
    std::vector<Action> updating;
    for (const Action& action : order) {
      updating.push_back(action);
      const bool completes = action.kind == ActionKind::kBackward && (action.microbatch + 1) % per_update == 0;
      if (completes) updating.push_back({action.stage, ActionKind::kUpdate, action.microbatch});
    }
    order = std::move(updating);
  }
  return schedule;
}

// versions[s][i] = max(0, i - delay(s)).
template <typename Delay>
void delayVersions(Schedule& schedule, int microbatches, const Delay& delay) {
  for (int stage = 0; stage < static_cast<int>(schedule.rank_of_stage.size()); ++stage) {
    std::vector<int>& versions = schedule.versions.emplace_back();
    for (int i = 0; i < microbatches; ++i) versions.push_back(std::max(0, i - delay(stage)));
  }
}

}  // namespace

Schedule pipeDreamSchedule(const FamilyRequest& request) {
  Schedule schedule = updatingPipeline(request, 1);
  delayVersions(schedule, request.microbatches, [&](int stage) { return request.ranks - 1 - stage; });
  return schedule;
}

Schedule pipeDreamVerticalSchedule(const FamilyRequest& request) {
  Schedule schedule = updatingPipeline(request, 1);
  delayVersions(schedule, request.microbatches, [&](int) { return request.ranks - 1; });
  return schedule;
}

Schedule pipeDreamTwoBufferSchedule(const FamilyRequest& request) {
  const auto per_update = static_cast<int>(std::min<int64_t>(request.option("m", request.ranks), request.microbatches));
  if (per_update < request.ranks) {
    fail(ErrorCode::kConfiguration,
         "schedule pipedream-2bw: found {} microbatches per update; expected at least {}, one per stage: with fewer, two versions of the "
         "weights are not enough",
         per_update, request.ranks);
  }
  if (request.microbatches % per_update != 0) {
    fail(ErrorCode::kConfiguration, "schedule pipedream-2bw: found {} microbatches; expected a multiple of the {} that each update takes",
         request.microbatches, per_update);
  }
  Schedule schedule = updatingPipeline(request, per_update);
  for (int stage = 0; stage < request.ranks; ++stage) {
    std::vector<int>& versions = schedule.versions.emplace_back();
    for (int k = 0; k < request.microbatches; ++k) versions.push_back(std::max(0, k / per_update - 1));
  }
  return schedule;
}

}  // namespace pipeshard
