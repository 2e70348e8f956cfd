#include "partition/costs/stage_costs.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/costs/boundary_transfers.h"
#include "partition/costs/layer_pieces.h"
#include "partition/costs/run_costs.h"
#include "partition/costs/shared_specs.h"
#include "partition/costs/stage_ways.h"
#include "partition/costs/submesh_classes.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/solver/parallel.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {
namespace {

// A way of a class of submeshes, with its costs.
struct Way {
  StageWay way;
  int boundary = -1;  // StageOption::boundary; -1: it has no number, so it cannot be
  std::vector<std::optional<PricedStage>> kinds;
  std::map<int, std::vector<std::optional<PricedStage>>>
      in_shared_specs;     // by kind that reads shared parameters
  size_t shared_spec = 0;  // which of them: a number of sharedSpecs
  bool is_other = true;    // than the way of StageConfig::shared 0
  std::optional<RunCosts> costs;
  std::optional<RunCosts> least;  // of the usual kind alone
};

// By first and last layer.
struct OptionTable {
  std::vector<std::atomic<const std::vector<StageOption>*>> known;
  std::deque<std::vector<StageOption>> owned;
};

struct SubmeshClass {
  Submesh sample;
  std::mutex mutex;
  bool prepared = false;
  bool prepared_least = false;
  std::deque<Way> ways;  // the first `listed` ones are the class's own, others were asked for
  size_t listed = 0;
  OptionTable options, least;
  std::map<std::tuple<int, int, StageConfig>, StageOption> asked;
};

std::vector<int> batchAxes(const BatchDependence& batch) { return batch.axis_of_value; }

// Others are no better in any respect, and at the same boundary. Of equal ones the first stays.
std::vector<StageOption> undominated(const std::vector<StageOption>& options) {
  const auto covers = [](const StageOption& a, const StageOption& b) {
    return a.boundary == b.boundary && a.pass_ns <= b.pass_ns && a.step_ns <= b.step_ns &&
           a.fixed_bytes <= b.fixed_bytes && a.activation_bytes <= b.activation_bytes &&
           a.transient_bytes <= b.transient_bytes;
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
  State(const TrainingGraph& training_graph, const Clustering& clustering, const Cluster& described,
        StageCostOptions asked)
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
      for (OptionTable* table : {&of.options, &of.least})
        table->known = std::vector<std::atomic<const std::vector<StageOption>*>>(layers * layers);
      for (StageWay& way : waysOn(of.sample, options)) {
        const int boundary = boundaryOf(way, of.sample.deviceCount());
        for (way.shared = 0; way.shared < sharedWays(of.sample); ++way.shared) {
          for (const std::string& recomputation : options.recomputations)
            configNumber(configOf(way, recomputation));
          of.ways.push_back(wayAt(way, boundary));
        }
      }
      of.listed = of.ways.size();
    }
    for (size_t layer = 0; layer < layers; ++layer) {
      if (static_cast<size_t>(pieces.kinds[layer]) == example.size())
        example.push_back(static_cast<int>(layer));
    }
    for (const SharedParameter& shared : pieces.shared) {
      for (const std::vector<int>* of : {&shared.layers, &shared.gradients}) {
        for (int layer : *of) sharing.insert(pieces.kinds[static_cast<size_t>(layer)]);
      }
    }
    for (int kind = 0; kind < pieces.kind_count; ++kind) {
      const bool shares = sharing.contains(kind);
      if (2 * std::count(pieces.kinds.begin(), pieces.kinds.end(), kind) > std::ssize(pieces.kinds) &&
          !shares)
        usual_kind = kind;
    }
  }

  static Way wayAt(const StageWay& way, int boundary) {
    Way made;
    made.way = way;
    made.boundary = boundary;
    return made;
  }

  int sharedWays(const Submesh& submesh) const {
    return pieces.shared.empty() || submesh.deviceCount() == 1 || !options.cut_shared ? 1 : 2;
  }

  std::vector<SharedSpec> specsToTry(const Shape& shape, const LogicalMesh& mesh) const {
    std::vector<SharedSpec> specs = sharedSpecs(shape, mesh);
    if (!options.cut_shared) specs.resize(1);
    return specs;
  }

  static void requireRecomputation(const std::string& recomputation) {
    if (recomputation == "never" || recomputation == "always" || recomputation == "layers") return;
    fail(ErrorCode::kConfiguration, "recomputation \"{}\" has no cost; expected never, layers or always",
         recomputation);
  }

