#include "planning/search/stage_search.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "partition/costs/stage_costs.h"
#include "partition/costs/submesh_classes.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/layers/chain.h"
#include "partition/layers/layer_clustering.h"
#include "partition/layers/layers.h"
#include "partition/search/assignment_request.h"
#include "partition/search/plan_prediction.h"
#include "partition/search/plan_search.h"
#include "partition/search/search_limits.h"
#include "partition/search/search_memory.h"
#include "partition/search/stage_assignment.h"
#include "planning/model/training_step.h"
#include "runtime/job/job.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostMicrobatches = 4096;  // that are tried where nobody says
constexpr size_t kMostStageCosts = 200;      // rows of the table of stages' costs
// devices: where memory binds, methods that need less of it are tried, too
constexpr int kMostWithMethods = 64;
// Layers are cut finer where the busiest device works this much longer than the average,
constexpr double kUneven = 1.125;
// so that each stage has about as many of them, and there are these at least
constexpr int kLayersOfStage = 4;
constexpr int kFineLayers = 16;
constexpr int kMostFineLayers = 64;

void refuseOptions(const PartitionOptions& options) {
  const auto refuse = [](bool given, const char* option) {
    if (given)
      fail(ErrorCode::kUsage,
           "{} and --stages auto exclude each other: the search decides about stages and devices", option);
  };
  refuse(!options.boundaries.empty(), "--boundary");
  refuse(options.balance.has_value(), "--balance");
  refuse(!options.stage_devices.empty(), "--stage-devices");
  refuse(!options.sharding.constraints.empty() ||
             options.sharding.method == ShardingMethod{ShardingKind::kManual},
         "--shard");
  refuse(options.sharding.method == ShardingMethod{ShardingKind::kExhaustive}, "--method exhaustive");
  refuse(!options.recomputation.by_stage.empty() || options.recomputation.all == Recomputation::kExceptLast,
         "--recompute by stage, or but for the last microbatch,");
  refuse(options.schedule && std::holds_alternative<OrdersFile>(*options.schedule), "a file of orders");
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= number && d <= kMostMicrobatches; ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found;
}

// Everything that the costs of one number of microbatches keep by reference.
struct CountState {
  TrainingFamily family;
  Clustering clustering;
  std::unique_ptr<ShardedStageCosts> costs;
};

// What costs are made with.
struct Ways {
  std::vector<ShardingMethod> methods;
  int layers = 0;  // ClusteringOptions::layers
  friend auto operator<=>(const Ways&, const Ways&) = default;
};

// Asks the search of plans (partition/search/plan_search.h) and puts its answer into words that plan files
// have. What costs refer to (the training step, its layers) is kept in states_ by ways and number of
// microbatches, and lives as long as this object, since the search's result refers to it, too.
//
// `ways_` are those that costs are made with at the moment: the search asks first with the usual methods, and
// again with more where memory is short (costsWith sets them), or with finer layers (moreEven). Before
// anything is described they are set back to those of the plan that was found, because stateOf looks its
// state up under them.
class Search {
 public:
  Search(const PlanRequest& request, const ForwardModel& model, const PartitionOptions& options,
         const ProgressCallback& progress, const std::atomic<bool>* interrupted)
      : request_(request),
        model_(model),
        options_(options),
        progress_(progress),
        interrupted_(interrupted),
        ways_{{options.sharding.method.value_or(ShardingMethod{})}, options.layers} {}

  StageSearchResult run() {
    refuseOptions(options_);
    Plan noted;
    cut_ = canSumOverBatch(model_, request_.given.optimizer, noted);
    StageSearchResult result;
    result.notes = noted.notes;
    const PlanSearchRequest search = searchRequest();
    PlanSearchResult found = searchPlans(search);
    setWaysOf(found);
    if (found.plans.empty()) {
      if (!found.complete) return {};
      failInfeasible(search, found);
    }
    const int finer = found.complete && options_.layers == 0 ? finerLayers(found.plans.front()) : 0;
    if (finer > 0) found = moreEven(std::move(found), finer, result.notes);
    describe(search, found, result);
    return result;
  }

