// What runs of layers cost in one way (mesh, method, boundary), from what each layer costs alone: sums by
// prefixes and range maxima, so that a run costs no more than a few look-ups. Internal to partition/.
//
// Memory of a run i..j is that of its programs as they are emitted: a subgraph each for forward pass, input
// half and weight half of the backward pass, of all its layers together; what goes into one or comes out of
// it is there from its beginning to its end:
//
//   forward pass    what waits for the backward passes, and what enters and leaves
//   input half      what waits, what it hands to the weight half, and gradients that enter and leave
//   weight half     what waits for it, what it was handed, and gradients that have no place in their
//                   accumulators
//   workspace       the largest of what is between the nodes of one subgraph; in one layer at a time
//
// So a run holds sums over its layers, and the largest workspace of one. A value that several layers keep
// counts once: what sums count too much is known by pairs of layers that keep it, one after the other. What
// passes a layer by counts in the workspace there. Recomputed as a whole, what waits is there for the
// microbatch that runs alone. Recomputed layer by layer, a run keeps what its layers read of others, and
// every layer has subgraphs of its own: beside them, at most max over l of emitted_bytes(l).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "partition/costs/layer_pieces.h"
#include "partition/costs/stage_costs.h"
#include "sharding/pricing/priced_stage.h"

namespace pipeshard {

// Sums over pairs of layers (a, b) that lie in a run.
class PairSums {
 public:
  explicit PairSums(size_t layers) : adjacent_(layers + 1) {}
  void add(int a, int b, int64_t bytes);
  void addChain(const std::vector<int>& layers, int64_t bytes);  // every layer with the next one
  void finish();
  int64_t within(int first, int last) const;
  // Of neighbours alone, with both in 0..last.
  int64_t upTo(int last) const { return adjacent_[static_cast<size_t>(last)]; }

 private:
  struct Pair {
    int a;
    int b;
    int64_t bytes;
  };
  std::vector<int64_t> adjacent_;  // by cut; finished: of all cuts before it
  std::vector<Pair> far_;
};

class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<int64_t> values);
  int64_t of(int first, int last) const;

 private:
  std::vector<std::vector<int64_t>> levels_;  // of runs of 2^k
};

// What memory depends on of how programs are written.
struct EmissionRules {
  int64_t bucket_bytes = 0;     // Plan::bucket_bytes
  bool early_receives = false;  // a message may come while the one before it is still needed
};

class RunCosts {
 public:
  // By layer; nullptr: the layer cannot be in this way. `crossing_bytes`: by LayerPieces::crossings, as they
  // are kept. `exchange_ns`: by LayerPieces::shared, per step, what a stage pays when others have the
  // parameter, too; `shared_bytes`: of it, as it is kept.
  RunCosts(const TrainingGraph& training, const LayerPieces& pieces,
           const std::vector<const PricedStage*>& layers, std::vector<int64_t> crossing_bytes,
           std::vector<int64_t> exchange_ns, std::vector<int64_t> shared_bytes, const EmissionRules& rules);

  bool possible(int first, int last) const;
  // `recomputation`: "never", "always" or "layers".
  StageCostParts of(int first, int last, std::string_view recomputation) const;

 private:
  enum Field {
    kForward,
    kInput,
    kWeight,
    kCommunication,
    kUpdate,
    kSynchronization,
    kWeights,
    kGradients,
    kStates,
    kWaiting,
    kInputs,
    kWaitingInputs,
    kHandedOn,  // what other layers make and a layer's passes read
    kEarly,
    kHanded,  // from input halves to weight halves
    kOutputs,
    kSummands,
    kWholeGradients,
    kSynchronized,
    kConstants,
    kFields
  };
  using Sums = std::array<int64_t, kFields>;

  // What crosses the ends of a run: in its forward passes those that do not wait in it, gradients, and of
  // what enters all that forward nodes read, and of these what waits.
  struct Ends {
    int64_t entering = 0;
    int64_t entering_waiting = 0;
    int64_t leaving = 0;
    int64_t leaving_waiting = 0;
    int64_t entering_gradients = 0;
    int64_t leaving_gradients = 0;
  };

  void addPairs();
  void addPassMemory(int first, int last, std::string_view recomputation, StageCostParts& parts) const;
  RangeMaximum layersAlone(const std::vector<const PricedStage*>& layers) const;
  // Of layers up to `last`: accumulators or synchronised gradients, where they come to be during the backward
  // passes.
  int64_t doneBehind(int last, Field field) const;
  int64_t sum(Field field, int first, int last) const;
  int64_t exchange(int first, int last) const;
  int64_t joined(int first, int last) const;
  Ends endsOf(int first, int last) const;

  const LayerPieces& pieces_;
  std::vector<int64_t> crossing_bytes_;
  std::vector<int64_t> exchange_ns_;
  EmissionRules rules_;
  bool one_microbatch_;
  std::vector<Sums> sums_;       // of layers before
  std::vector<int> impossible_;  // number of such layers before
  PairSums waiting_, inputs_, handed_on_, weights_;
  std::vector<int64_t> passing_;               // by layer
  std::vector<int64_t> handed_ends_;           // by layer: PricedStage::handed_end_bytes
  std::vector<int64_t> shared_bytes_;          // by LayerPieces::shared, as it is kept
  RangeMaximum pieces_alone_, pieces_inside_;  // PricedStage::pieces
  RangeMaximum discarding_alone_, discarding_inside_;
  RangeMaximum layer_peaks_, update_peaks_, synchronization_peaks_;
};

}  // namespace pipeshard
