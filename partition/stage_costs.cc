#include "partition/stage_costs.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "ir/error.h"
#include "partition/boundary_transfers.h"
#include "partition/layer_pieces.h"
#include "partition/run_costs.h"
#include "partition/stage_ways.h"
#include "partition/submesh_classes.h"
#include "sharding/batch_dependence.h"

namespace pipeshard {
namespace {

// Runs all tasks, by so many threads. The first failure, by number, is thrown.
void runTasks(size_t count, int threads, const std::function<void(size_t)>& task) {
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> failures(count);
  const auto work = [&] {
    for (size_t number = next++; number < count; number = next++) {
      try {
        task(number);
      } catch (...) {
        failures[number] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> workers;
  for (int thread = 1; thread < threads && static_cast<size_t>(thread) < count; ++thread) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// A way of a class of submeshes, with its costs.
struct Way {
  StageWay way;
  int boundary = -1;  // StageOption::boundary; -1: it has no number, so it cannot be
  std::vector<std::optional<PricedStage>> kinds;
  std::optional<RunCosts> costs;
};

struct SubmeshClass {
  Submesh sample;
  std::mutex mutex;
  bool prepared = false;
  std::deque<Way> ways;  // the first `listed` ones are the class's own, others were asked for
  size_t listed = 0;
  std::vector<std::atomic<const std::vector<StageOption>*>> options;  // by first and last layer
  std::deque<std::vector<StageOption>> owned;
  std::map<std::tuple<int, int, StageConfig>, StageOption> asked;
};

std::vector<int> batchAxes(const BatchDependence& batch) { return batch.axis_of_value; }

// Others are no better in any respect, and at the same boundary. Of equal ones the first stays.
std::vector<StageOption> undominated(const std::vector<StageOption>& options) {
  const auto covers = [](const StageOption& a, const StageOption& b) {
    return a.boundary == b.boundary && a.pass_ns <= b.pass_ns && a.step_ns <= b.step_ns && a.fixed_bytes <= b.fixed_bytes &&
           a.activation_bytes <= b.activation_bytes && a.transient_bytes <= b.transient_bytes;
  };
  std::vector<StageOption> kept;
  for (size_t i = 0; i < options.size(); ++i) {
    bool covered = false;
    for (size_t j = 0; j < options.size() && !covered; ++j) {
      covered = i != j && covers(options[j], options[i]) && (j < i || !covers(options[i], options[j]));
    }
    if (!covered) kept.push_back(options[i]);
  }
  return kept;
}

}  // namespace

struct ShardedStageCosts::State {
  State(const TrainingGraph& training_graph, const Clustering& clustering, const Cluster& described, StageCostOptions asked)
      : training(training_graph),
        cluster(described),
        options(std::move(asked)),
        batch(std::make_shared<const BatchDependence>(followBatch(training))),
        pieces(layerPieces(training, clustering, batchAxes(*batch))),
        classes(cluster),
        transfers(training, pieces, cluster, classes) {
    for (const std::string& recomputation : options.recomputations) requireRecomputation(recomputation);
    const size_t layers = pieces.nodes.size();
    for (int shape = 0; shape < classes.count(); ++shape) {
      SubmeshClass& of = by_shape.emplace_back();
      of.sample = classes.sample(shape);
      of.options = std::vector<std::atomic<const std::vector<StageOption>*>>(layers * layers);
      for (StageWay& way : waysOn(of.sample, options)) {
        const int boundary = boundaryOf(way, of.sample.deviceCount());
        for (const std::string& recomputation : options.recomputations) configNumber(configOf(way, recomputation));
        of.ways.push_back({std::move(way), boundary, {}, {}});
      }
      of.listed = of.ways.size();
    }
    for (size_t layer = 0; layer < layers; ++layer) {
      if (static_cast<size_t>(pieces.kinds[layer]) == example.size()) example.push_back(static_cast<int>(layer));
    }
  }

  static void requireRecomputation(const std::string& recomputation) {
    if (recomputation == "never" || recomputation == "always" || recomputation == "layers") return;
    fail(ErrorCode::kConfiguration, "recomputation \"{}\" has no cost; expected never, layers or always", recomputation);
  }

  static int boundaryOf(const StageWay& way, int devices) {
    const std::vector<int> parts = boundaryParts(devices);
    const auto found = std::find(parts.begin(), parts.end(), way.parts);
    return found == parts.end() ? -1 : static_cast<int>(found - parts.begin());
  }

  static StageConfig configOf(const StageWay& way, const std::string& recomputation) {
    return {way.mesh.shape, way.method, recomputation, way.boundary};
  }

  int configNumber(const StageConfig& config) {
    const std::lock_guard lock(config_mutex);
    const auto [place, is_new] = config_numbers.try_emplace(config, static_cast<int>(configs.size()));
    if (is_new) configs.push_back(config);
    return place->second;
  }

  bool isInterrupted() const { return options.interrupted != nullptr && options.interrupted->load(); }

  void report(const std::string& text) {
    if (!options.progress) return;
    const std::lock_guard lock(progress_mutex);
    options.progress(text);
  }

  // Ways of one mesh and method differ in their ends alone: one problem.
  void priceKind(const Submesh& sample, const std::vector<Way*>& ways, int kind) {
    const int layer = example[static_cast<size_t>(kind)];
    const LogicalMesh& mesh = ways.front()->way.mesh;
    ShardStageOptions stage;
    stage.method = ways.front()->way.method;
    stage.replicated = pieces.replicated;
    stage.microbatches = training.microbatches;
    stage.batch = batch;
    std::vector<StageEnd> ends;
    for (int number : pieces.of_layer[static_cast<size_t>(layer)]) {
      const CrossingValue& crossing = pieces.crossings[static_cast<size_t>(number)];
      StageEnd& end = ends.emplace_back();
      end.value = crossing.value;
      end.goes_on = crossing.gradient ? crossing.readers.front() < layer : crossing.last() > layer;
      for (const Way* way : ways)
        end.ways.push_back(boundarySpec(training.graph.shape(crossing.value).size(), crossing.axis, mesh, way->way.boundary));
    }
    const CostModel model = costModelOn(cluster, devicesOf(sample), mesh);
    const auto priced = priceStageInWays(training, pieces.nodes[static_cast<size_t>(layer)], pieces.phases, mesh, model, stage, ends,
                                         static_cast<int>(ways.size()));
    for (size_t way = 0; way < ways.size(); ++way) ways[way]->kinds[static_cast<size_t>(kind)] = priced[way];
  }

  void priceWays(const Submesh& sample, std::vector<Way*> ways) {
    std::vector<std::vector<Way*>> problems;
    for (Way* way : ways) {
      way->kinds.resize(static_cast<size_t>(pieces.kind_count));
      const bool same =
          !problems.empty() && problems.back().front()->way.mesh == way->way.mesh && problems.back().front()->way.method == way->way.method;
      if (!same) problems.emplace_back();
      problems.back().push_back(way);
    }
    const auto kinds = static_cast<size_t>(pieces.kind_count);
    runTasks(problems.size() * kinds, options.threads, [&](size_t task) {
      const std::vector<Way*>& problem = problems[task / kinds];
      if (isInterrupted()) return;
      if (task % kinds == 0) {
        report(fmt::format("costs of layers on {} devices, mesh {}, {}", sample.deviceCount(), printMesh(problem.front()->way.mesh),
                           problem.front()->way.method));
      }
      priceKind(sample, problem, static_cast<int>(task % kinds));
    });
    for (Way* way : ways) way->costs.emplace(runCosts(*way));
  }

  RunCosts runCosts(const Way& way) const {
    std::vector<const PricedStage*> layers;
    for (int kind : pieces.kinds) {
      const std::optional<PricedStage>& priced = way.kinds[static_cast<size_t>(kind)];
      layers.push_back(priced && way.boundary >= 0 ? &*priced : nullptr);
    }
    std::vector<int64_t> bytes;
    for (const CrossingValue& crossing : pieces.crossings) {
      const Shape& shape = training.graph.shape(crossing.value);
      const ShardingSpec spec = boundarySpec(shape.size(), crossing.axis, way.way.mesh, way.way.boundary);
      const bool can = specFault(spec, shape, way.way.mesh).empty();
      const auto size = static_cast<int64_t>(dataTypeSize(training.graph.dataType(crossing.value)));
      bytes.push_back(can ? largestShard(spec, shape, way.way.mesh) * size : training.graph.bytes(crossing.value));
    }
    const bool between = options.overlap_receives == OverlapReceives::kBetweenNodes && cluster.nodes.size() > 1;
    const EmissionRules rules{options.bucket_bytes, between || options.overlap_receives == OverlapReceives::kOn};
    return RunCosts(training, pieces, layers, std::move(bytes), transfers.exchanges(), rules);
  }

  void prepare(SubmeshClass& of) {
    if (of.prepared) return;
    std::vector<Way*> ways;
    for (size_t way = 0; way < of.listed; ++way) ways.push_back(&of.ways[way]);
    priceWays(of.sample, ways);
    of.prepared = true;
  }

  StageOption option(const Way& way, int first, int last, const std::string& recomputation) {
    const StageCostParts parts = way.costs->of(first, last, recomputation);
    StageOption option;
    option.config = configNumber(configOf(way.way, recomputation));
    option.boundary = way.boundary;
    option.pass_ns = parts.forward_ns + parts.backward_input_ns + parts.backward_weight_ns + parts.recomputation_ns;
    option.step_ns = parts.update_ns + parts.synchronization_ns;
    option.fixed_bytes = parts.weight_bytes + parts.optimizer_bytes + (training.microbatches > 1 ? parts.gradient_bytes : 0);
    option.activation_bytes = parts.activation_bytes;
    option.transient_bytes = parts.transient_bytes;
    return option;
  }

  const std::vector<StageOption>& optionsOf(SubmeshClass& of, int first, int last) {
    std::atomic<const std::vector<StageOption>*>& known =
        of.options[static_cast<size_t>(first) * pieces.nodes.size() + static_cast<size_t>(last)];
    if (const std::vector<StageOption>* found = known.load(std::memory_order_acquire)) return *found;
    const std::lock_guard lock(of.mutex);
    if (const std::vector<StageOption>* found = known.load(std::memory_order_acquire)) return *found;
    prepare(of);
    std::vector<StageOption> all;
    for (size_t way = 0; way < of.listed; ++way) {
      if (!of.ways[way].costs->possible(first, last)) continue;
      for (const std::string& recomputation : options.recomputations) all.push_back(option(of.ways[way], first, last, recomputation));
    }
    of.owned.push_back(undominated(all));
    known.store(&of.owned.back(), std::memory_order_release);
    return of.owned.back();
  }

  // The way of a config, priced; nullptr: there is none.
  Way* wayFor(SubmeshClass& of, const StageConfig& config) {
    const std::vector<StageWay> wanted = wayOf(config, of.sample.deviceCount());
    if (wanted.empty()) return nullptr;
    for (size_t way = 0; way < of.ways.size(); ++way) {
      if (of.ways[way].way != wanted.front()) continue;
      if (way < of.listed) prepare(of);
      return &of.ways[way];
    }
    of.ways.push_back({wanted.front(), boundaryOf(wanted.front(), of.sample.deviceCount()), {}, {}});
    priceWays(of.sample, {&of.ways.back()});
    return &of.ways.back();
  }

  SubmeshClass* classOf(const Submesh& submesh) {
    const int shape = classes.shape(submesh);
    return shape < 0 ? nullptr : &by_shape[static_cast<size_t>(shape)];
  }

  const TrainingGraph& training;
  const Cluster& cluster;
  const StageCostOptions options;
  const std::shared_ptr<const BatchDependence> batch;
  const LayerPieces pieces;
  const SubmeshClasses classes;
  BoundaryTransfers transfers;
  std::vector<int> example;  // by kind: a layer
  std::deque<SubmeshClass> by_shape;
  std::mutex config_mutex, progress_mutex;
  std::deque<StageConfig> configs;
  std::map<StageConfig, int> config_numbers;
};

ShardedStageCosts::ShardedStageCosts(const TrainingGraph& training, const Clustering& clustering, const Cluster& cluster,
                                     StageCostOptions options)
    : state_(std::make_unique<State>(training, clustering, cluster, std::move(options))) {}

ShardedStageCosts::~ShardedStageCosts() = default;

int ShardedStageCosts::layers() const { return static_cast<int>(state_->pieces.nodes.size()); }

int ShardedStageCosts::submeshClass(const Submesh& submesh) const { return state_->classes.transferClass(submesh); }

const std::vector<StageOption>& ShardedStageCosts::options(int first_layer, int last_layer, const Submesh& submesh) const {
  static const std::vector<StageOption> kNone;
  SubmeshClass* of = state_->classOf(submesh);
  return of == nullptr ? kNone : state_->optionsOf(*of, first_layer, last_layer);
}

int64_t ShardedStageCosts::transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const {
  return state_->transfers.cost(layer, from, from_boundary, to, to_boundary);
}

int64_t ShardedStageCosts::memoryBytes(const Submesh& submesh) const {
  if (state_->options.memory_bytes > 0) return state_->options.memory_bytes;
  int64_t least = INT64_MAX;
  for (int device : devicesOf(submesh)) {
    const int64_t bytes = state_->cluster.kindOf(device).memory_bytes;
    if (bytes > 0) least = std::min(least, bytes);
  }
  return least;
}

const StageConfig& ShardedStageCosts::config(int index) const {
  const std::lock_guard lock(state_->config_mutex);
  return state_->configs.at(static_cast<size_t>(index));
}

StageCostParts ShardedStageCosts::parts(int first_layer, int last_layer, const Submesh& submesh, const StageOption& option) const {
  const StageConfig& of = config(option.config);
  SubmeshClass* submesh_class = state_->classOf(submesh);
  PIPESHARD_CHECK(submesh_class != nullptr, "an option of no submesh");
  const std::lock_guard lock(submesh_class->mutex);
  const Way* way = state_->wayFor(*submesh_class, of);
  PIPESHARD_CHECK(way != nullptr, "an option of another submesh");
  return way->costs->of(first_layer, last_layer, of.recomputation);
}

const StageOption* ShardedStageCosts::optionFor(int first_layer, int last_layer, const Submesh& submesh, const StageConfig& config) const {
  State::requireRecomputation(config.recomputation);
  SubmeshClass* of = state_->classOf(submesh);
  if (of == nullptr) return nullptr;
  const std::lock_guard lock(of->mutex);
  const std::tuple key(first_layer, last_layer, config);
  const auto known = of->asked.find(key);
  if (known != of->asked.end()) return &known->second;
  const Way* way = state_->wayFor(*of, config);
  if (way == nullptr || !way->costs->possible(first_layer, last_layer)) return nullptr;
  return &of->asked.emplace(key, state_->option(*way, first_layer, last_layer, config.recomputation)).first->second;
}

}  // namespace pipeshard
