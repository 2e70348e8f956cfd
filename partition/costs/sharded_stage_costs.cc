#include "partition/costs/sharded_stage_costs.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/costs/boundary_transfers.h"
#include "partition/costs/layer_pieces.h"
#include "partition/costs/run_costs.h"
#include "partition/costs/stage_ways.h"
#include "partition/costs/submesh_classes.h"
#include "partition/costs/way_pricer.h"
#include "sharding/batch/batch_dependence.h"

namespace pipeshard {
namespace {

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
  std::deque<PricedWay> ways;  // the first `listed` ones are the class's own, others were asked for
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

// Costs by class of submeshes, each evaluated when it is first asked for:
//
//   the constructor   lists the ways of every class (waysOn, times the ways to keep shared parameters), and
//                     numbers their configs, so that these numbers do not depend on threads
//   prepare           prices the listed ways of a class, all at once
//   optionsOf         the options of a run of layers: in every way the run's sums (RunCosts), without those
//                     that another one covers
//
// Whoever changes a class holds its mutex. A table's entry is written once, into the deque `owned`, whose
// elements never move, and then published by an atomic pointer: a later look-up takes no lock, and references
// stay valid. `least` is a second table, of the costs of the usual kind of layers alone. A way that only a
// fixed plan asks for (wayFor) goes behind the listed ones and is no option.
struct ShardedStageCosts::State {
  State(const TrainingGraph& training_graph, const Clustering& clustering, const Cluster& described,
        StageCostOptions asked)
      : training(training_graph),
        cluster(described),
        options(std::move(asked)),
        batch(std::make_shared<const BatchDependence>(followBatch(training))),
        pieces(layerPieces(training, clustering, batchAxes(*batch))),
        classes(cluster),
        transfers(training, pieces, cluster, classes),
        pricer(training, pieces, cluster, transfers, options, batch) {
    for (const Recomputation recomputation : options.recomputations) requireRecomputation(recomputation);
    const size_t layers = pieces.nodes.size();
    for (int shape = 0; shape < classes.count(); ++shape) {
      SubmeshClass& of = by_shape.emplace_back();
      of.sample = classes.sample(shape);
      for (OptionTable* table : {&of.options, &of.least})
        table->known = std::vector<std::atomic<const std::vector<StageOption>*>>(layers * layers);
      for (StageWay& way : waysOn(of.sample, options)) {
        const int boundary = boundaryOf(way, of.sample.deviceCount());
        for (way.shared = 0; way.shared < sharedWays(of.sample); ++way.shared) {
          for (const Recomputation recomputation : options.recomputations)
            configNumber(configOf(way, recomputation));
          of.ways.push_back(wayAt(way, boundary));
        }
      }
      of.listed = of.ways.size();
    }
  }

  static PricedWay wayAt(const StageWay& way, int boundary) {
    PricedWay made;
    made.way = way;
    made.boundary = boundary;
    return made;
  }

  int sharedWays(const Submesh& submesh) const {
    return pieces.shared.empty() || submesh.deviceCount() == 1 || !options.cut_shared ? 1 : 2;
  }

  static void requireRecomputation(Recomputation recomputation) {
    if (recomputation != Recomputation::kExceptLast) return;
    fail(ErrorCode::kConfiguration,
         "recomputation \"{}\" has no cost; expected never, selective, layers or always",
         recomputationName(recomputation));
  }

  static int boundaryOf(const StageWay& way, int devices) {
    const std::vector<int> parts = boundaryParts(devices);
    const auto found = std::find(parts.begin(), parts.end(), way.parts);
    return found == parts.end() ? -1 : static_cast<int>(found - parts.begin());
  }

  static StageConfig configOf(const StageWay& way, Recomputation recomputation) {
    return {way.mesh.shape, way.method, recomputation, way.boundary, way.shared};
  }

  int configNumber(const StageConfig& config) {
    const std::lock_guard lock(config_mutex);
    const auto [place, is_new] = config_numbers.try_emplace(config, static_cast<int>(configs.size()));
    if (is_new) configs.push_back(config);
    return place->second;
  }

