#include "partition/families/plan_schedule.h"

#include <algorithm>
#include <sstream>

#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

std::string readOrders(const std::string& path) {
  constexpr uint64_t kMostBytes = 64 << 20;
  if (std::optional<std::string> text = readTextFile(path, kMostBytes, "a file of orders"))
    return *std::move(text);
  fail(ErrorCode::kMissingInput, "--schedule {}: there is no file of this name that can be read", path);
}

std::string devicesText(const Plan& plan, StageId stage) {
  return fmt::format("[{}]", fmt::join(plan.stages[stage].devices, ","));
}

Schedule scheduleOfOrders(const Plan& plan) {
  Schedule schedule =
      scheduleFromCsv(fmt::format("{}\n", fmt::join(plan.schedule_orders, "\n")), "schedule_orders");
  schedule.spec = plan.schedule;
  return schedule;
}

bool isSplit(const ScheduleSpec& schedule) {
  return !schedule.family.empty() && !schedule.isOfFile() && familyOf(schedule).splits_backward;
}

int countGroups(const RankOfStage& groups) {
  return std::max_element(groups.begin(), groups.end())->index() + 1;
}

void checkPlacement(const Schedule& schedule, const Plan& plan, const RankOfStage& groups) {
  if (schedule.stages != std::ssize(groups)) {
    fail(ErrorCode::kConfiguration,
         "the schedule {} runs {} on {}; the plan has {} on {} of devices; ask for {}, or another schedule",
         schedule.name(), counted(schedule.stages, "stage"), counted(schedule.ranks(), "pipeline rank"),
         counted(std::ssize(groups), "stage"), counted(countGroups(groups), "group"),
         counted(schedule.stages, "stage"));
  }
  for (const StageId s : groups.ids()) {
    for (const StageId t : idsBelow<StageId>(s.index())) {
      const bool one_rank = schedule.rank_of_stage[s] == schedule.rank_of_stage[t];
      if (one_rank == (groups[s] == groups[t])) continue;
      fail(ErrorCode::kConfiguration,
           "the schedule {} has stages {} and {} on {}, but their devices are {} and {}; expected {} devices",
           schedule.name(), t, s, one_rank ? "one pipeline rank" : "different pipeline ranks",
           devicesText(plan, t), devicesText(plan, s), one_rank ? "the same" : "different");
    }
  }
}

}  // namespace

RankOfStage deviceGroups(const Plan& plan) {
  RankOfStage groups;
  PipelineRankId next(0);
  for (const StageId s : plan.stages.ids()) {
    const auto shares = [&](const StagePlan& other) { return other.devices == plan.stages[s].devices; };
    const auto first = std::find_if(plan.stages.begin(), plan.stages.begin() + s.index(), shares);
    const StageId index(first - plan.stages.begin());
    groups.push_back(index == s ? next++ : groups[index]);
  }
  return groups;
}

IdVector<StageId, bool> splitStages(const Schedule& schedule) {
  IdVector<StageId, bool> split(schedule.stages, isSplit(schedule.spec));
  for (const StageId stage : split.ids()) split[stage] = split[stage] || splitsBackward(schedule, stage);
  return split;
}

IdVector<StageId, bool> splitStages(const Plan& plan) {
  if (!plan.schedule_orders.empty()) {
    const Schedule schedule = scheduleOfOrders(plan);
    if (schedule.stages == std::ssize(plan.stages)) return splitStages(schedule);
  }
  return IdVector<StageId, bool>(plan.stages.size(), plan.schedule.family.empty() || isSplit(plan.schedule));
}

bool devicesTakeTurns(const Plan& plan) { return plan.schedule_orders.empty() && takesTurns(plan.schedule); }