  static int boundaryOf(const StageWay& way, int devices) {
    const std::vector<int> parts = boundaryParts(devices);
    const auto found = std::find(parts.begin(), parts.end(), way.parts);
    return found == parts.end() ? -1 : static_cast<int>(found - parts.begin());
  }

  static StageConfig configOf(const StageWay& way, const std::string& recomputation) {
    return {way.mesh.shape, way.method, recomputation, way.boundary, way.shared};
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

  // Ways of one mesh and method differ in their ends alone, and in how shared parameters are kept: one
  // problem.
  void priceKind(const Submesh& sample, const std::vector<Way*>& ways, int kind) {
    const int layer = example[static_cast<size_t>(kind)];
    const LogicalMesh& mesh = ways.front()->way.mesh;
    ShardStageOptions stage;
    stage.method = ways.front()->way.method;
    stage.replicated = pieces.replicated;
    stage.microbatches = training.microbatches;
    stage.batch = batch;
    std::vector<int> boundaries;
    for (const Way* way : ways) {
      if (std::find(boundaries.begin(), boundaries.end(), way->way.boundary) == boundaries.end())
        boundaries.push_back(way->way.boundary);
    }
    const bool shares = sharing.contains(kind);
    const size_t times = shares ? specsToTry({}, mesh).size() : 1;
    std::vector<StageEnd> ends = sharedEnds(layer, mesh, boundaries.size());
    for (int number : pieces.of_layer[static_cast<size_t>(layer)]) {
      const CrossingValue& crossing = pieces.crossings[static_cast<size_t>(number)];
      StageEnd& end = ends.emplace_back();
      end.value = crossing.value;
      end.goes_on = crossing.gradient ? crossing.readers.front() < layer : crossing.last() > layer;
      for (int boundary : boundaries)
        end.ways.insert(
            end.ways.end(), times,
            boundarySpec(training.graph.shape(crossing.value).size(), crossing.axis, mesh, boundary));
    }
    const CostModel model = costModelOn(cluster, devicesOf(sample), mesh);
    const auto priced =
        priceStageInWays(training, pieces.nodes[static_cast<size_t>(layer)], pieces.phases, mesh, model,
                         stage, ends, static_cast<int>(boundaries.size() * times));
    for (Way* way : ways) {
      const auto at = static_cast<size_t>(std::find(boundaries.begin(), boundaries.end(), way->way.boundary) -
                                          boundaries.begin());
      const auto begin = priced.begin() + static_cast<std::ptrdiff_t>(at * times);
      if (shares) {
        way->in_shared_specs.at(kind).assign(begin, begin + static_cast<std::ptrdiff_t>(times));
      } else {
        way->kinds[static_cast<size_t>(kind)] = *begin;
      }
    }
  }

  // What the layer has of shared parameters: all ways to keep them, one after the other, so many times.
  std::vector<StageEnd> sharedEnds(int layer, const LogicalMesh& mesh, size_t times) const {
    std::vector<StageEnd> ends;
    for (const SharedParameter& shared : pieces.shared) {
      const std::vector<SharedSpec> specs = specsToTry(training.graph.shape(shared.value), mesh);
      const auto add = [&](ValueId value, ShardingSpec SharedSpec::*of) {
        StageEnd& end = ends.emplace_back();
        end.value = value;
        end.as_method = true;
        for (size_t time = 0; time < times; ++time) {
          for (const SharedSpec& spec : specs) end.ways.push_back(spec.*of);
        }
      };
      if (std::binary_search(shared.layers.begin(), shared.layers.end(), layer))
        add(shared.value, &SharedSpec::parameter);
      for (const auto& [part, made] : shared.parts) {
        if (made == layer) add(part, &SharedSpec::parts);
      }
    }
    return ends;
  }

  void priceKinds(const Submesh& sample, const std::vector<Way*>& ways, const std::vector<int>& kinds) {
    std::vector<std::vector<Way*>> problems;
    for (Way* way : ways) {
      way->kinds.resize(static_cast<size_t>(pieces.kind_count));
      for (int kind : kinds) {
        if (sharing.contains(kind)) way->in_shared_specs[kind].resize(specsToTry({}, way->way.mesh).size());
      }
      const bool same = !problems.empty() && problems.back().front()->way.mesh == way->way.mesh &&
                        problems.back().front()->way.method == way->way.method;
      if (!same) problems.emplace_back();
      problems.back().push_back(way);
    }
    solver::parallelFor(
        options.threads, static_cast<int32_t>(problems.size() * kinds.size()), [&](int32_t index) {
          const auto task = static_cast<size_t>(index);
          const std::vector<Way*>& problem = problems[task / kinds.size()];
          if (isInterrupted()) return;
          if (task % kinds.size() == 0) {
            report(fmt::format("costs of layers on {} devices, mesh {}, {}", sample.deviceCount(),
                               printMesh(problem.front()->way.mesh), problem.front()->way.method));
          }
          priceKind(sample, problem, kinds[task % kinds.size()]);
        });
  }

  // `but`: priced already; -1: none.
  void priceWays(const Submesh& sample, const std::vector<Way*>& ways, int but) {
    std::vector<int> kinds;
    for (int kind = 0; kind < pieces.kind_count; ++kind) {
      if (kind != but) kinds.push_back(kind);
    }
    priceKinds(sample, ways, kinds);
    for (Way* way : ways) {
      keepShared(*way);
      way->costs.emplace(runCosts(sample, *way, {}));
    }
  }

  // Layers that share parameters get the costs of the way in which all of them keep these.
  void keepShared(Way& way) const {
    std::vector<const std::vector<std::optional<PricedStage>>*> layers;
    for (int kind : pieces.kinds) {
      if (sharing.contains(kind)) layers.push_back(&way.in_shared_specs.at(kind));
    }
    if (layers.empty()) return;
    const std::optional<SharedChoice> choice = chooseShared(layers, training.microbatches);
    way.is_other = way.way.shared == 0 || (choice && choice->small != choice->fast);
    if (!choice) return;
    way.shared_spec = way.way.shared == 0 ? choice->fast : choice->small;
    for (const auto& [kind, priced] : way.in_shared_specs)
      way.kinds[static_cast<size_t>(kind)] = priced[way.shared_spec];
  }

  bool readsShared(int first, int last) const {
    return std::any_of(pieces.kinds.begin() + first, pieces.kinds.begin() + last + 1,
                       [&](int kind) { return sharing.contains(kind); });
  }

  // By LayerPieces::shared: of the parameter as the way keeps it, and what exchanging it with another stage
  // takes per step.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> sharedCosts(const Way& way,
                                                                    const CostModel& model) const {
    std::pair<std::vector<int64_t>, std::vector<int64_t>> costs;
    for (const SharedParameter& shared : pieces.shared) {
      const Shape& shape = training.graph.shape(shared.value);
      const DataType type = training.graph.dataType(shared.value);
      const SharedSpec spec = sharedSpecs(shape, way.way.mesh).at(way.shared_spec);
      ShardingSpec summed = spec.parts;
      summed.partial.clear();
      const auto size = static_cast<int64_t>(dataTypeSize(type));
      const int64_t bytes = largestShard(spec.parameter, shape, way.way.mesh) * size;
      const int64_t part_bytes =
          shared.gradients.empty() ? 0 : largestShard(summed, shape, way.way.mesh) * size;
      const int64_t sum_ns =
          part_bytes == 0 ? 0 : planResharding(shape, type, spec.parts, summed, way.way.mesh, model).cost_ns;
      costs.first.push_back(bytes);
      costs.second.push_back(transfers.exchange(bytes, part_bytes) + sum_ns);
    }
    return costs;
  }

