// The training graph cut into pieces: what each stage runs in each phase, what goes in and what comes out.
// The first half of emitPrograms; internal to partition/.
#pragma once

#include <array>
#include <vector>

#include "ir/base/ids.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"

namespace pipeshard {

// One subgraph of one stage. Inputs are in the order in which the nodes read them first, outputs in the order
// of the nodes. In-memory constants that are no parameters are neither: they travel inside the subgraph.
struct Piece {
  std::vector<NodeId> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  bool empty() const { return nodes.empty(); }
};

enum class ValueRole : uint8_t {
  kProduced,
  kConstant,
  kWeight,
  kParameter,
  kBatchInput,
  kTotal,
  kForwardState,
  kGradient,
  kState,
  kStep,
  kGradientScale,
  kLossScale,
  kWeightCopy,  // made once per step (ir/graph/weight_copies.h), by every stage that reads it
  kNone
};

struct ValuePlace {
  ValueRole role = ValueRole::kNone;
  size_t index = 0;  // kBatchInput: in TrainingGraph::inputs
  ValueId weight;    // kWeightCopy: of which weight
  StageId stage;     // kProduced by a forward or backward node
  Phase phase = Phase::kForward;
};

using StagePieces = std::array<Piece, kPhaseCount>;  // by Phase
inline constexpr std::array kBackwardPhases = {Phase::kBackward, Phase::kBackwardInput,
                                               Phase::kBackwardWeight};
inline constexpr std::array kPassPhases = {Phase::kForward, Phase::kBackward, Phase::kBackwardInput,
                                           Phase::kBackwardWeight};

// Some layers of a stage, whose forward pass is made again, and their backward pass.
struct RecomputedPart {
  LayerId layer;  // the last one
  // makes what the part's own backward pieces read of its forward pass, but for what the forward pass has
  // kept
  Piece again;
  StagePieces backward;  // of backward phases, its nodes of the stage's pieces
  const Piece& piece(Phase phase) const { return backward[static_cast<size_t>(phase)]; }
  bool remakes(ValueId id) const;
};

// How a stage that recomputes runs its passes. Layer by layer ("layers"):
//
//   forward      layer 0 → layer 1 → layer 2        keeps what one layer hands to another: h0, h1
//   backward     again 2 (h1), backward 2; again 1 (h0), backward 1; again 0, backward 0
struct RecomputedStage {
  // makes only what others need: other stages, the loss, forward states; and what it keeps for `parts`
  Piece forward;
  // in the order of the backward pass; one part, the whole stage, where it is not cut into layers
  std::vector<RecomputedPart> parts;
};

// In which form a pass runs.
enum class PassForm : uint8_t {
  kWhole,       // its piece, with all outputs
  kDiscarding,  // RecomputedStage::forward
  kAgain,       // RecomputedPart::again
  kRemade,      // a backward piece of a RecomputedPart, which reads what has been made again
};

struct Cut {
  std::vector<ValuePlace> values;  // by value index
  // Update nodes that several stages need are in each of them; so are prologue nodes, but of the stages that
  // share devices (deviceGroups) the first runs the prologue of all.
  IdVector<StageId, StagePieces> stages;
  // Before the first pass of the stage: the copies of weights that its passes read. Of several copies of a
  // weight in one type it makes the first, which stands for all.
  IdVector<StageId, Piece> copies;
  IdVector<StageId, RecomputedStage> recomputations;  // empty where it does not recompute
  std::vector<StageId> owners;                        // by parameter, as parameterOwners
  IdVector<StageId, PipelineRankId> groups;           // as deviceGroups
  IdVector<StageId, std::vector<bool>> read_values;   // by value index: as reads()

  const ValuePlace& place(ValueId id) const { return values[id.index()]; }
  const Piece& piece(StageId stage, Phase phase) const { return stages[stage][static_cast<size_t>(phase)]; }
  const RecomputedStage& recomputation(StageId stage) const { return recomputations[stage]; }
  // The piece that runs; `part`: of RecomputedStage::parts, for the forms kAgain and kRemade.
  const Piece& piece(StageId stage, Phase phase, PassForm form, size_t part = 0) const;
  // A forward, backward or prologue piece of the stage reads the value, or one that makes copies does.
  bool reads(StageId stage, ValueId id) const { return read_values[stage][id.index()]; }
  // Of some stage of the group.
  bool groupReads(PipelineRankId group, ValueId id) const;
};

// The backward pass of a stage is one piece (kBackward) where the schedule has it whole (splitStages) and
// no other stage waits for a gradient from it, as with the first stage: what layers hand from the input half
// to the weight half then goes from node to node, and is not there for all layers at once. Else it is two.
//
// Nodes that neither the loss nor a gradient needs are left out. Error(kConfiguration) when a stage would run
// a node again that gives random numbers.
Cut cutTraining(const TrainingGraph& training, const Plan& plan);
// For a schedule that is not the plan's own; `split`: by stage, as splitStages.
Cut cutTraining(const TrainingGraph& training, const Plan& plan, const IdVector<StageId, bool>& split);

}  // namespace pipeshard