 private:
  // Those of its costs, for stateOf.
  void setWaysOf(const PlanSearchResult& found) {
    for (const auto& [key, state] : states_) {
      if (state->costs.get() == found.costs.costs.get()) ways_ = key.first;
    }
  }

  // How many layers may make the plan's stages more even; 0: they are even, or cannot be made so.
  int finerLayers(const PredictedPlan& plan) {
    const CountState& state = stateOf(plan.microbatches);
    const int stages = static_cast<int>(plan.stages.size());
    const int layers = std::min(std::max(kFineLayers, kLayersOfStage * stages), kMostFineLayers);
    if (stages < 2 || layers <= std::ssize(state.clustering.ends)) return 0;
    double work = 0, devices = 0;
    const AssignedStage* busiest = &plan.stages.front();
    for (const AssignedStage& stage : plan.stages) {
      devices += stage.submesh.deviceCount();
      work += static_cast<double>(stage.option.pass_ns) * stage.submesh.deviceCount();
      if (stage.option.pass_ns > busiest->option.pass_ns) busiest = &stage;
    }
    const double even = static_cast<double>(busiest->option.pass_ns) / kUneven;
    const double largest = work * largestShare(state.family.base(), layers);
    return work / devices < even && largest / busiest->submesh.deviceCount() < even ? layers : 0;
  }

  // Of the forward FLOPs, what the largest of so many layers has; 1 where there cannot be as many.
  static double largestShare(const TrainingGraph& training, int layers) {
    const std::vector<NodeId> order = forwardNodes(training);
    if (std::ssize(order) < layers) return 1;
    const LayerEnds ends = clusterTraining(training, {.layers = layers}).ends;
    const std::vector<int64_t> flops = forwardFlops(training, order);
    int64_t largest = 0, total = 0, first = 0;
    for (const int64_t end : ends) {
      const int64_t layer = sumOver(flops, first, end);
      largest = std::max(largest, layer);
      total += layer;
      first = end + 1;
    }
    return static_cast<double>(largest) / static_cast<double>(std::max<int64_t>(total, 1));
  }

  // The better one of `coarse` and what is found with so many layers.
  PlanSearchResult moreEven(PlanSearchResult coarse, int layers, std::vector<std::string>& notes) {
    const PredictedPlan& best = coarse.plans.front();
    const int64_t before = std::ssize(stateOf(best.microbatches).clustering.ends);
    progress_(fmt::format("stages are uneven: cutting {} layers instead of {}", layers, before));
    ways_.layers = layers;
    PlanSearchRequest search = searchRequest();
    search.first = firstOf(search.microbatches, best.microbatches);
    for (const CountTried& tried : coarse.tried) {
      if (tried.objective_ns > 0) search.bound_ns = std::min(search.bound_ns, tried.objective_ns);
    }
    PlanSearchResult fine = searchPlans(search);
    const bool better = !fine.plans.empty() && fine.plans.front().step_ns < best.step_ns;
    coarse.complete = fine.complete;
    const auto addNeighbour = [&](PlanSearchResult& to, int64_t chosen, int64_t instead, int64_t step_ns) {
      to.neighbours.push_back({"layers", fmt::format("{}", chosen), fmt::format("{}", instead), step_ns, ""});
    };
    if (better) {
      notes.push_back(
          fmt::format("stages of {} layers were uneven: with {} of them a step is predicted {:.1f} % shorter",
                      before, layers, 100 - 100.0 * fine.plans.front().step_ns / best.step_ns));
      addNeighbour(fine, layers, before, best.step_ns);
    } else if (!fine.plans.empty()) {
      addNeighbour(coarse, before, layers, fine.plans.front().step_ns);
    }
    PlanSearchResult result = better ? std::move(fine) : std::move(coarse);
    setWaysOf(result);
    return result;
  }

