// Whether a plan can go on from a checkpoint. The coordinator asks before workers begin, as it has the whole
// of both: of what does not fit it says why, and what to do.
//
//   the checkpoint has        the plan's programs keep
//   parameter/w               parameter/w                  w goes on
//   state/w.first_moment      -                            another optimizer: it is left behind, and said
//   parameter/frozen          -                            refused: it would be the model file's again
//   -                         state/w.moving_average       refused: --ema was added
//   250 steps of 8 examples   steps of 16                  refused: 2000 examples are done, not 4000
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/shape.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipeshard {

class ProgramFolder;  // runtime/execute/rank_image.h

struct KeptTensor {
  DataType data_type = DataType::kUndefined;
  Shape shape;
};
// What a plan keeps from step to step, by the names that checkpoints have for it (stateTensorName).
using KeptTensors = std::map<std::string, KeptTensor>;

// Of all ranks. Errors as ProgramFolder.
KeptTensors keptTensors(ProgramFolder& programs);

// Gives back the kinds of states that the checkpoint has and the plan has not ("first_moment"), sorted.
// Error(kConfiguration) where
// - the checkpoint lacks what the plan keeps, or has it in another type or shape;
// - the plan does not train a parameter, or keep a running statistic, of the checkpoint: it would take what
//   the model's file has, and no later checkpoint would have what was learned.
std::vector<std::string> requireFits(const KeptTensors& kept, const Checkpoint& checkpoint);

// Steps of `plan` count as many examples and updates as those that are done. Error(kConfiguration) where they
// do not: data would be left out or repeated, and learning rates be those of other updates. A checkpoint that
// does not say what its steps took is not refused.
void requireSameExtent(const StepExtent& plan, const Checkpoint& checkpoint);

}  // namespace pipeshard
