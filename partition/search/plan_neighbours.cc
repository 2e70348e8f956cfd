#include "partition/search/plan_neighbours.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "partition/search/plan_prediction.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {
namespace {

using Stages = std::vector<AssignedStage>;

bool sameWay(const StageConfig& a, const StageConfig& b) {
  return a.mesh == b.mesh && a.method == b.method && a.recomputation == b.recomputation;
}

// Goes through the changes in a fixed order: cuts, devices of two neighbours shared otherwise, two stages
// made one, other meshes, methods and recomputation, other schedules. Of plans with chunks only cuts and
// schedules change: the stages of one pipeline rank have one mesh.
//
// A changed stage gets the option with the least microbatches * pass + step, of those that fit under 1F1B if
// any does; then the whole plan is simulated, and that decides. `passes_` is what may still be simulated:
// 4 stages and 8 microbatches take 2 * 8 * 4 = 64 of it. The plan itself is predicted first, so that `made_`
// has its schedule: a schedule that is searched for given times is not searched anew for every neighbour.
class Neighbours {
 public:
  Neighbours(const PredictedPlan& plan, const NeighbourRequest& request)
      : plan_(plan), request_(request), passes_(request.passes) {}

  std::vector<PlanNeighbour> run() {
    predict(plan_.stages, plan_.schedule);  // an automatic schedule stays that of the plan
    const bool chunks = hasChunks();
    const int stages = plan_.stages.size();
    for (int s = 0; s + 1 < stages; ++s) moveCut(s, chunks);
    for (int s = 0; s + 1 < stages && !chunks; ++s) {
      shareDevices(s);
      joinStages(s);
    }
    for (int s = 0; s < stages && !chunks; ++s) otherWays(s);
    otherSchedules();
    return std::move(found_);
  }

 private:
  bool hasChunks() const {
    std::set<Submesh> seen;
    return std::any_of(plan_.stages.begin(), plan_.stages.end(),
                       [&](const AssignedStage& stage) { return !seen.insert(stage.submesh).second; });
  }

  const AssignedStage& stage(int s) const { return plan_.stages[s]; }

  bool fits(const StageOption& option, const Submesh& submesh, int stages_behind) const {
    const int64_t in_flight = std::min<int64_t>(plan_.microbatches, stages_behind + 1);
    const int64_t held = option.fixed_bytes + option.transient_bytes;
    return option.activation_bytes <= (INT64_MAX - held) / in_flight &&
           held + option.activation_bytes * in_flight <= request_.costs.costs->memoryBytes(submesh);
  }

  // The best option of those that `may` allows, of those that fit if any does; nullptr: there is none.
  template <typename May>
  const StageOption* bestOption(int first, int last, const Submesh& submesh, int stages_behind,
                                const May& may) const {
    const StageOption* best = nullptr;
    std::pair<bool, int64_t> best_cost;
    for (const StageOption& option : request_.costs.costs->options(first, last, submesh)) {
      if (!may(option)) continue;
      const std::pair<bool, int64_t> cost{!fits(option, submesh, stages_behind),
                                          plan_.microbatches * option.pass_ns + option.step_ns};
      if (best == nullptr || cost < best_cost) {
        best = &option;
        best_cost = cost;
      }
    }
    return best;
  }
  const StageOption* bestOption(int first, int last, const Submesh& submesh, int stages_behind) const {
    return bestOption(first, last, submesh, stages_behind, [](const StageOption&) { return true; });
  }

  int behind(int s) const { return std::ssize(plan_.stages) - 1 - s; }

  void add(std::string about, std::string chosen, std::string instead, std::optional<Stages> stages,
           const ScheduleSpec& schedule) {
    Neighbour neighbour{std::move(about), std::move(chosen), std::move(instead), 0, ""};
    if (!stages) {
      neighbour.why = "no sharding";
      found_.push_back({std::move(neighbour), std::nullopt});
      return;
    }
    if (passes_ <= 0) return;
    passes_ -= 2 * plan_.microbatches * std::ssize(*stages);
    std::optional<PredictedPlan> plan = predict(std::move(*stages), schedule);
    if (!plan) return;  // the schedule does not exist
    if (const std::string why = tooLarge(*plan); !why.empty()) {
      neighbour.why = why;
      plan.reset();
    } else {
      neighbour.step_ns = plan->step_ns;
    }
    found_.push_back({std::move(neighbour), std::move(plan)});
  }

  std::optional<PredictedPlan> predict(Stages stages, const ScheduleSpec& schedule) {
    const PredictionOptions options{request_.search.updates, request_.search.exposed_transfers, &made_};
    return predictPlan(request_.costs, std::move(stages), plan_.microbatches, schedule, options);
  }

  std::string tooLarge(const PredictedPlan& plan) const {
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const int64_t room = request_.costs.costs->memoryBytes(plan.stages[s].submesh);
      if (plan.memory_bytes[s] > room)
        return fmt::format("stage {} needs {} of {}", s, formatBytes(plan.memory_bytes[s]),
                           formatBytes(room));
    }
    return "";
  }

