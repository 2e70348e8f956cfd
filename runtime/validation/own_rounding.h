// How far a narrow type takes one device from what it computes: the measure of what devices that round apart
// may differ by. In bfloat16 the gradients of a deep convolutional network with batch normalisation are half
// rounding on one device, too (0.3 to 0.5 of their norm); no plan can be nearer to one device than that.
#pragma once

#include <string>

#include "runtime/validation/validate.h"

namespace pipeshard {

// Of what is beyond its bound in `report`, what is least explained: how much planned job and single device
// differ, and how much the single device in the narrow type differs from itself in float64, in the first
// step, by the same measure with this floor. A gradient is held against the worst one: where a rounding turns
// a Relu is chance. Only losses, gradients and measures can be explained. `narrow` and `wide`: folders with
// the single device's dumps.
OwnRounding ownRounding(const ValidationReport& report, const std::string& narrow, const std::string& wide,
                        double floor);

}  // namespace pipeshard
