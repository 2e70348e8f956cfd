#include "tests/partition/random_schedule.h"

#include <algorithm>

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
  schedule.name = "random";
  schedule.stages = stages;
  schedule.microbatches = microbatches;
  ranks = std::min(ranks, stages);
  schedule.rank_of_stage.clear();
  for (int s = 0; s < stages; ++s)
    schedule.rank_of_stage.push_back(s < ranks ? s : static_cast<int>(random() % static_cast<unsigned>(ranks)));
  std::shuffle(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), random);
  schedule.orders.resize(static_cast<size_t>(ranks));
  const unsigned halved = random() % 3;  // of three backward passes
  std::vector<Progress> done(static_cast<size_t>(stages));
  while (true) {
    std::vector<Action> ready;
    for (int s = 0; s < stages; ++s) {
      const Progress& at = done[static_cast<size_t>(s)];
      const int before = s == 0 ? microbatches : done[static_cast<size_t>(s) - 1].forward;
      const int behind = s + 1 == stages ? microbatches : done[static_cast<size_t>(s) + 1].input;
      if (at.forward < before) ready.push_back({s, ActionKind::kForward, at.forward});
      if (at.input < std::min(at.forward, behind)) {
        ready.push_back({s, ActionKind::kBackwardInput, at.input});
        if (at.weight == at.input && random() % 3 >= halved) ready.back().kind = ActionKind::kBackward;
      }
      if (at.weight < at.input) ready.push_back({s, ActionKind::kBackwardWeight, at.weight});
    }
    if (ready.empty()) break;
    const Action action = ready[random() % ready.size()];
    Progress& at = done[static_cast<size_t>(action.stage)];
    if (action.kind == ActionKind::kForward) ++at.forward;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) ++at.input;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) ++at.weight;
    schedule.orders[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(action.stage)])].push_back(action);
  }
  verifySchedule(schedule);
  return schedule;
}

void recomputeAtRandom(Plan& plan, std::mt19937& random) {
  constexpr const char* kModes[] = {"never", "always", "except-last"};
  for (StagePlan& stage : plan.stages) stage.recomputation = kModes[random() % 3];
}

Schedule scheduleOf(const ScheduleOrders& orders, int microbatches) {
  Schedule schedule;
  schedule.orders = orders;
  schedule.microbatches = microbatches;
  schedule.stages = static_cast<int>(orders.size());
  schedule.rank_of_stage.clear();
  for (int stage = 0; stage < schedule.stages; ++stage) schedule.rank_of_stage.push_back(stage);
  return schedule;
}

}  // namespace pipeshard