  // What crosses the layer's ends can be kept as the way keeps it.
  bool endsCan(const Way& way, size_t layer) const {
    return std::all_of(pieces.of_layer[layer].begin(), pieces.of_layer[layer].end(), [&](int number) {
      const CrossingValue& crossing = pieces.crossings[static_cast<size_t>(number)];
      const Shape& shape = training.graph.shape(crossing.value);
      return specFault(boundarySpec(shape.size(), crossing.axis, way.way.mesh, way.way.boundary), shape,
                       way.way.mesh)
          .empty();
    });
  }

  // `only`: layers of other kinds cost nothing.
  RunCosts runCosts(const Submesh& sample, const Way& way, std::optional<int> only) const {
    const CostModel model = pieces.shared.empty() ? CostModel::uniform(way.way.mesh)
                                                  : costModelOn(cluster, devicesOf(sample), way.way.mesh);
    static constexpr PricedStage kNothing;
    std::vector<const PricedStage*> layers;
    for (size_t layer = 0; layer < pieces.kinds.size(); ++layer) {
      const std::optional<PricedStage>& priced = way.kinds[static_cast<size_t>(pieces.kinds[layer])];
      const bool free = only && pieces.kinds[layer] != *only;
      const bool can = way.boundary >= 0 && (free ? endsCan(way, layer) : priced.has_value());
      layers.push_back(!can ? nullptr : free ? &kNothing : &*priced);
    }
    std::vector<int64_t> bytes;
    for (const CrossingValue& crossing : pieces.crossings) {
      const Shape& shape = training.graph.shape(crossing.value);
      const ShardingSpec spec = boundarySpec(shape.size(), crossing.axis, way.way.mesh, way.way.boundary);
      const bool can = specFault(spec, shape, way.way.mesh).empty();
      const auto size = static_cast<int64_t>(dataTypeSize(training.graph.dataType(crossing.value)));
      bytes.push_back(can ? largestShard(spec, shape, way.way.mesh) * size
                          : training.graph.bytes(crossing.value));
    }
    const bool between =
        options.overlap_receives == OverlapReceives::kBetweenNodes && cluster.nodes.size() > 1;
    const EmissionRules rules{options.bucket_bytes,
                              between || options.overlap_receives == OverlapReceives::kOn};
    auto [shared_bytes, exchange_ns] = sharedCosts(way, model);
    return RunCosts(training, pieces, layers, std::move(bytes), std::move(exchange_ns),
                    std::move(shared_bytes), rules);
  }