  PlanSearchRequest searchRequest() {
    PlanSearchRequest search{.cluster = options_.cluster, .microbatches = {}, .costs = {}};
    const auto costsWith = [this](const std::vector<ShardingMethod>& methods) {
      return [this, ways = Ways{methods, ways_.layers}](int64_t count) {
        ways_ = ways;
        return costsOf(count);
      };
    };
    search.costs = costsWith(ways_.methods);
    if (!options_.sharding.method) {
      const ShardingMethod automatic, grid{ShardingKind::kMegatronZero2};
      search.costs_in_need = costsWith({automatic, {ShardingKind::kZero2}, {ShardingKind::kZero3}, grid});
      if (options_.cluster.deviceCount() <= kMostWithMethods)
        search.costs_where_memory_binds = costsWith({automatic, grid});
    }
    if (options_.schedule) search.schedule = std::get<ScheduleSpec>(*options_.schedule);
    const bool asynchronous = search.schedule && isAsynchronous(*search.schedule);
    if (asynchronous) search.updates = options_.window > 0 ? options_.window : kDefaultWindow;
    search.microbatches = model_.fixed_batch > 0      ? std::vector<int64_t>{model_.microbatches}
                          : request_.microbatches > 0 ? std::vector<int64_t>{request_.microbatches}
                          : cut_                      ? divisors(model_.batch)
                                                      : std::vector<int64_t>{1};
    search.first = firstOf(search.microbatches, asynchronous ? 1 : 2 * options_.cluster.deviceCount());
    if (!asynchronous)
      search.first = firstOf(search.microbatches, 2 * mostStages(search.microbatches[search.first]));
    // Stages of several devices train with synchronous schedules only.
    search.allowed =
        allowedSubmeshes(request_.submeshes ? *request_.submeshes : usualSubmeshes(options_.cluster));
    if (asynchronous) {
      search.allowed = [given = search.allowed](const Submesh& submesh) {
        return submesh.deviceCount() == 1 && (!given || given(submesh));
      };
    }
    search.threads = threads();
    search.interrupted = interrupted_;
    search.progress = progress_;
    return search;
  }

  // The largest number that is at most `usual`.
  static size_t firstOf(const std::vector<int64_t>& numbers, int64_t usual) {
    const auto behind = std::upper_bound(numbers.begin(), numbers.end(), usual);
    return behind == numbers.begin() ? 0 : static_cast<size_t>(behind - numbers.begin()) - 1;
  }

  // There are no more stages than layers, of which there are about equally many whatever the number of
  // microbatches.
  int64_t mostStages(int64_t count) {
    const int64_t devices = options_.cluster.deviceCount();
    try {
      return std::min(devices, std::ssize(stateOf(count).clustering.ends));
    } catch (const Error&) {
      return devices;  // the search says why this number cannot be
    }
  }

  static int threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

  CountState& stateOf(int64_t count) {
    const auto found = states_.find({ways_, count});
    if (found != states_.end()) return *found->second;
    const BatchCut batch{model_.batch, count, cut_ || count > 1};
    auto made = std::make_unique<CountState>(
        CountState{trainingFamily(model_, request_.given.optimizer, batch), {}, nullptr});
    const TrainingGraph& training = made->family.base();
    ClusteringOptions clustering;
    clustering.layers = ways_.layers;
    made->clustering = clusterTraining(training, clustering);
    made->costs =
        std::make_unique<ShardedStageCosts>(training, made->clustering, options_.cluster, costOptions());
    return *states_.emplace(std::pair(ways_, count), std::move(made)).first->second;
  }

