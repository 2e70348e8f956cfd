#include "benchmarks/suite_plans.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/search/plan_prediction.h"
#include "partition/search/plan_search.h"
#include "partition/search/search_memory.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {
namespace {

// Only some of the options of others.
class ChosenCosts : public OtherStageCosts {
 public:
  using Filter = std::function<bool(int first_layer, int last_layer, const Submesh&, const StageOption&)>;
  ChosenCosts(const StageCosts& costs, Filter filter, bool any_memory)
      : OtherStageCosts(costs), filter_(std::move(filter)), any_memory_(any_memory) {}

  int submeshClass(const Submesh& submesh) const override {
    return costs_.submeshClass(submesh) * 4096 + submesh.first_device;  // filters may ask for the place
  }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    const auto [found, added] =
        options_.try_emplace({first_layer, last_layer, submesh.first_device, submesh.deviceCount()});
    if (added) {
      for (const StageOption& option : costs_.options(first_layer, last_layer, submesh)) {
        if (filter_(first_layer, last_layer, submesh, option)) found->second.push_back(option);
      }
    }
    return found->second;
  }
  int64_t memoryBytes(const Submesh& submesh) const override {
    return any_memory_ ? INT64_MAX : costs_.memoryBytes(submesh);
  }

 private:
  Filter filter_;
  bool any_memory_;
  mutable std::map<std::array<int, 4>, std::vector<StageOption>> options_;
};

bool among(const std::vector<ShardingMethod>& all, const ShardingMethod& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::vector<ShardingMethod> methodsOf(const SuiteRow& row) {
  std::vector<ShardingMethod> all;
  for (const SuiteStage& stage : row.stages) {
    for (const ShardingMethod& method : stage.methods) {
      if (!among(all, method)) all.push_back(method);
    }
  }
  return all;
}

// On any grid, if it has one.
ShardingMethod ofAnyGrid(const ShardingMethod& method) { return {method.kind}; }

// What the neediest device holds.
std::string memoryText(const PredictedPlan& plan, const CountedCosts& costs) {
  const auto most = std::max_element(plan.memory_bytes.begin(), plan.memory_bytes.end());
  const size_t s = most - plan.memory_bytes.begin();
  const AssignedStage& stage = plan.stages.at(s);
  const StageCostParts parts = costs.parts(stage.first_layer, stage.last_layer, stage.submesh, stage.option);
  return fmt::format(
      "stage {} of {}, {}: weights {}, gradients {}, optimizer {}, activations {} a microbatch, transient {}",
      s, plan.stages.size(), shardingMethodToString(costs.config(stage.option.config).method),
      formatBytes(parts.weight_bytes), formatBytes(parts.gradient_bytes), formatBytes(parts.optimizer_bytes),
      formatBytes(parts.activation_bytes), formatBytes(parts.transient_bytes));
}

std::string planText(const PredictedPlan& plan, const CountedCosts& costs) {
  std::string text =
      fmt::format("{} microbatches, {}:", plan.microbatches, scheduleSpecToString(plan.schedule));
  for (const AssignedStage& stage : plan.stages) {
    const StageConfig config = costs.config(stage.option.config);
    text += fmt::format(
        " [{}..{}] {}x{} as {}{}{}", stage.first_layer, stage.last_layer, stage.submesh.nodes,
        stage.submesh.devices_per_node, fmt::join(config.mesh, "x"),
        config.method.kind == ShardingKind::kAuto ? "" : " " + shardingMethodToString(config.method),
        config.recomputation == Recomputation::kNever ? "" : "*");
  }
  return text;
}

Planned planned(const PlanSearchRequest& request) {
  try {
    const PlanSearchResult result = searchPlans(request);
    if (result.plans.empty()) return {};
    return {result.plans.front().step_ns, planText(result.plans.front(), result.costs)};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration && error.code() != ErrorCode::kOutOfMemory) throw;
    return {};
  }
}

}  // namespace

