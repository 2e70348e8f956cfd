#include "planning/search/stage_search.h"

#include <algorithm>
#include <map>
#include <memory>
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

// Larger numbers of microbatches are not tried where nobody says how many.
constexpr int64_t kMostMicrobatches = 4096;
// The table of stages' costs is left out of the record where it would have more rows.
constexpr size_t kMostStageCosts = 200;
// Methods that need less memory are tried, where memory binds, on no more devices than these.
constexpr int kMostWithMethods = 64;
// Stages are uneven, and layers are cut finer, where the busiest device works this many times the average.
constexpr double kUneven = 1.125;
// Finer layers are so many for each stage of the plan found,
constexpr int kLayersOfStage = 4;
// but these at least,
constexpr int kFineLayers = 16;
// and these at most.
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

// What the costs of stages are made with. The search asks first with the usual methods, again with more where
// memory is short, and with finer layers where stages are uneven.
struct CostSettings {
  std::vector<ShardingMethod> methods;
  int layers = 0;  // ClusteringOptions::layers
  friend auto operator<=>(const CostSettings&, const CostSettings&) = default;
};

// What a search has found, and what the costs of its plans were made with.
struct FoundPlans {
  PlanSearchResult result;
  CostSettings settings;

  const PredictedPlan& best() const { return result.plans.front(); }
};

// Asks the search of plans (partition/search/plan_search.h) and puts its answer into words that plan files
// have. What costs refer to (the training step, its layers) is kept in states_ by settings and number of
// microbatches, and lives as long as this object, since the search's result refers to it, too.
class Search {
 public:
  Search(const PlanRequest& request, const ForwardModel& model, const PartitionOptions& options,
         const ProgressCallback& progress, const std::atomic<bool>* interrupted)
      : request_(request), model_(model), options_(options), progress_(progress), interrupted_(interrupted) {}

  StageSearchResult run() {
    refuseOptions(options_);
    Plan noted;
    cut_ = canSumOverBatch(model_, request_.given.optimizer, noted);
    StageSearchResult result;
    result.notes = noted.notes;
    const CostSettings usual{{options_.sharding.method.value_or(ShardingMethod{})}, options_.layers};
    const PlanSearchRequest search = searchRequest(usual);
    FoundPlans found = ask(search);
    if (found.result.plans.empty()) {
      if (!found.result.complete) return {};
      failInfeasible(search, found.result);
    }
    const int finer = found.result.complete && options_.layers == 0 ? finerLayers(found) : 0;
    if (finer > 0) found = moreEven(std::move(found), finer, result.notes);
    describe(search, found, result);
    return result;
  }

 private:
  // The search itself may turn to other settings than those it begins with: the result's costs say which.
  FoundPlans ask(const PlanSearchRequest& search) {
    FoundPlans found{searchPlans(search), {}};
    for (const auto& [key, state] : states_) {
      if (state->costs.get() == found.result.costs.costs.get()) found.settings = key.first;
    }
    return found;
  }

