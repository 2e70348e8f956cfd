// What a run of consecutive layers, as a stage, costs in one way (mesh, method, boundary). It is put together
// from what each layer costs alone: sums over a run are differences of prefix sums, maxima are looked up in a
// table, so that every run costs a few look-ups. Internal to partition/.
//
// Memory is that of the programs that would be emitted. The forward pass, the input half and the weight half
// of the backward pass of all layers of the run are one subgraph each. What goes into a subgraph or comes out
// of it has a buffer. So a device holds:
//
//   in the forward pass  what waits for the backward pass, what enters the stage and what leaves it
//   in the input half    what waits, what is handed to the weight half, gradients that enter and leave
//   in the weight half   what waits for it, what was handed to it, gradients that have no place in their
//                        accumulators
//   in each of them      workspace: what the nodes of the subgraph make for each other, while it runs
//
// Where nobody waits for a gradient of the run, and the schedule lets it be, the backward pass is one
// subgraph (cut_training.h); then what was handed is workspace:
//
//   in the backward pass what waits, gradients that enter, and those that have no place in their accumulators
//
// A backward pass goes through the layers from the last one on, and what it has read for the last time makes
// place for what it makes (memory_plan.h). So while layer l of a run runs, there is what waits for the layers
// up to l, what those from l on have made, and the workspace of l: the most of that over l counts (Profile).
// In the forward pass it is what the layers up to l have made to wait, and the workspace of l.
//
// All but the workspace are sums over the layers. Two things do not add up so:
//
//   - A value that several layers keep is there once, but in the sum of each of them. PairSums takes off what
//     is too much: kept by the layers 1, 3 and 4, it counts for the pairs (1, 3) and (3, 4), and a run takes
//     off the pairs that lie in it.
//   - A value that is made before a layer and read behind it is there while that layer runs. It counts in the
//     layer's workspace (passing_).
//
// Recomputation. "always": what waits is there for one microbatch alone, the one whose backward pass runs.
// "layers": for each microbatch the run keeps what its layers read of each other; every layer has subgraphs
// of its own, and beside what is kept there are at most the bytes of the largest layer's (PricedPasses).
// "selective": the same, but what products made is kept, too (kept_bytes), and only the rest runs again. When
// a layer's backward pass runs, those of the layers behind it are done, and what they kept of the microbatch
// is gone.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "partition/costs/layer_pieces.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "sharding/pricing/priced_stage.h"

namespace pipeshard {

// Bytes of pairs of layers (a, b), a < b, summed over the pairs that lie in a run. add, then finish, then
// questions. Neighbouring pairs are a prefix sum; those of layers further apart are few and gone through.
class PairSums {
 public:
  explicit PairSums(size_t layers) : adjacent_(layers + 1), ending_(layers + 1) {}
  void add(int a, int b, int64_t bytes);
  void addChain(const std::vector<int>& layers, int64_t bytes);  // every layer with the next one
  void finish();
  int64_t within(int first, int last) const;
  // Of pairs (a, a + 1) alone, with both in 0..last.
  int64_t upTo(int last) const { return adjacent_[last]; }
  // Of all with b in 0..last.
  int64_t endingUpTo(int last) const { return ending_[last]; }

 private:
  struct Pair {
    int a;
    int b;
    int64_t bytes;
  };
  std::vector<int64_t> adjacent_;  // by cut; finished: of all cuts before it
  std::vector<int64_t> ending_;    // by b; finished: of all up to it
  std::vector<Pair> far_;
};

// The largest of values[first..last] in constant time: level k has the maxima of all runs of 2^k values, and
// two of them cover any run.
class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<int64_t> values);
  int64_t of(int first, int last) const;

 private:
  std::vector<std::vector<int64_t>> levels_;  // by k, then first value of the run
};

// How programs are written, as far as their memory depends on it.
struct EmissionRules {
  GivenOptions given;
  bool early_receives = false;  // a message may come while the one before it is still needed
};

