#include "partition/costs/way_pricer.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/parallel.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

WayPricer::WayPricer(const TrainingGraph& training, const LayerPieces& pieces, const Cluster& cluster,
                     const BoundaryTransfers& transfers, const StageCostOptions& options,
                     std::shared_ptr<const BatchDependence> batch)
    : training_(training),
      pieces_(pieces),
      cluster_(cluster),
      transfers_(transfers),
      options_(options),
      batch_(std::move(batch)) {
  findRecomputations();
  for (size_t layer = 0; layer < pieces.kinds.size(); ++layer) {
    if (pieces.kinds[layer] == std::ssize(example_)) example_.push_back(layer);
  }
  for (const SharedParameter& shared : pieces.shared) {
    for (const std::vector<int>* of : {&shared.layers, &shared.gradients}) {
      for (int layer : *of) sharing_.insert(pieces.kinds[layer]);
    }
  }
  for (int kind = 0; kind < pieces.kind_count; ++kind) {
    const bool shares = sharing_.contains(kind);
    if (2 * std::count(pieces.kinds.begin(), pieces.kinds.end(), kind) > std::ssize(pieces.kinds) && !shares)
      usual_kind_ = kind;
  }
}

std::vector<SharedSpec> WayPricer::specsToTry(const Shape& shape, const LogicalMesh& mesh) const {
  std::vector<SharedSpec> specs = sharedSpecs(shape, mesh);
  if (!options_.cut_shared) specs.resize(1);
  return specs;
}

void WayPricer::findRecomputations() {
  std::vector<LayerId> layers(training_.graph.nodes.size());
  for (size_t layer = 0; layer < pieces_.nodes.size(); ++layer) {
    for (const NodeId node : pieces_.nodes[layer]) layers[node.index()] = LayerId(layer);
  }
  by_layers_ = recomputationByLayers(training_, layers);
  selective_ = selectiveRecomputation(training_, layers);
}

bool WayPricer::isInterrupted() const {
  return options_.interrupted != nullptr && options_.interrupted->load();
}

void WayPricer::report(const std::string& text) const {
  if (!options_.progress) return;
  const std::lock_guard lock(progress_mutex_);
  options_.progress(text);
}

void WayPricer::priceKind(const Submesh& sample, const std::vector<PricedWay*>& ways, int kind) const {
  const int layer = example_[kind];
  const LogicalMesh& mesh = ways.front()->way.mesh;
  ShardStageOptions stage;
  stage.method = ways.front()->way.method;
  stage.replicated = pieces_.replicated;
  stage.microbatches = training_.microbatches;
  stage.batch = batch_;
  stage.kept_anyway = selective_.kept;
  stage.again_by_layers = by_layers_.again;
  stage.again_selectively = selective_.again;
  std::vector<int> boundaries;
  for (const PricedWay* way : ways) {
    if (std::find(boundaries.begin(), boundaries.end(), way->way.boundary) == boundaries.end())
      boundaries.push_back(way->way.boundary);
  }
  const bool shares = sharing_.contains(kind);
  const size_t times = shares ? specsToTry({}, mesh).size() : 1;
  std::vector<StageEnd> ends = sharedEnds(layer, mesh, boundaries.size());
  for (int number : pieces_.of_layer[layer]) {
    const CrossingValue& crossing = pieces_.crossings[number];
    StageEnd& end = ends.emplace_back();
    end.value = crossing.value;
    end.goes_on = crossing.gradient ? crossing.readers.front() < layer : crossing.last() > layer;
    for (int boundary : boundaries)
      end.ways.insert(
          end.ways.end(), times,
          boundarySpec(training_.graph.shape(crossing.value).size(), crossing.axis, mesh, boundary));
  }
  const CostModel model = costModelOn(cluster_, devicesOf(sample), mesh);
  const auto priced = priceStageInWays(training_, pieces_.nodes[layer], pieces_.phases, mesh, model, stage,
                                       ends, boundaries.size() * times);
  for (PricedWay* way : ways) {
    const size_t at = std::find(boundaries.begin(), boundaries.end(), way->way.boundary) - boundaries.begin();
    const auto begin = priced.begin() + static_cast<std::ptrdiff_t>(at * times);
    if (shares) {
      way->in_shared_specs.at(kind).assign(begin, begin + static_cast<std::ptrdiff_t>(times));
    } else {
      way->kinds[kind] = *begin;
    }
  }
}

