// What runs of layers cost in one way (mesh, method, boundary), from what each layer costs alone: sums by prefixes and range maxima, so
// that a run costs no more than a few look-ups. Internal to partition/.
//
// Memory of a run i..j, of one microbatch: while layer l runs, what the layers before it have kept for their backward passes, and what
// layer l itself holds; so the most is max over l of kept(i..l-1) + pass_bytes(l). A value that several layers keep counts once: what it
// counts too much is known by pairs of layers that keep it, one after the other. What passes a layer by counts there, whether the run has
// both its ends or not: at most too much. Recomputed layer by layer, a run keeps what its layers read of others, and layer l holds what it
// holds alone, when it is made again and its backward pass runs: at most max over l of emitted_bytes(l).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "partition/layer_pieces.h"
#include "partition/stage_costs.h"
#include "sharding/priced_stage.h"

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

class RunCosts {
 public:
  // By layer; nullptr: the layer cannot be in this way. `crossing_bytes`: by LayerPieces::crossings, as they are kept. `exchange_ns`: by
  // LayerPieces::shared, per step, what a stage pays when others have the parameter, too.
  RunCosts(const TrainingGraph& training, const LayerPieces& pieces, const std::vector<const PricedStage*>& layers,
           std::vector<int64_t> crossing_bytes, std::vector<int64_t> exchange_ns);

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
    kFields
  };
  using Sums = std::array<int64_t, kFields>;

  void addPairs(const TrainingGraph& training);
  void addPassMemory(int first, int last, std::string_view recomputation, StageCostParts& parts) const;
  RangeMaximum passes(const std::vector<const PricedStage*>& layers) const;
  RangeMaximum layersAlone(const std::vector<const PricedStage*>& layers) const;
  int64_t sum(Field field, int first, int last) const;
  int64_t exchange(int first, int last) const;
  // Of values of earlier layers that forward nodes of the run read: all, and those that wait for its backward pass.
  std::pair<int64_t, int64_t> entering(int first, int last) const;

  const LayerPieces& pieces_;
  std::vector<int64_t> crossing_bytes_;
  std::vector<int64_t> exchange_ns_;
  bool one_microbatch_;
  std::vector<Sums> sums_;       // of layers before
  std::vector<int> impossible_;  // number of such layers before
  PairSums waiting_, inputs_, handed_on_, weights_, gradients_;
  std::vector<int64_t> passing_;  // by layer
  RangeMaximum pass_peaks_, layer_peaks_, update_peaks_;
};

}  // namespace pipeshard
