// What graphs, checkpoints and reports call the state that is a moving average of its parameter.
#pragma once

namespace pipeshard {

inline constexpr const char* kMovingAverage = "moving_average";

}  // namespace pipeshard