Schedule scheduleOf(const Plan& plan) {
  const RankOfStage groups = deviceGroups(plan);
  if (groups.empty()) fail(ErrorCode::kConfiguration, "the plan has no stages");
  const int updates = plan.updates_per_step;
  Schedule schedule;
  if (plan.schedule_orders.empty()) {
    const int ranks = countGroups(groups);
    IdVector<StageId, int> replicas;
    if (devicesTakeTurns(plan) && std::ssize(groups) == ranks) {
      for (const StagePlan& stage : plan.stages) replicas.push_back(stage.mesh_shape.at(0));
    }
    schedule = makeSchedule(plan.schedule, ranks, plan.microbatches, updates, replicas);
  } else {
    schedule = scheduleOfOrders(plan);
  }
  if (schedule.microbatches != plan.microbatches * updates) {
    fail(ErrorCode::kConfiguration,
         "the orders of the schedule are for {} microbatches, the plan has {}; ask for --microbatches {}",
         schedule.microbatches, plan.microbatches, schedule.microbatches);
  }
  checkPlacement(schedule, plan, groups);
  return schedule;
}

RankOfStage AskedSchedule::rankOfStage(int ranks, int microbatches) const {
  if (!given) return makeSchedule(spec, ranks, microbatches, 1).rank_of_stage;
  if (given->ranks() == ranks) return given->rank_of_stage;
  fail(ErrorCode::kConfiguration,
       "--schedule {}: found orders of {} pipeline ranks; expected {}, as the stages need", text,
       given->ranks(), ranks);
}

int AskedSchedule::ranksFor(int stages, const std::string& subject) const {
  if (given && given->stages != stages) {
    fail(ErrorCode::kConfiguration, "{}: found {}; expected {}, as --schedule {} runs", subject,
         counted(stages, "stage"), given->stages, text);
  }
  if (given) return given->ranks();
  if (stages % chunks == 0) return stages / chunks;
  fail(ErrorCode::kConfiguration,
       "{}: found {}; expected a multiple of {}, as --schedule {} has {} stages on every pipeline rank",
       subject, counted(stages, "stage"), chunks, text, chunks);
}

ScheduleChoice parseScheduleChoice(const std::string& text) {
  if (text.find('/') != std::string::npos || text.ends_with(".csv")) return OrdersFile{text};
  return parseSchedule(text);
}

AskedSchedule askSchedule(const std::optional<ScheduleChoice>& choice) {
  const ScheduleChoice chosen = choice.value_or(usualSchedule());
  AskedSchedule asked{ScheduleSpec::ofFile(), scheduleChoiceToString(chosen), 1, std::nullopt};
  if (const auto* spec = std::get_if<ScheduleSpec>(&chosen)) {
    asked.spec = *spec;
    asked.chunks = chunksOf(*spec);
    return asked;
  }
  asked.given = scheduleFromCsv(readOrders(asked.text), asked.text);
  asked.chunks = (asked.given->stages + asked.given->ranks() - 1) / asked.given->ranks();
  return asked;
}

Schedule firstMicrobatches(Schedule schedule, int count) {
  if (count == schedule.microbatches) return schedule;
  PIPESHARD_CHECK(count >= 1 && count <= schedule.microbatches && !schedule.asynchronous(),
                  "{} of {} microbatches of {}", count, schedule.microbatches, schedule.name());
  schedule.microbatches = count;
  for (std::vector<Action>& order : schedule.orders) {
    std::vector<Action> kept;
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i].microbatch >= count) continue;
      kept.push_back(order[i]);
      kept.back().overlaps_next =
          order[i].overlaps_next && i + 1 < order.size() && order[i + 1].microbatch < count;
    }
    order = std::move(kept);
  }
  verifySchedule(schedule);
  return schedule;
}

void setSchedule(const AskedSchedule& asked, const ScheduleCosts& costs, Plan& plan) {
  plan.schedule_orders.clear();
  const auto store = [&](const ScheduleOrders& orders) {
    std::istringstream lines(scheduleToCsv(orders));
    for (std::string line; std::getline(lines, line);) plan.schedule_orders.push_back(line);
  };
  plan.schedule = asked.spec;
  if (asked.given) {
    store(asked.given->orders);
    scheduleOf(plan);
    return;
  }
  const Schedule usual = scheduleOf(plan);
  plan.schedule = usual.spec;
  if (usual.asynchronous()) return;
  const Schedule fitting = makeSchedule({asked.spec, usual.ranks(), usual.microbatches, costs});
  if (fitting.orders != usual.orders) store(fitting.orders);
}

}  // namespace pipeshard