  void prepare(SubmeshClass& of) {
    if (of.prepared) return;
    priceWays(of.sample, listedWays(of), of.prepared_least ? usual_kind : -1);
    of.prepared = true;
  }

  void prepareLeast(SubmeshClass& of) {
    if (of.prepared_least) return;
    const std::vector<Way*> ways = listedWays(of);
    if (!of.prepared) priceKinds(of.sample, ways, {usual_kind});
    for (Way* way : ways) way->least.emplace(runCosts(of.sample, *way, usual_kind));
    of.prepared_least = true;
  }

  static std::vector<Way*> listedWays(SubmeshClass& of) {
    std::vector<Way*> ways;
    for (size_t way = 0; way < of.listed; ++way) ways.push_back(&of.ways[way]);
    return ways;
  }

  StageOption option(const Way& way, const RunCosts& costs, int first, int last,
                     const std::string& recomputation) {
    const StageCostParts parts = costs.of(first, last, recomputation);
    StageOption option;
    option.config = configNumber(configOf(way.way, recomputation));
    option.boundary = way.boundary;
    option.pass_ns =
        parts.forward_ns + parts.backward_input_ns + parts.backward_weight_ns + parts.recomputation_ns;
    option.step_ns = parts.update_ns + parts.synchronization_ns;
    option.fixed_bytes =
        parts.weight_bytes + parts.optimizer_bytes + (training.microbatches > 1 ? parts.gradient_bytes : 0);
    option.activation_bytes = parts.activation_bytes;
    option.transient_bytes = parts.transient_bytes;
    return option;
  }

  // Memory of the least ones is what is sure: what waits, and is there whatever runs.
  const std::vector<StageOption>& optionsOf(SubmeshClass& of, bool least, int first, int last) {
    OptionTable& table = least ? of.least : of.options;
    std::atomic<const std::vector<StageOption>*>& known =
        table.known[static_cast<size_t>(first) * pieces.nodes.size() + static_cast<size_t>(last)];
    if (const std::vector<StageOption>* found = known.load(std::memory_order_acquire)) return *found;
    const std::lock_guard lock(of.mutex);
    if (const std::vector<StageOption>* found = known.load(std::memory_order_acquire)) return *found;
    least ? prepareLeast(of) : prepare(of);
    std::vector<StageOption> all;
    for (size_t number = 0; number < of.listed; ++number) {
      const Way& way = of.ways[number];
      if (way.way.shared > 0 && (least || !way.is_other || !readsShared(first, last))) continue;
      const RunCosts& costs = least ? *way.least : *way.costs;
      if (!costs.possible(first, last)) continue;
      for (const std::string& recomputation : options.recomputations) {
        StageOption& one = all.emplace_back(option(way, costs, first, last, recomputation));
        if (!least) continue;
        one.fixed_bytes = std::max<int64_t>(0, one.fixed_bytes);
        one.activation_bytes = std::max<int64_t>(0, one.activation_bytes);
        one.transient_bytes = 0;
      }
    }
    table.owned.push_back(undominated(all));
    known.store(&table.owned.back(), std::memory_order_release);
    return table.owned.back();
  }