Prediction predictStored(const SuiteRow& row, const Step& step, const Cluster& cluster) {
  StageCostOptions options;
  options.methods = methodsOf(row);
  options.recomputations = {Recomputation::kLayers};
  options.meshes = [&](const Submesh& submesh) {
    std::vector<std::vector<int>> meshes;
    for (const SuiteStage& stage : row.stages) {
      if (stage.devices == submesh.deviceCount() && meshes.empty()) meshes.push_back(stage.mesh);
    }
    return meshes;
  };
  const auto costs = std::make_shared<ShardedStageCosts>(step.training, step.clustering, cluster, options);
  std::map<std::array<int, 4>, const SuiteStage*> planned;
  int device = 0;
  for (const SuiteStage& stage : row.stages) {
    planned[{stage.first_layer, stage.last_layer, device, stage.devices}] = &stage;
    device += stage.devices;
  }
  const auto isPlanned = [&](int first, int last, const Submesh& submesh, const StageOption& option) {
    const auto found = planned.find({first, last, submesh.first_device, submesh.deviceCount()});
    return found != planned.end() &&
           among(found->second->methods, ofAnyGrid(costs->config(option.config).method));
  };
  // Only the stored stages are left to the exact search, so it chooses their boundaries alone. Where they do
  // not fit, they are predicted once more on devices of any memory.
  for (const bool any_memory : {false, true}) {
    const ChosenCosts chosen(*costs, isPlanned, any_memory);
    AssignmentRequest request{.costs = chosen, .cluster = cluster, .microbatches = row.microbatches};
    request.allowed = [&](const Submesh& submesh) {
      return std::any_of(planned.begin(), planned.end(), [&](const auto& one) {
        return one.first[2] == submesh.first_device && one.first[3] == submesh.deviceCount();
      });
    };
    request.all_devices = true;
    const AssignmentResult result = assignStagesToMeshes(request);
    if (result.assignments.empty()) continue;
    const auto plan = predictPlan(countedCosts(costs), result.assignments.front().stages, row.microbatches,
                                  usualSchedule(), {.updates = 1, .exposed_transfers = true});
    if (plan) return {!any_memory, plan->step_ns, plan->peakMemory(), memoryText(*plan, countedCosts(costs))};
  }
  return {};
}

Prediction predictOneStage(const Step& step, const Cluster& cluster, const ShardingMethod& method,
                           Recomputation recomputation) {
  StageCostOptions options;
  options.methods = {method};
  options.recomputations = {recomputation};
  const auto costs = std::make_shared<ShardedStageCosts>(step.training, step.clustering, cluster, options);
  const std::vector<Submesh> submeshes = submeshesAt(cluster, 0);
  const auto whole = std::find_if(submeshes.begin(), submeshes.end(), [&](const Submesh& submesh) {
    return submesh.deviceCount() == cluster.deviceCount();
  });
  Prediction best;
  for (const StageOption& option : costs->options(0, costs->layers() - 1, *whole)) {
    const auto plan =
        predictPlan(countedCosts(costs), {{0, costs->layers() - 1, *whole, option}}, 1, usualSchedule(), {});
    if (!plan) continue;
    const Prediction found{fitsDevices(*plan, *costs), plan->step_ns, plan->peakMemory(),
                           memoryText(*plan, countedCosts(costs))};
    const bool better =
        best.step_ns == 0 || (found.fits && !best.fits) ||
        (found.fits == best.fits && (found.fits ? found.step_ns < best.step_ns : found.memory < best.memory));
    if (better) best = found;
  }
  return best;
}

std::string Planned::text(int64_t beside) const {
  return step_ns == 0 ? "out of memory"
                      : fmt::format("{:.3f}x", static_cast<double>(step_ns) / static_cast<double>(beside));
}

RowSearch::RowSearch(const SuiteRow& row, Models& models, int threads)
    : row_(row), models_(models), cluster_(suiteCluster(row.gpus)), threads_(threads) {}