  StageCostOptions costOptions() const {
    StageCostOptions costs;
    costs.methods = ways_.methods;
    // so memory is short
    costs.cut_shared = std::find(ways_.methods.begin(), ways_.methods.end(),
                                 ShardingMethod{ShardingKind::kZero3}) != ways_.methods.end();
    if (options_.sharding.mesh) {
      costs.meshes = [mesh = *options_.sharding.mesh](const Submesh& submesh) {
        return submesh.deviceCount() == mesh.deviceCount() ? std::vector<std::vector<int>>{mesh.shape}
                                                           : std::vector<std::vector<int>>{};
      };
    }
    if (request_.logical_meshes) limitLogicalMeshes(*request_.logical_meshes, costs);
    costs.recomputations = {Recomputation::kNever, Recomputation::kSelective, Recomputation::kLayers};
    if (request_.recomputation_given) costs.recomputations = {options_.recomputation.all};
    costs.memory_bytes = options_.sharding.memory_bytes;
    costs.given = request_.given;
    costs.halves = options_.schedule && familyOf(std::get<ScheduleSpec>(*options_.schedule)).splits_backward;
    costs.threads = threads();
    // Of several threads: a signal waits for the next phase.
    costs.progress = [this](const std::string& phase) {
      try {
        progress_(phase);
      } catch (const JobInterrupted&) {
      }
    };
    costs.interrupted = interrupted_;
    return costs;
  }

  // Kept by this object.
  CountedCosts costsOf(int64_t count) {
    return countedCosts(
        std::shared_ptr<const ShardedStageCosts>(std::shared_ptr<void>(), stateOf(count).costs.get()));
  }

  [[noreturn]] void failInfeasible(const PlanSearchRequest& search, const PlanSearchResult& found) {
    const LeastMemory least = leastMemory(search);
    std::string tried;
    for (const CountTried& count : found.tried)
      tried += fmt::format("{}{}", tried.empty() ? "" : ", ", count.microbatches);
    if (least.stages.empty())
      fail(ErrorCode::kConfiguration,
           "--stages auto: no plan was found with {} microbatches, whatever the memory; the options exclude "
           "each other",
           tried);
    fail(
        ErrorCode::kOutOfMemory,
        "--stages auto: no plan was found that fits into the devices' memory (tried: {} microbatches); the "
        "least that a plan of the search was foreseen to need is {} of each device ({} bytes), with {} "
        "stages and {} microbatches. The search does not try everything: try --stages uniform:1 with a named "
        "method (--method zero3, megatron-zero2:DP,TP), --recompute layers, fewer layers (--layers 2), whose "
        "memory is "
        "foreseen closer, more microbatches (--microbatches), more memory (--memory) or more devices "
        "(--cluster)",
        tried, formatBytes(least.bytes), least.bytes, least.stages.size(), least.microbatches);
  }

  StageChoice choiceOf(const PredictedPlan& plan) {
    StageChoice choice{options_, plan.microbatches};
    ChosenStages& chosen = choice.options.chosen.emplace();
    chosen.layer_ends = stateOf(plan.microbatches).clustering.ends;
    chosen.schedule_costs = plan.schedule_costs;
    chosen.cut_batch = cut_ || plan.microbatches > 1;
    for (const AssignedStage& stage : plan.stages) {
      const StageConfig& config = stateOf(plan.microbatches).costs->config(stage.option.config);
      ChosenStage& one = chosen.stages.emplace_back();
      one.last_layer = LayerId(stage.last_layer);
      one.devices = devicesOf(stage.submesh);
      one.method = config.method;
      one.mesh = config.mesh;
      one.recomputation = config.recomputation;
    }
    choice.options.schedule = plan.schedule;
    choice.options.recomputation = {};
    choice.options.sharding = {};
    choice.options.sharding.memory_bytes = options_.sharding.memory_bytes;
    return choice;
  }

  SearchedStage describeStage(int64_t count, int first, int last, const Submesh& submesh,
                              const StageOption& option, int64_t memory) {
    const StageConfig& config = stateOf(count).costs->config(option.config);
    return {first,       last,          submesh.first_device, submesh.nodes,  submesh.devices_per_node,
            config.mesh, config.method, config.recomputation, option.pass_ns, option.step_ns,
            memory};
  }

