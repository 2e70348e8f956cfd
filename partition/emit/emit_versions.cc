#include "partition/emit/emit_versions.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/training_graph.h"
#include "partition/families/make_schedule.h"

namespace pipeshard {
namespace {

constexpr std::string_view kAdvice = "take a synchronous schedule (1f1b, zb-h1, ...)";

// Those that read it, and those before its owner that make a part of its gradient: their passes of a
// microbatch come behind the owner's update. (Later stages make parts, too: the gradient of a bias at a
// stage's end is that of the stage's output. They come before.)
std::vector<StageId> stagesOfParameter(const TrainingGraph& training, const Cut& cut, size_t parameter) {
  std::vector<StageId> stages;
  for (const StageId stage : cut.stages.ids()) {
    const auto made_here = [&](ValueId part) {
      return cut.place(part).stage == stage && stage < cut.owners[parameter];
    };
    const std::vector<ValueId>& parts = training.parameters[parameter].gradient_parts;
    const bool reads = cut.reads(stage, training.parameters[parameter].value);
    if (reads || stage == cut.owners[parameter] || std::any_of(parts.begin(), parts.end(), made_here))
      stages.push_back(stage);
  }
  return stages;
}

}  // namespace

WeightVersions::WeightVersions(const Schedule& schedule, std::vector<StageId> stage_of)
    : schedule_(schedule), stage_of_(std::move(stage_of)) {}

int WeightVersions::read(size_t parameter, int microbatch) const {
  if (!asynchronous() || !stage_of_[parameter].valid()) return 0;
  return schedule_.versions.at(stage_of_[parameter]).at(microbatch);
}

std::vector<bool> WeightVersions::inParameter(size_t parameter, const std::vector<Action>& order) const {
  const auto updates = std::count_if(order.begin(), order.end(),
                                     [](const Action& action) { return action.kind == ActionKind::kUpdate; });
  std::vector<size_t> last_read(static_cast<size_t>(updates) + 1);
  for (size_t at = 0; at < order.size(); ++at) {
    if (isPass(order[at].kind)) last_read.at(read(parameter, order[at].microbatch)) = at;
  }
  std::vector<bool> in_parameter = {true};
  size_t holds = 0;  // the version in the parameter's buffer
  for (size_t at = 0; at < order.size(); ++at) {
    if (order[at].kind != ActionKind::kUpdate) continue;
    in_parameter.push_back(last_read[holds] < at);
    if (in_parameter.back()) holds = in_parameter.size() - 1;
  }
  PIPESHARD_CHECK(in_parameter.size() == last_read.size() && in_parameter.back(),
                  "the window ends before its last update");
  return in_parameter;
}

void refuseUndefinedVersions(const TrainingGraph& training, const Cut& cut, const Plan& plan,
                             const Schedule& schedule) {
  if (!schedule.asynchronous()) return;
  const std::string schedule_text = scheduleSpecToString(plan.schedule);
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    if (!isTrained(training.parameters[p])) continue;
    const std::vector<StageId> stages = stagesOfParameter(training, cut, p);
    if (stages.size() < 2) continue;
    fail(ErrorCode::kConfiguration,
         "--schedule {}: the weight '{}' belongs to stages {}, which have different versions of their "
         "weights at one time; {}, or stages that keep its readers together (--boundary)",
         schedule_text, training.graph.value(training.parameters[p].value).name, fmt::join(stages, " and "),
         kAdvice);
  }
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    if (!isTrained(training.parameters[p])) continue;
    const StageId owner = cut.owners[p];
    for (const ValueId part : training.parameters[p].gradient_parts) {
      const StageId maker = cut.place(part).stage;
      if (maker == owner || (schedule.replicasOf(maker) == 1 && schedule.replicasOf(owner) == 1)) continue;
      fail(ErrorCode::kConfiguration,
           "--schedule {}: stage {} makes a gradient of the weight '{}' of stage {}, and their replicas take "
           "minibatches in turn; move the boundary between them (--boundary), or take {}",
           schedule_text, maker, training.graph.value(training.parameters[p].value).name, owner,
           scheduleSpecToString(plan.schedule.with("rows", 1)));
    }
  }
  for (const ForwardState& state : training.forward_states) {
    fail(ErrorCode::kConfiguration,
         "--schedule {}: '{}' is a running statistic, which forward passes replace: it has no version that a "
         "pass could read again; {}",
         schedule_text, training.graph.value(state.value).name, kAdvice);
  }
  for (const StageId stage : plan.stages.ids()) {
    if (!plan.stages[stage].sharding) continue;
    fail(ErrorCode::kConfiguration,
         "--schedule {}: stage {} is sharded (--method {}); {}, or leave out --method", schedule_text, stage,
         shardingMethodToString(plan.stages[stage].sharding->method), kAdvice);
  }
}

Schedule onOneDevice(const Schedule& schedule) {
  Schedule alone = makeSchedule(ScheduleSpec{"sequential"}, 1, schedule.microbatches);
  if (!schedule.asynchronous()) return alone;
  alone.microbatches_per_update = schedule.microbatches_per_update;
  alone.versions = schedule.versions;
  alone.update_every = schedule.update_every;
  if (!schedule.update_every.empty()) {
    alone.stages = schedule.stages;
    alone.rank_of_stage.assign(schedule.stages, PipelineRankId(0));
  }
  std::vector<Action> order;
  for (int k = 0; k < schedule.microbatches; ++k) {
    for (const StageId stage : alone.rank_of_stage.ids()) order.push_back({stage, ActionKind::kForward, k});
    for (StageId stage(alone.stages - 1); stage.valid(); stage = stage.previous()) {
      order.push_back({stage, ActionKind::kBackward, k});
      if ((k + 1) % alone.updateEvery(stage) == 0) order.push_back({stage, ActionKind::kUpdate, k});
    }
  }
  alone.orders.front() = std::move(order);
  return alone;
}

}  // namespace pipeshard