Planned RowSearch::best() {
  PlanSearchRequest request = requestFor({ShardingMethod{}});
  request.costs_in_need = [this](int64_t count) {
    return costsOf({{ShardingKind::kAuto},
                    {ShardingKind::kZero2},
                    {ShardingKind::kZero3},
                    {ShardingKind::kMegatronZero2}},
                   count);
  };
  request.costs_where_memory_binds = [this](int64_t count) {
    return costsOf({{ShardingKind::kAuto}, {ShardingKind::kMegatronZero2}}, count);
  };
  return planned(request);
}

Planned RowSearch::uniform(const ShardingMethod& method) {
  Planned best;
  for (int stages = 1; stages <= std::min(row_.gpus, row_.layers); ++stages) {
    if (row_.gpus % stages != 0) continue;
    const Planned found = only(method, stages);
    if (found.step_ns > 0 && (best.step_ns == 0 || found.step_ns < best.step_ns)) best = found;
  }
  return best;
}

Planned RowSearch::only(const ShardingMethod& method, int stages) {
  PlanSearchRequest request = requestFor({method});
  request.schedule = usualSchedule();
  request.neighbours = false;
  request.least_stages = request.most_stages = stages;
  const int devices = row_.gpus / stages;
  request.allowed = [devices](const Submesh& submesh) {
    return submesh.deviceCount() == devices && submesh.first_device % devices == 0;
  };
  // Only runs of equally many layers are left, each on its own place of the cluster: stage s has the layers
  // from s * layers / stages on.
  const auto all = request.costs;
  request.costs = [this, all, stages, devices](int64_t count) {
    CountedCosts counted = all(count);
    const auto isEqual = [this, stages, devices](int first, int last, const Submesh& submesh,
                                                 const StageOption&) {
      const int s = submesh.first_device / devices;
      return first == s * row_.layers / stages && last == (s + 1) * row_.layers / stages - 1;
    };
    filtered_.push_back(std::make_shared<ChosenCosts>(*counted.costs, isEqual, false));
    counted.costs = filtered_.back();
    return counted;
  };
  return planned(request);
}

std::pair<Planned, int64_t> RowSearch::within(const ShortageRow& way) {
  PlanSearchRequest request = requestFor(way.methods);
  request.schedule = usualSchedule();
  request.neighbours = false;
  request.microbatches =
      way.microbatches.empty() ? std::vector<int64_t>{row_.microbatches} : way.microbatches;
  request.first = 0;
  if (way.devices > 0)
    request.allowed = [&way](const Submesh& submesh) { return submesh.deviceCount() == way.devices; };
  const Planned found = planned(request);
  return {found, found.step_ns > 0 ? 0 : leastMemory(request).bytes};
}

PlanSearchRequest RowSearch::requestFor(const std::vector<ShardingMethod>& methods) {
  PlanSearchRequest request{.cluster = cluster_, .microbatches = {}, .costs = {}};
  for (int64_t count = 1; count <= row_.batch; ++count) {
    if (row_.batch % count == 0) request.microbatches.push_back(count);
  }
  const auto stored = std::find(request.microbatches.begin(), request.microbatches.end(), row_.microbatches);
  request.first = stored - request.microbatches.begin();
  request.exposed_transfers = true;
  request.costs = [this, methods](int64_t count) { return costsOf(methods, count); };
  request.allowed = [this](const Submesh& submesh) {
    const auto is_power = [](int number) { return (number & (number - 1)) == 0; };
    return row_.gpus <= 8 || (is_power(submesh.nodes) && is_power(submesh.devices_per_node));
  };
  return request;
}

CountedCosts RowSearch::costsOf(const std::vector<ShardingMethod>& methods, int64_t count) {
  std::shared_ptr<ShardedStageCosts>& costs = costs_[{methods, count}];
  if (!costs) {
    const Step& step = models_.step(row_, count);
    StageCostOptions options;
    options.methods = methods;
    options.recomputations = {Recomputation::kNever, Recomputation::kLayers};
    options.threads = threads_;
    costs = std::make_shared<ShardedStageCosts>(step.training, step.clustering, cluster_, options);
  }
  return countedCosts(costs);
}

}  // namespace pipeshard