std::vector<StageEnd> WayPricer::sharedEnds(int layer, const LogicalMesh& mesh, size_t times) const {
  std::vector<StageEnd> ends;
  for (const SharedParameter& shared : pieces_.shared) {
    const std::vector<SharedSpec> specs = specsToTry(training_.graph.shape(shared.value), mesh);
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

void WayPricer::priceKinds(const Submesh& sample, const std::vector<PricedWay*>& ways,
                           const std::vector<int>& kinds) const {
  std::vector<std::vector<PricedWay*>> problems;
  for (PricedWay* way : ways) {
    way->kinds.resize(pieces_.kind_count);
    for (int kind : kinds) {
      if (sharing_.contains(kind)) way->in_shared_specs[kind].resize(specsToTry({}, way->way.mesh).size());
    }
    const bool same = !problems.empty() && problems.back().front()->way.mesh == way->way.mesh &&
                      problems.back().front()->way.method == way->way.method;
    if (!same) problems.emplace_back();
    problems.back().push_back(way);
  }
  parallelFor(options_.threads, problems.size() * kinds.size(), [&](int32_t index) {
    const size_t task = index;
    const std::vector<PricedWay*>& problem = problems[task / kinds.size()];
    if (isInterrupted()) return;
    if (task % kinds.size() == 0) {
      const StageWay& way = problem.front()->way;
      report(fmt::format("costs of layers on {} devices, mesh {}, {}", sample.deviceCount(),
                         printMesh(way.mesh), shardingMethodToString(way.method)));
    }
    priceKind(sample, problem, kinds[task % kinds.size()]);
  });
}

void WayPricer::price(const Submesh& sample, const std::vector<PricedWay*>& ways, int but) const {
  std::vector<int> kinds;
  for (int kind = 0; kind < pieces_.kind_count; ++kind) {
    if (kind != but) kinds.push_back(kind);
  }
  priceKinds(sample, ways, kinds);
  for (PricedWay* way : ways) {
    keepShared(*way);
    way->costs.emplace(runCosts(sample, *way, {}));
  }
}

void WayPricer::priceLeast(const Submesh& sample, const std::vector<PricedWay*>& ways, bool priced) const {
  if (!priced) priceKinds(sample, ways, {usual_kind_});
  for (PricedWay* way : ways) way->least.emplace(runCosts(sample, *way, usual_kind_));
}

void WayPricer::keepShared(PricedWay& way) const {
  std::vector<const std::vector<std::optional<PricedStage>>*> layers;
  for (int kind : pieces_.kinds) {
    if (sharing_.contains(kind)) layers.push_back(&way.in_shared_specs.at(kind));
  }
  if (layers.empty()) return;
  const std::optional<SharedChoice> choice = chooseShared(layers, training_.microbatches);
  way.is_other = way.way.shared == 0 || (choice && choice->small != choice->fast);
  if (!choice) return;
  way.shared_spec = way.way.shared == 0 ? choice->fast : choice->small;
  for (const auto& [kind, priced] : way.in_shared_specs) way.kinds[kind] = priced[way.shared_spec];
}

bool WayPricer::readsShared(int first, int last) const {
  return std::any_of(pieces_.kinds.begin() + first, pieces_.kinds.begin() + last + 1,
                     [&](int kind) { return sharing_.contains(kind); });
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> WayPricer::sharedCosts(const PricedWay& way,
                                                                             const CostModel& model) const {
  std::pair<std::vector<int64_t>, std::vector<int64_t>> costs;
  for (const SharedParameter& shared : pieces_.shared) {
    const Shape& shape = training_.graph.shape(shared.value);
    const DataType type = training_.graph.dataType(shared.value);
    const SharedSpec spec = sharedSpecs(shape, way.way.mesh).at(way.shared_spec);
    ShardingSpec summed = spec.parts;
    summed.partial.clear();
    const int64_t size = dataTypeSize(type);
    const int64_t bytes = largestShard(spec.parameter, shape, way.way.mesh) * size;
    const int64_t part_bytes =
        shared.gradients.empty() ? 0 : largestShard(summed, shape, way.way.mesh) * size;
    const int64_t sum_ns =
        part_bytes == 0 ? 0 : planResharding(shape, type, spec.parts, summed, way.way.mesh, model).cost_ns;
    costs.first.push_back(bytes);
    costs.second.push_back(transfers_.exchange(bytes, part_bytes) + sum_ns);
  }
  return costs;
}

bool WayPricer::endsCan(const PricedWay& way, size_t layer) const {
  return std::all_of(pieces_.of_layer[layer].begin(), pieces_.of_layer[layer].end(), [&](int number) {
    const CrossingValue& crossing = pieces_.crossings[number];
    const Shape& shape = training_.graph.shape(crossing.value);
    return specFault(boundarySpec(shape.size(), crossing.axis, way.way.mesh, way.way.boundary), shape,
                     way.way.mesh)
        .empty();
  });
}

RunCosts WayPricer::runCosts(const Submesh& sample, const PricedWay& way, std::optional<int> only) const {
  const CostModel model = pieces_.shared.empty() ? CostModel::uniform(way.way.mesh)
                                                 : costModelOn(cluster_, devicesOf(sample), way.way.mesh);
  static constexpr PricedStage kNothing;
  std::vector<const PricedStage*> layers;
  for (size_t layer = 0; layer < pieces_.kinds.size(); ++layer) {
    const std::optional<PricedStage>& priced = way.kinds[pieces_.kinds[layer]];
    const bool free = only && pieces_.kinds[layer] != *only;
    const bool can = way.boundary >= 0 && (free ? endsCan(way, layer) : priced.has_value());
    layers.push_back(!can ? nullptr : free ? &kNothing : &*priced);
  }
  std::vector<int64_t> bytes;
  for (const CrossingValue& crossing : pieces_.crossings) {
    const Shape& shape = training_.graph.shape(crossing.value);
    const ShardingSpec spec = boundarySpec(shape.size(), crossing.axis, way.way.mesh, way.way.boundary);
    const bool can = specFault(spec, shape, way.way.mesh).empty();
    const int64_t size = dataTypeSize(training_.graph.dataType(crossing.value));
    bytes.push_back(can ? largestShard(spec, shape, way.way.mesh) * size
                        : training_.graph.bytes(crossing.value));
  }
  const bool between =
      options_.given.overlap_receives == OverlapReceives::kBetweenNodes && cluster_.nodes.size() > 1;
  const EmissionRules rules{options_.given,
                            between || options_.given.overlap_receives == OverlapReceives::kOn};
  auto [shared_bytes, exchange_ns] = sharedCosts(way, model);
  return RunCosts(training_, pieces_, layers, std::move(bytes), std::move(exchange_ns),
                  std::move(shared_bytes), rules);
}

}  // namespace pipeshard