class RunCosts {
 public:
  // `layers`: by layer, its price in this way; nullptr: it cannot be in this way. `crossing_bytes`: by
  // LayerPieces::crossings, on a device, as this way keeps them. `exchange_ns`, `shared_bytes`: by
  // LayerPieces::shared, what a stage pays per step when other stages have the parameter, too, and the bytes
  // of it on a device.
  RunCosts(const TrainingGraph& training, const LayerPieces& pieces,
           const std::vector<const PricedStage*>& layers, std::vector<int64_t> crossing_bytes,
           std::vector<int64_t> exchange_ns, std::vector<int64_t> shared_bytes, const EmissionRules& rules);

  // All layers of the run can be in this way.
  bool possible(int first, int last) const;
  // Of a possible run. `recomputation`: all but "except-last".
  StageCostParts of(int first, int last, Recomputation recomputation) const;

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
    kOnceByLayers,
    kOnceSelectively,
    kKept,
    kKeptWaiting,
    kLate,  // what waits and the weight half reads
    kFields
  };
  using Sums = std::array<int64_t, kFields>;
  static Sums ownSums(const PricedStage& of, int64_t handed_on);

  // Bytes that cross the ends of a run. Activations enter in front of it and leave behind it, gradients the
  // other way. `waiting`: of these, what waits in the run for its backward pass.
  struct Ends {
    int64_t entering = 0;  // that forward nodes of the run read
    int64_t entering_waiting = 0;
    int64_t leaving = 0;
    int64_t leaving_waiting = 0;
    int64_t entering_gradients = 0;
    int64_t leaving_gradients = 0;
  };

  // The largest of before(first..l) + behind(l..last) + excess(l) over the layers l of a run, in constant
  // time.
  class Profile {
   public:
    // By layer: prefix sums, one more than layers, of what is there until the layer is done, and of what is
    // there from then on; what of the layer before it is there already; what the layer has more than that
    // while it runs; and of this, its workspace.
    Profile(std::vector<int64_t> before, std::vector<int64_t> behind, const std::vector<int64_t>& more,
            const std::vector<PricedPeak>& excess, const std::vector<PricedPeak>& workspace);
    int64_t of(int first, int last) const;
    int64_t workspace(int first, int last) const;  // the largest

   private:
    std::vector<int64_t> before_, behind_;
    std::vector<int64_t> alone_, workspace_alone_;  // by layer: of a run of it alone
    RangeMaximum most_, workspace_;
  };
  // As the passes are emitted.
  struct Passes {
    std::optional<Profile> forward;
    std::optional<Profile> backward;  // or its input half
    std::optional<Profile> weight_half;
    // what one layer may hold while it runs, where every layer has its own subgraphs
    RangeMaximum by_layers{{}}, selectively{{}};
  };
  enum class Keeps : uint8_t { kHandedOn, kProductsToo };  // of layers that recompute
  using PassesOf = PricedPasses PricedStage::*;

  void addPairs();
  Profile profileOf(const std::vector<const PricedStage*>& layers, PassesOf passes, size_t piece,
                    const std::vector<Field>& before, const std::vector<Field>& behind) const;
  void findPasses(const std::vector<const PricedStage*>& layers);
  bool postsGradients(int first, int last) const;
  int64_t updateBytes(int first, int last) const;
  void addPassMemory(int first, int last, Recomputation recomputation, StageCostParts& parts) const;
  int64_t backwardBytes(int first, int last, const Ends& ends, int64_t sent, bool whole) const;
  int64_t recomputedBytes(int first, int last, Recomputation recomputation, const Passes& passes) const;
  int64_t keptOf(const PricedStage& of, int layer, Keeps keeps) const;
  RangeMaximum layersAlone(const std::vector<const PricedStage*>& layers, PassesOf passes, Keeps keeps) const;
  RangeMaximum layersAgain(const std::vector<const PricedStage*>& layers, Keeps keeps) const;
  // Bytes of the layers up to `last`: accumulators (kGradients) or synchronised gradients (kSynchronized),
  // where these come to be during the backward passes; else 0.
  int64_t doneBehind(int last, Field field) const;
  // Of the layers up to this one, what those that recompute keep: of each other, and of products.
  int64_t keptUpTo(int last, Keeps keeps) const;
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
  Passes halved_, whole_;
  RangeMaximum discarding_alone_, discarding_inside_, update_peaks_, synchronization_peaks_;
  RangeMaximum again_by_layers_, again_selectively_;  // what one layer makes again, and its workspace then
};

}  // namespace pipeshard