  // How many layers may make the stages more even; 0: they are even, or cannot be made so.
  int finerLayers(const FoundPlans& found) {
    const PredictedPlan& plan = found.best();
    const CountState& state = stateOf(found.settings, plan.microbatches);
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
  FoundPlans moreEven(FoundPlans coarse, int layers, std::vector<std::string>& notes) {
    const PredictedPlan& best = coarse.best();
    const int64_t before = std::ssize(stateOf(coarse.settings, best.microbatches).clustering.ends);
    progress_(fmt::format("stages are uneven: cutting {} layers instead of {}", layers, before));
    PlanSearchRequest search = searchRequest({coarse.settings.methods, layers});
    search.first = firstOf(search.microbatches, best.microbatches);
    for (const CountTried& tried : coarse.result.tried) {
      if (tried.objective_ns > 0) search.bound_ns = std::min(search.bound_ns, tried.objective_ns);
    }
    FoundPlans fine = ask(search);
    coarse.result.complete = fine.result.complete;
    const auto addNeighbour = [&](FoundPlans& to, int64_t chosen, int64_t instead, int64_t step_ns) {
      to.result.neighbours.push_back(
          {"layers", fmt::format("{}", chosen), fmt::format("{}", instead), step_ns, ""});
    };
    if (fine.result.plans.empty()) return coarse;
    if (fine.best().step_ns >= best.step_ns) {
      addNeighbour(coarse, before, layers, fine.best().step_ns);
      return coarse;
    }
    notes.push_back(
        fmt::format("stages of {} layers were uneven: with {} of them a step is predicted {:.1f} % shorter",
                    before, layers, 100 - 100.0 * fine.best().step_ns / best.step_ns));
    addNeighbour(fine, layers, before, best.step_ns);
    return fine;
  }

  PlanSearchRequest searchRequest(const CostSettings& settings) {
    PlanSearchRequest search{.cluster = options_.cluster, .microbatches = {}, .costs = {}};
    const auto costsWith = [&](const std::vector<ShardingMethod>& methods) {
      return [this, with = CostSettings{methods, settings.layers}](int64_t count) {
        return costsOf(with, count);
      };
    };
    search.costs = costsWith(settings.methods);
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
      search.first =
          firstOf(search.microbatches, 2 * mostStages(settings, search.microbatches[search.first]));
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
  int64_t mostStages(const CostSettings& settings, int64_t count) {
    const int64_t devices = options_.cluster.deviceCount();
    try {
      return std::min(devices, std::ssize(stateOf(settings, count).clustering.ends));
    } catch (const Error&) {
      return devices;  // the search says why this number cannot be
    }
  }

  static int threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

  CountState& stateOf(const CostSettings& settings, int64_t count) {
    const auto found = states_.find({settings, count});
    if (found != states_.end()) return *found->second;
    const BatchCut batch{model_.batch, count, cut_ || count > 1};
    auto made = std::make_unique<CountState>(
        CountState{trainingFamily(model_, request_.given.optimizer, batch), {}, nullptr});
    const TrainingGraph& training = made->family.base();
    ClusteringOptions clustering;
    clustering.layers = settings.layers;
    made->clustering = clusterTraining(training, clustering);
    made->costs = std::make_unique<ShardedStageCosts>(training, made->clustering, options_.cluster,
                                                      costOptions(settings));
    return *states_.emplace(std::pair(settings, count), std::move(made)).first->second;
  }

  StageCostOptions costOptions(const CostSettings& settings) const {
    StageCostOptions costs;
    costs.methods = settings.methods;
    // so memory is short
    costs.cut_shared = std::find(settings.methods.begin(), settings.methods.end(),
                                 ShardingMethod{ShardingKind::kZero3}) != settings.methods.end();
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
  CountedCosts costsOf(const CostSettings& settings, int64_t count) {
    return countedCosts(std::shared_ptr<const ShardedStageCosts>(std::shared_ptr<void>(),
                                                                 stateOf(settings, count).costs.get()));
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

  StageChoice choiceOf(const CostSettings& settings, const PredictedPlan& plan) {
    StageChoice choice{options_, plan.microbatches};
    ChosenStages& chosen = choice.options.chosen.emplace();
    chosen.layer_ends = stateOf(settings, plan.microbatches).clustering.ends;
    chosen.schedule_costs = plan.schedule_costs;
    chosen.cut_batch = cut_ || plan.microbatches > 1;
    for (const AssignedStage& stage : plan.stages) {
      const StageConfig& config = stateOf(settings, plan.microbatches).costs->config(stage.option.config);
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

  SearchedStage describeStage(const CostSettings& settings, int64_t count, int first, int last,
                              const Submesh& submesh, const StageOption& option, int64_t memory) {
    const StageConfig& config = stateOf(settings, count).costs->config(option.config);
    return {first,       last,          submesh.first_device, submesh.nodes,  submesh.devices_per_node,
            config.mesh, config.method, config.recomputation, option.pass_ns, option.step_ns,
            memory};
  }

  void describe(const PlanSearchRequest& search, const FoundPlans& found, StageSearchResult& result) {
    result.record.complete = found.result.complete;
    result.record.objective = objectiveText(search);
    for (const PredictedPlan& plan : found.result.plans) {
      result.choices.push_back(choiceOf(found.settings, plan));
      SearchedPlan& row = result.record.alternatives.emplace_back();
      row.step_ns = plan.step_ns;
      row.memory_bytes = plan.peakMemory();
      row.microbatches = plan.microbatches;
      row.schedule = plan.schedule;
      for (size_t s = 0; s < plan.stages.size(); ++s) {
        const AssignedStage& stage = plan.stages[s];
        row.stages.push_back(describeStage(found.settings, plan.microbatches, stage.first_layer,
                                           stage.last_layer, stage.submesh, stage.option,
                                           plan.memory_bytes[s]));
      }
    }
    for (const Neighbour& neighbour : found.result.neighbours)
      result.record.reasons.push_back(
          {neighbour.about, neighbour.chosen, neighbour.instead, neighbour.step_ns, neighbour.why});
    describeCosts(found.settings, found.best().microbatches, result.record);
    const std::vector<std::string>& notes =
        stateOf(found.settings, found.best().microbatches).clustering.notes;
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
  void describeCosts(const CostSettings& settings, int64_t count, SearchRecord& record) {
    const ShardedStageCosts& costs = *stateOf(settings, count).costs;
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
                  describeStage(settings, count, first, last, submesh, *best,
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
  std::map<std::pair<CostSettings, int64_t>, std::unique_ptr<CountState>> states_;
};

}  // namespace

StageSearchResult searchStages(const PlanRequest& request, const ForwardModel& model,
                               const PartitionOptions& options, const ProgressCallback& progress,
                               const std::atomic<bool>* interrupted) {
  return Search(request, model, options, progress, interrupted).run();
}

}  // namespace pipeshard