  void prepare(SubmeshClass& of) {
    if (of.prepared) return;
    pricer.price(of.sample, listedWays(of), of.prepared_least ? pricer.usualKind() : -1);
    of.prepared = true;
  }

  void prepareLeast(SubmeshClass& of) {
    if (of.prepared_least) return;
    pricer.priceLeast(of.sample, listedWays(of), of.prepared);
    of.prepared_least = true;
  }

  static std::vector<PricedWay*> listedWays(SubmeshClass& of) {
    std::vector<PricedWay*> ways;
    for (size_t way = 0; way < of.listed; ++way) ways.push_back(&of.ways[way]);
    return ways;
  }

  StageOption option(const PricedWay& way, const RunCosts& costs, int first, int last,
                     Recomputation recomputation) {
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
    option.transient_bytes =
        options.halves ? parts.halved_transient_bytes + parts.remade_bytes : parts.transient_bytes;
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
      const PricedWay& way = of.ways[number];
      if (way.way.shared > 0 && (least || !way.is_other || !pricer.readsShared(first, last))) continue;
      const RunCosts& costs = least ? *way.least : *way.costs;
      if (!costs.possible(first, last)) continue;
      for (const Recomputation recomputation : options.recomputations) {
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
  PricedWay* wayFor(SubmeshClass& of, const StageConfig& config) {
    std::vector<StageWay> wanted = wayOf(config, of.sample.deviceCount());
    if (wanted.empty()) return nullptr;
    wanted.front().shared = std::min(wanted.front().shared, sharedWays(of.sample) - 1);
    for (size_t way = 0; way < of.ways.size(); ++way) {
      if (of.ways[way].way != wanted.front()) continue;
      if (way < of.listed) prepare(of);
      return &of.ways[way];
    }
    of.ways.push_back(wayAt(wanted.front(), boundaryOf(wanted.front(), of.sample.deviceCount())));
    pricer.price(of.sample, {&of.ways.back()}, -1);
    return &of.ways.back();
  }

  SubmeshClass* classOf(const Submesh& submesh) {
    const int shape = classes.shape(submesh);
    return shape < 0 ? nullptr : &by_shape[shape];
  }

  const TrainingGraph& training;
  const Cluster& cluster;
  const StageCostOptions options;
  const std::shared_ptr<const BatchDependence> batch;
  const LayerPieces pieces;
  const SubmeshClasses classes;
  BoundaryTransfers transfers;
  const WayPricer pricer;
  std::deque<SubmeshClass> by_shape;
  std::mutex config_mutex;
  std::deque<StageConfig> configs;
  std::map<StageConfig, int> config_numbers;
};

ShardedStageCosts::ShardedStageCosts(const TrainingGraph& training, const Clustering& clustering,
                                     const Cluster& cluster, StageCostOptions options)
    : state_(std::make_unique<State>(training, clustering, cluster, std::move(options))) {}

ShardedStageCosts::~ShardedStageCosts() = default;

int ShardedStageCosts::layers() const { return state_->pieces.nodes.size(); }

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
  const int64_t least = state_->cluster.leastMemory(devicesOf(submesh));
  return least > 0 ? least : INT64_MAX;
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
  return state_->pricer.usualKind() < 0 || state_->pieces.kind_count == 1
             ? nullptr
             : std::make_shared<const Least>(*this);
}

const StageConfig& ShardedStageCosts::config(int index) const {
  const std::lock_guard lock(state_->config_mutex);
  return state_->configs.at(index);
}

StageCostParts ShardedStageCosts::parts(int first_layer, int last_layer, const Submesh& submesh,
                                        const StageOption& option) const {
  const StageConfig& of = config(option.config);
  SubmeshClass* submesh_class = state_->classOf(submesh);
  PIPESHARD_CHECK(submesh_class != nullptr, "an option of no submesh");
  const std::lock_guard lock(submesh_class->mutex);
  const PricedWay* way = state_->wayFor(*submesh_class, of);
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
  const PricedWay* way = state_->wayFor(*of, config);
  if (way == nullptr || !way->costs->possible(first_layer, last_layer)) return nullptr;
  return &of->asked
              .emplace(key, state_->option(*way, *way->costs, first_layer, last_layer, config.recomputation))
              .first->second;
}

}  // namespace pipeshard