  // The way of a config, priced; nullptr: there is none.
  Way* wayFor(SubmeshClass& of, const StageConfig& config) {
    std::vector<StageWay> wanted = wayOf(config, of.sample.deviceCount());
    if (wanted.empty()) return nullptr;
    wanted.front().shared = std::min(wanted.front().shared, sharedWays(of.sample) - 1);
    for (size_t way = 0; way < of.ways.size(); ++way) {
      if (of.ways[way].way != wanted.front()) continue;
      if (way < of.listed) prepare(of);
      return &of.ways[way];
    }
    of.ways.push_back(wayAt(wanted.front(), boundaryOf(wanted.front(), of.sample.deviceCount())));
    priceWays(of.sample, {&of.ways.back()}, -1);
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
  std::set<int> sharing;  // kinds of layers that read or make a gradient of a parameter that others do, too
  int usual_kind = -1;    // that of most layers; -1: none
  std::deque<SubmeshClass> by_shape;
  std::mutex config_mutex, progress_mutex;
  std::deque<StageConfig> configs;
  std::map<StageConfig, int> config_numbers;
};

ShardedStageCosts::ShardedStageCosts(const TrainingGraph& training, const Clustering& clustering,
                                     const Cluster& cluster, StageCostOptions options)
    : state_(std::make_unique<State>(training, clustering, cluster, std::move(options))) {}

ShardedStageCosts::~ShardedStageCosts() = default;

int ShardedStageCosts::layers() const { return static_cast<int>(state_->pieces.nodes.size()); }

int ShardedStageCosts::submeshClass(const Submesh& submesh) const {
  return state_->classes.transferClass(submesh);
}

const std::vector<StageOption>& ShardedStageCosts::options(int first_layer, int last_layer,
                                                           const Submesh& submesh) const {
  static const std::vector<StageOption> kNone;
  SubmeshClass* of = state_->classOf(submesh);
  return of == nullptr ? kNone : state_->optionsOf(*of, false, first_layer, last_layer);
}

int64_t ShardedStageCosts::transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                                    int to_boundary) const {
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

std::shared_ptr<const StageCosts> ShardedStageCosts::leastCosts() const {
  class Least : public OtherStageCosts {
   public:
    explicit Least(const ShardedStageCosts& costs) : OtherStageCosts(costs), state_(*costs.state_) {}
    const std::vector<StageOption>& options(int first_layer, int last_layer,
                                            const Submesh& submesh) const override {
      static const std::vector<StageOption> kNone;
      SubmeshClass* of = state_.classOf(submesh);
      return of == nullptr ? kNone : state_.optionsOf(*of, true, first_layer, last_layer);
    }

   private:
    State& state_;
  };
  return state_->usual_kind < 0 || state_->pieces.kind_count == 1 ? nullptr
                                                                  : std::make_shared<const Least>(*this);
}

const StageConfig& ShardedStageCosts::config(int index) const {
  const std::lock_guard lock(state_->config_mutex);
  return state_->configs.at(static_cast<size_t>(index));
}

StageCostParts ShardedStageCosts::parts(int first_layer, int last_layer, const Submesh& submesh,
                                        const StageOption& option) const {
  const StageConfig& of = config(option.config);
  SubmeshClass* submesh_class = state_->classOf(submesh);
  PIPESHARD_CHECK(submesh_class != nullptr, "an option of no submesh");
  const std::lock_guard lock(submesh_class->mutex);
  const Way* way = state_->wayFor(*submesh_class, of);
  PIPESHARD_CHECK(way != nullptr, "an option of another submesh");
  return way->costs->of(first_layer, last_layer, of.recomputation);
}

const StageOption* ShardedStageCosts::optionFor(int first_layer, int last_layer, const Submesh& submesh,
                                                const StageConfig& config) const {
  State::requireRecomputation(config.recomputation);
  SubmeshClass* of = state_->classOf(submesh);
  if (of == nullptr) return nullptr;
  const std::lock_guard lock(of->mutex);
  const std::tuple key(first_layer, last_layer, config);
  const auto known = of->asked.find(key);
  if (known != of->asked.end()) return &known->second;
  const Way* way = state_->wayFor(*of, config);
  if (way == nullptr || !way->costs->possible(first_layer, last_layer)) return nullptr;
  return &of->asked
              .emplace(key, state_->option(*way, *way->costs, first_layer, last_layer, config.recomputation))
              .first->second;
}

}  // namespace pipeshard
