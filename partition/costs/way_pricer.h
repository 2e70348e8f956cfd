// Puts prices to the ways of stage_ways.h: first what each kind of layers costs alone in a way, then, from
// these, what any run of layers costs (RunCosts). Internal to partition/costs/.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/cluster/cluster.h"
#include "ir/graph/training_graph.h"
#include "partition/costs/boundary_transfers.h"
#include "partition/costs/layer_pieces.h"
#include "partition/costs/run_costs.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/shared_specs.h"
#include "partition/costs/stage_ways.h"
#include "partition/cut/layer_recomputation.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/pricing/priced_stage.h"

namespace pipeshard {

// A way of a class of submeshes, with its costs.
struct PricedWay {
  StageWay way;
  int boundary = -1;  // StageOption::boundary; -1: it has no number, so it cannot be
  std::vector<std::optional<PricedStage>> kinds;
  // of a kind whose layers read shared parameters: its price with these in each of sharedSpecs
  std::map<int, std::vector<std::optional<PricedStage>>> in_shared_specs;
  // the one of sharedSpecs that the way keeps
  size_t shared_spec = 0;
  // false: StageWay::shared 1, and it keeps the same spec as 0 does
  bool is_other = true;
  std::optional<RunCosts> costs;
  std::optional<RunCosts> least;  // of the usual kind alone
};

// Functions may be called by several threads, for different ways.
class WayPricer {
 public:
  // All but `batch` are kept by reference.
  WayPricer(const TrainingGraph& training, const LayerPieces& pieces, const Cluster& cluster,
            const BoundaryTransfers& transfers, const StageCostOptions& options,
            std::shared_ptr<const BatchDependence> batch);

  // Fills in `costs` of ways on a class of submeshes. `but`: a kind that is priced already; -1: none.
  void price(const Submesh& sample, const std::vector<PricedWay*>& ways, int but) const;
  // The same of `least`. `priced`: price has been called for them.
  void priceLeast(const Submesh& sample, const std::vector<PricedWay*>& ways, bool priced) const;

  // The kind that most layers are of, if these share no parameters; -1: none.
  int usualKind() const { return usual_kind_; }
  // Layers first..last have a shared parameter.
  bool readsShared(int first, int last) const;

 private:
  std::vector<SharedSpec> specsToTry(const Shape& shape, const LogicalMesh& mesh) const;
  void findRecomputations();
  bool isInterrupted() const;
  void report(const std::string& text) const;
  // Ways of one mesh and method differ in their ends alone, and in how shared parameters are kept: one
  // problem.
  void priceKind(const Submesh& sample, const std::vector<PricedWay*>& ways, int kind) const;
  // What the layer has of shared parameters: all ways to keep them, one after the other, so many times.
  std::vector<StageEnd> sharedEnds(int layer, const LogicalMesh& mesh, size_t times) const;
  void priceKinds(const Submesh& sample, const std::vector<PricedWay*>& ways,
                  const std::vector<int>& kinds) const;
  // Layers that share parameters get the costs of the way in which all of them keep these.
  void keepShared(PricedWay& way) const;
  // By LayerPieces::shared: of the parameter as the way keeps it, and what exchanging it with another stage
  // takes per step.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> sharedCosts(const PricedWay& way,
                                                                    const CostModel& model) const;
  // What crosses the layer's ends can be kept as the way keeps it.
  bool endsCan(const PricedWay& way, size_t layer) const;
  // `only`: layers of other kinds cost nothing.
  RunCosts runCosts(const Submesh& sample, const PricedWay& way, std::optional<int> only) const;

  const TrainingGraph& training_;
  const LayerPieces& pieces_;
  const Cluster& cluster_;
  const BoundaryTransfers& transfers_;
  const StageCostOptions& options_;
  const std::shared_ptr<const BatchDependence> batch_;
  LayerRecomputation by_layers_, selective_;
  std::vector<int> example_;  // by kind: a layer
  // kinds of layers that read or make a gradient of a parameter that others do, too
  std::set<int> sharing_;
  int usual_kind_ = -1;
  mutable std::mutex progress_mutex_;
};

}  // namespace pipeshard
