#include "partition/emit_versions.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/error.h"
#include "partition/node_stages.h"

namespace pipeshard {
namespace {

constexpr std::string_view kAdvice = "take a synchronous schedule (1f1b, zb-h1, ...)";

// Those that read it, and those before its owner that make a part of its gradient: their passes of a microbatch come behind the owner's
// update. (Later stages make parts, too: the gradient of a bias at a stage's end is that of the stage's output. They come before.)
std::vector<int> stagesOfParameter(const TrainingGraph& training, const Cut& cut, size_t parameter) {
  std::vector<int> stages;
  for (int stage = 0; stage < static_cast<int>(cut.stages.size()); ++stage) {
    const auto made_here = [&](ValueId part) { return cut.place(part).stage == stage && stage < cut.owners[parameter]; };
    const std::vector<ValueId>& parts = training.parameters[parameter].gradient_parts;
    const bool reads = cut.reads(stage, training.parameters[parameter].value);
    if (reads || stage == cut.owners[parameter] || std::any_of(parts.begin(), parts.end(), made_here)) stages.push_back(stage);
  }
  return stages;
}

}  // namespace

WeightVersions::WeightVersions(const Schedule& schedule, std::vector<int> stage_of) : schedule_(schedule), stage_of_(std::move(stage_of)) {}

int WeightVersions::read(size_t parameter, int microbatch) const {
  if (!asynchronous() || stage_of_[parameter] < 0) return 0;
  return schedule_.versions.at(static_cast<size_t>(stage_of_[parameter])).at(static_cast<size_t>(microbatch));
}

std::vector<bool> WeightVersions::inParameter(size_t parameter, const std::vector<Action>& order) const {
  std::vector<size_t> last_read(static_cast<size_t>(updates()) + 1);
  for (size_t at = 0; at < order.size(); ++at) {
    if (isPass(order[at].kind)) last_read.at(static_cast<size_t>(read(parameter, order[at].microbatch))) = at;
  }
  std::vector<bool> in_parameter = {true};
  size_t holds = 0;  // the version in the parameter's buffer
  for (size_t at = 0; at < order.size(); ++at) {
    if (order[at].kind != ActionKind::kUpdate) continue;
    in_parameter.push_back(last_read[holds] < at);
    if (in_parameter.back()) holds = in_parameter.size() - 1;
  }
  PIPESHARD_CHECK(in_parameter.size() == last_read.size() && in_parameter.back(), "the window ends before its last update");
  return in_parameter;
}

void refuseUndefinedVersions(const TrainingGraph& training, const Cut& cut, const Plan& plan, const Schedule& schedule) {
  if (!schedule.asynchronous()) return;
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    if (!isTrained(training.parameters[p])) continue;
    const std::vector<int> stages = stagesOfParameter(training, cut, p);
    if (stages.size() < 2) continue;
    fail(ErrorCode::kConfiguration,
         "--schedule {}: the weight '{}' belongs to stages {}, which have different versions of their weights at one time; {}, or stages "
         "that "
         "keep its readers together (--boundary)",
         plan.schedule, training.graph.value(training.parameters[p].value).name, fmt::join(stages, " and "), kAdvice);
  }
  for (const ForwardState& state : training.forward_states) {
    fail(ErrorCode::kConfiguration,
         "--schedule {}: '{}' is a running statistic, which forward passes replace: it has no version that a pass could read again; {}",
         plan.schedule, training.graph.value(state.value).name, kAdvice);
  }
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    if (!plan.stages[stage].sharding) continue;
    fail(ErrorCode::kConfiguration, "--schedule {}: stage {} is sharded (--method {}); {}, or leave out --method", plan.schedule, stage,
         plan.stages[stage].sharding->method, kAdvice);
  }
}

Schedule onOneDevice(const Schedule& schedule) {
  Schedule alone = makeSchedule("sequential", 1, schedule.microbatches);
  alone.microbatches_per_update = schedule.microbatches_per_update;
  alone.versions = schedule.versions;
  if (!schedule.asynchronous()) return alone;
  std::vector<Action> order;
  for (const Action& action : alone.orders.front()) {
    order.push_back(action);
    const bool completes = action.kind == ActionKind::kBackward && (action.microbatch + 1) % schedule.microbatches_per_update == 0;
    if (completes) order.push_back({0, ActionKind::kUpdate, action.microbatch});
  }
  alone.orders.front() = std::move(order);
  return alone;
}

}  // namespace pipeshard
