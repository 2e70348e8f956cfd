// Mixed precision, for planning only: what a training step would cost in float16 on devices that have it,
// with float32 master weights and optimizer states, as is usual on GPUs. Nothing runs the result: no kernel
// computes in float16 here.
#pragma once

#include "ir/base/data_type.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

// Every float32 value becomes `type`, but for the optimizer's states; and every parameter that is updated
// gets one more state, "master_weight", in float32. Sizes and rates follow from the types: Adam keeps 2 + 4 +
// 4 + 4 bytes of a parameter, and 2 of its gradient.
TrainingGraph inMixedPrecision(TrainingGraph training, DataType type = DataType::kFloat16);

}  // namespace pipeshard
