#include "partition/plan_schedule.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/error.h"
#include "partition/partition.h"

namespace pipeshard {
namespace {

std::string devicesText(const Plan& plan, size_t stage) { return fmt::format("[{}]", fmt::join(plan.stages[stage].devices, ",")); }

void checkPlacement(const Schedule& schedule, const Plan& plan, const std::vector<int>& groups) {
  if (schedule.stages != static_cast<int>(groups.size())) {
    fail(ErrorCode::kConfiguration,
         "the schedule {} runs {} stages on {} pipeline ranks; the plan has {} stages on {} groups of devices; ask for {} stages, or "
         "another "
         "schedule",
         schedule.name, schedule.stages, schedule.ranks(), groups.size(), *std::max_element(groups.begin(), groups.end()) + 1,
         schedule.stages);
  }
  for (size_t s = 0; s < groups.size(); ++s) {
    for (size_t t = 0; t < s; ++t) {
      const bool one_rank = schedule.rank_of_stage[s] == schedule.rank_of_stage[t];
      if (one_rank == (groups[s] == groups[t])) continue;
      fail(ErrorCode::kConfiguration, "the schedule {} has stages {} and {} on {}, but their devices are {} and {}; expected {} devices",
           schedule.name, t, s, one_rank ? "one pipeline rank" : "different pipeline ranks", devicesText(plan, t), devicesText(plan, s),
           one_rank ? "the same" : "different");
    }
  }
}

}  // namespace

std::vector<int> deviceGroups(const Plan& plan) {
  std::vector<int> groups;
  int count = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const auto shares = [&](const StagePlan& other) { return other.devices == plan.stages[s].devices; };
    const auto first = std::find_if(plan.stages.begin(), plan.stages.begin() + static_cast<std::ptrdiff_t>(s), shares);
    const auto index = static_cast<size_t>(first - plan.stages.begin());
    groups.push_back(index == s ? count++ : groups[index]);
  }
  return groups;
}

Schedule scheduleOf(const Plan& plan) {
  const std::vector<int> groups = deviceGroups(plan);
  if (groups.empty()) fail(ErrorCode::kConfiguration, "the plan has no stages");
  const int ranks = *std::max_element(groups.begin(), groups.end()) + 1;
  const Schedule schedule = makeSchedule(plan.schedule, ranks, static_cast<int>(plan.microbatches));
  if (schedule.microbatches != plan.microbatches) {
    fail(ErrorCode::kConfiguration, "the orders of the schedule are for {} microbatches, the plan has {}; ask for --microbatches {}",
         schedule.microbatches, plan.microbatches, schedule.microbatches);
  }
  checkPlacement(schedule, plan, groups);
  return schedule;
}

std::vector<int> AskedSchedule::rankOfStage(int ranks, int microbatches) const {
  if (!given) return makeSchedule(text, ranks, microbatches).rank_of_stage;
  if (given->ranks() == ranks) return given->rank_of_stage;
  fail(ErrorCode::kConfiguration, "--schedule {}: found orders of {} pipeline ranks; expected {}, as the stages need", text, given->ranks(),
       ranks);
}

int AskedSchedule::ranksFor(int stages, const std::string& subject) const {
  if (given && given->stages != stages) {
    fail(ErrorCode::kConfiguration, "{}: found {} stages; expected {}, as --schedule {} runs", subject, stages, given->stages, text);
  }
  if (given) return given->ranks();
  if (stages % chunks == 0) return stages / chunks;
  fail(ErrorCode::kConfiguration, "{}: found {} stages; expected a multiple of {}, as --schedule {} has {} stages on every pipeline rank",
       subject, stages, chunks, text, chunks);
}

AskedSchedule askSchedule(const std::string& text) { return {text, chunksOf(text), std::nullopt}; }

void setSchedule(const AskedSchedule& asked, Plan& plan) {
  plan.schedule_orders.clear();
  plan.schedule = asked.text;
  plan.schedule = scheduleOf(plan).name;
}

}  // namespace pipeshard