  void describe(const PlanSearchRequest& search, const PlanSearchResult& found, StageSearchResult& result) {
    result.record.complete = found.complete;
    result.record.objective = objectiveText(search);
    for (const PredictedPlan& plan : found.plans) {
      result.choices.push_back(choiceOf(plan));
      SearchedPlan& row = result.record.alternatives.emplace_back();
      row.step_ns = plan.step_ns;
      row.memory_bytes = plan.peakMemory();
      row.microbatches = plan.microbatches;
      row.schedule = plan.schedule;
      for (size_t s = 0; s < plan.stages.size(); ++s) {
        const AssignedStage& stage = plan.stages[s];
        row.stages.push_back(describeStage(plan.microbatches, stage.first_layer, stage.last_layer,
                                           stage.submesh, stage.option, plan.memory_bytes[s]));
      }
    }
    for (const Neighbour& neighbour : found.neighbours)
      result.record.reasons.push_back(
          {neighbour.about, neighbour.chosen, neighbour.instead, neighbour.step_ns, neighbour.why});
    describeCosts(found.plans.front().microbatches, result.record);
    const std::vector<std::string>& notes = stateOf(found.plans.front().microbatches).clustering.notes;
    result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  }

  // Submeshes that differ in their transfers alone have one row.
  static void addCost(std::vector<SearchedStage>& costs, SearchedStage stage) {
    const auto shape = [](const SearchedStage& other) {
      return std::tuple(other.first_layer, other.last_layer, other.nodes, other.devices_per_node,
                        other.pass_ns, other.step_ns, other.memory_bytes);
    };
    if (costs.empty() || shape(costs.back()) != shape(stage)) costs.push_back(std::move(stage));
  }

  // The best way of every run of layers on one submesh of every class.
  void describeCosts(int64_t count, SearchRecord& record) {
    const ShardedStageCosts& costs = *stateOf(count).costs;
    std::map<int, Submesh> classes;
    for (int device = 0; device < options_.cluster.deviceCount(); ++device) {
      for (const Submesh& submesh : submeshesAt(options_.cluster, device))
        classes.try_emplace(costs.submeshClass(submesh), submesh);
    }
    std::vector<Submesh> submeshes;
    for (const auto& [number, submesh] : classes) submeshes.push_back(submesh);
    std::sort(submeshes.begin(), submeshes.end(), [](const Submesh& a, const Submesh& b) {
      return std::tuple(a.deviceCount(), a.nodes, a.first_device) <
             std::tuple(b.deviceCount(), b.nodes, b.first_device);
    });
    const size_t layers = costs.layers();
    if (layers * (layers + 1) / 2 * submeshes.size() > kMostStageCosts) return;
    for (int first = 0; first < costs.layers(); ++first) {
      for (int last = first; last < costs.layers(); ++last) {
        for (const Submesh& submesh : submeshes) {
          const std::vector<StageOption>& options = costs.options(first, last, submesh);
          const auto cost = [&](const StageOption& option) {
            return count * option.pass_ns + option.step_ns;
          };
          const auto best =
              std::min_element(options.begin(), options.end(),
                               [&](const StageOption& a, const StageOption& b) { return cost(a) < cost(b); });
          if (best == options.end()) continue;
          addCost(record.stage_costs,
                  describeStage(count, first, last, submesh, *best,
                                best->fixed_bytes + best->activation_bytes + best->transient_bytes));
        }
      }
    }
  }

  const PlanRequest& request_;
  const ForwardModel& model_;
  const PartitionOptions& options_;
  const ProgressCallback& progress_;
  const std::atomic<bool>* interrupted_;
  bool cut_ = false;
  Ways ways_;  // that are tried now
  std::map<std::pair<Ways, int64_t>, std::unique_ptr<CountState>> states_;
};

}  // namespace

StageSearchResult searchStages(const PlanRequest& request, const ForwardModel& model,
                               const PartitionOptions& options, const ProgressCallback& progress,
                               const std::atomic<bool>* interrupted) {
  return Search(request, model, options, progress, interrupted).run();
}

}  // namespace pipeshard
