// The norm of all gradients, over all stages and devices, between the last gradient and the first update of a
// step: what clipping by it and the step's guard (Program::guard) go by.
//
//   run gradient_squares "gradient_norm@holder0", "dw", "dv@synchronized", "loss" -> "gradient_norm@squares"
//   all_reduce "gradient_norm@squares"                                   over all ranks, in their order
//   run gradient_norm "gradient_norm@squares" -> "gradient_norm", "gradient_scale"
//
// Where the loss is scaled (TrainingGraph::loss_scaling), the norm is that of the gradients without the
// scale, "gradient_scale" takes it out of them, and the same graph makes the next step's scale and count of
// the last:
//
//   run gradient_norm "gradient_norm@squares", "loss_scale", "loss_scale@steps" -> ...,
//   "gradient_norm@next_scale", ... accumulate "gradient_norm@next_scale" -> "loss_scale" overwrite
//
// Every element of every gradient is counted once: of what several devices hold alike, each takes an equal
// share of the elements. The loss is added times 0, so that the norm is not finite where the loss is not.
// Internal to partition/.
#pragma once

#include <vector>

#include "partition/emit/rank_builder.h"

namespace pipeshard {

// `gradients`: by parameter, as the update reads them; invalid where the rank updates none. `loss`: the sum
// of the step, on the one device that speaks for it; else invalid. Sets the guard, and the program's
// loss_scale; lists the measures "gradient_norm" and, where gradients are scaled, "gradient_scale", and the
// scale of the loss: the measure "loss_scale", with which the step was made, and the states of the next.
void takeGradientNorm(const EmissionContext& context, RankId rank, const std::vector<BufferId>& gradients,
                      BufferId loss, RankBuilder& builder);

}  // namespace pipeshard
