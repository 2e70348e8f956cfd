#include "tests/partition/schedules/random_schedule.h"

#include <algorithm>
#include <utility>

#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

// How far a stage is: passes done of each kind, which are those of its first microbatches.
struct Progress {
  int forward = 0;
  int input = 0;   // B or I
  int weight = 0;  // B or W
};

}  // namespace

Schedule randomSchedule(int stages, int ranks, int microbatches, std::mt19937& random) {
  Schedule schedule;
  schedule.spec = ScheduleSpec::ofFile();  // its orders say it all
  schedule.stages = stages;
  schedule.microbatches = microbatches;
  ranks = std::min(ranks, stages);
  schedule.rank_of_stage.clear();
  for (int s = 0; s < stages; ++s)
    schedule.rank_of_stage.push_back(PipelineRankId(s < ranks ? s : random() % static_cast<unsigned>(ranks)));
  std::shuffle(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), random);
  schedule.orders.resize(ranks);
  const unsigned halved = random() % 3;  // of three backward passes
  std::vector<Progress> done(stages);
  while (true) {
    std::vector<Action> ready;
    for (int s = 0; s < stages; ++s) {
      const Progress& at = done[s];
      const int before = s == 0 ? microbatches : done[static_cast<size_t>(s) - 1].forward;
      const int behind = s + 1 == stages ? microbatches : done[static_cast<size_t>(s) + 1].input;
      if (at.forward < before) ready.push_back({StageId(s), ActionKind::kForward, at.forward});
      if (at.input < std::min(at.forward, behind)) {
        ready.push_back({StageId(s), ActionKind::kBackwardInput, at.input});
        if (at.weight == at.input && random() % 3 >= halved) ready.back().kind = ActionKind::kBackward;
      }
      if (at.weight < at.input) ready.push_back({StageId(s), ActionKind::kBackwardWeight, at.weight});
    }
    if (ready.empty()) break;
    const Action action = ready[random() % ready.size()];
    Progress& at = done[action.stage.index()];
    if (action.kind == ActionKind::kForward) ++at.forward;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) ++at.input;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) ++at.weight;
    schedule.orders[schedule.rank_of_stage[action.stage]].push_back(action);
  }
  verifySchedule(schedule);
  return schedule;
}

void cutLayers(Plan& plan, const std::function<bool()>& cuts_behind) {
  const IdVector<LayerId, LayerPlan> layers = std::move(plan.layers);
  plan.layers.clear();
  for (StagePlan& stage : plan.stages) {
    const LayerId first = plan.layers.nextId();
    for (const LayerId layer : IdRange(stage.first_layer, stage.last_layer.next())) {
      LayerPlan part = layers[layer];
      const int64_t last = part.last;
      for (part.last = part.first; part.last <= last; ++part.last) {
        if (part.last < last && !cuts_behind()) continue;
        plan.layers.push_back(part);
        part.first = part.last + 1;
      }
    }
    stage.first_layer = first;
    stage.last_layer = plan.layers.nextId().previous();
  }
}

void recomputeAtRandom(Plan& plan, std::mt19937& random) {
  constexpr Recomputation kModes[] = {Recomputation::kNever, Recomputation::kAlways,
                                      Recomputation::kExceptLast, Recomputation::kLayers,
                                      Recomputation::kSelective};
  for (StagePlan& stage : plan.stages) stage.recomputation = kModes[random() % 5];
  cutLayers(plan, [&] { return random() % 3 > 0; });
}

Schedule scheduleOf(const ScheduleOrders& orders, int microbatches) {
  Schedule schedule;
  schedule.orders = orders;
  schedule.microbatches = microbatches;
  schedule.stages = orders.size();
  schedule.rank_of_stage.clear();
  for (int stage = 0; stage < schedule.stages; ++stage)
    schedule.rank_of_stage.push_back(PipelineRankId(stage));
  return schedule;
}

}  // namespace pipeshard