  // Chunks keep their config: stages on the same devices share their mesh.
  void moveCut(int s, bool chunks) {
    for (const int by : {-1, 1}) {
      const int cut = stage(s).last_layer + by;
      if (cut < stage(s).first_layer || cut >= stage(s + 1).last_layer) continue;
      const auto may = [&](const StageOption& option) {
        return !chunks || option.config == stage(s).option.config;
      };
      const StageOption* left = bestOption(stage(s).first_layer, cut, stage(s).submesh, behind(s), may);
      const StageOption* right =
          bestOption(cut + 1, stage(s + 1).last_layer, stage(s + 1).submesh, behind(s + 1), may);
      std::optional<Stages> stages;
      if (left != nullptr && right != nullptr) {
        stages = plan_.stages;
        (*stages)[s] = {stage(s).first_layer, cut, stage(s).submesh, *left, 0};
        (*stages)[static_cast<size_t>(s) + 1] = {cut + 1, stage(s + 1).last_layer, stage(s + 1).submesh,
                                                 *right, 0};
      }
      add(fmt::format("cut {}", s), fmt::format("behind layer {}", stage(s).last_layer),
          fmt::format("behind layer {}", cut), std::move(stages), plan_.schedule);
    }
  }

  // The devices of two neighbouring stages shared otherwise.
  void shareDevices(int s) {
    const Submesh& left = stage(s).submesh;
    const Submesh& right = stage(s + 1).submesh;
    const int all = right.first_device + right.deviceCount() - left.first_device;
    for (const Submesh& first : allowedAt(left.first_device)) {
      if (first == left || first.deviceCount() >= all) continue;
      for (const Submesh& second : allowedAt(left.first_device + first.deviceCount())) {
        if (first.deviceCount() + second.deviceCount() != all) continue;
        const StageOption* one = bestOption(stage(s).first_layer, stage(s).last_layer, first, behind(s));
        const StageOption* two =
            bestOption(stage(s + 1).first_layer, stage(s + 1).last_layer, second, behind(s + 1));
        std::optional<Stages> stages;
        if (one != nullptr && two != nullptr) {
          stages = plan_.stages;
          (*stages)[s] = {stage(s).first_layer, stage(s).last_layer, first, *one, 0};
          (*stages)[static_cast<size_t>(s) + 1] = {stage(s + 1).first_layer, stage(s + 1).last_layer, second,
                                                   *two, 0};
        }
        add(fmt::format("submeshes {} and {}", s, s + 1),
            fmt::format("{} and {}", submeshText(left), submeshText(right)),
            fmt::format("{} and {}", submeshText(first), submeshText(second)), std::move(stages),
            plan_.schedule);
      }
    }
  }

  void joinStages(int s) {
    const Submesh& left = stage(s).submesh;
    const Submesh& right = stage(s + 1).submesh;
    for (const Submesh& joined : allowedAt(left.first_device)) {
      if (joined.deviceCount() != right.first_device + right.deviceCount() - left.first_device) continue;
      const StageOption* option =
          bestOption(stage(s).first_layer, stage(s + 1).last_layer, joined, behind(s + 1));
      std::optional<Stages> stages;
      if (option != nullptr) {
        stages = plan_.stages;
        (*stages)[s] = {stage(s).first_layer, stage(s + 1).last_layer, joined, *option, 0};
        stages->erase(stages->begin() + s + 1);
      }
      add(fmt::format("stages {} and {}", s, s + 1), "two stages",
          fmt::format("one on {}", submeshText(joined)), std::move(stages), plan_.schedule);
    }
  }

  std::vector<Submesh> allowedAt(int device) const {
    if (device >= request_.search.cluster.deviceCount()) return {};
    std::vector<Submesh> all = submeshesAt(request_.search.cluster, device);
    if (request_.search.allowed)
      std::erase_if(all, [&](const Submesh& submesh) { return !request_.search.allowed(submesh); });
    return all;
  }

  // Other meshes and methods, and recomputation.
  void otherWays(int s) {
    const AssignedStage& at = stage(s);
    const StageConfig chosen = request_.costs.config(at.option.config);
    std::vector<StageConfig> seen = {chosen};
    for (const StageOption& option :
         request_.costs.costs->options(at.first_layer, at.last_layer, at.submesh)) {
      const StageConfig config = request_.costs.config(option.config);
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const StageConfig& other) { return sameWay(other, config); }))
        continue;
      seen.push_back(config);
      const StageOption* best = bestOption(
          at.first_layer, at.last_layer, at.submesh, behind(s),
          [&](const StageOption& other) { return sameWay(request_.costs.config(other.config), config); });
      Stages stages = plan_.stages;
      stages[s].option = *best;
      add(fmt::format("mesh {}", s), configText(chosen), configText(config), std::move(stages),
          plan_.schedule);
    }
  }

  void otherSchedules() {
    for (const ScheduleSpec& schedule : request_.schedules) {
      if (schedule == plan_.schedule) continue;
      add("schedule", scheduleSpecToString(plan_.schedule), scheduleSpecToString(schedule), plan_.stages,
          schedule);
    }
  }

  const PredictedPlan& plan_;
  const NeighbourRequest& request_;
  int64_t passes_;
  MadeSchedules made_;
  std::vector<PlanNeighbour> found_;
};

}  // namespace

std::string configText(const StageConfig& config) {
  std::string text = fmt::format("{}", fmt::join(config.mesh, "x"));
  if (config.method.kind != ShardingKind::kAuto) text += " " + shardingMethodToString(config.method);
  if (config.recomputation != Recomputation::kNever)
    text += fmt::format(", recomputing {}", recomputationName(config.recomputation));
  return text;
}

std::string submeshText(const Submesh& submesh) {
  return fmt::format("{}x{} from device {}", submesh.nodes, submesh.devices_per_node, submesh.first_device);
}

std::vector<PlanNeighbour> neighboursOf(const PredictedPlan& plan, const NeighbourRequest& request) {
  return Neighbours(plan, request).run();
}

}  // namespace pipeshard
