// Rounding told from a wrong cut. In float32, devices that share rows or operators round their sums apart,
// and a Relu near zero makes more of it: gradients may differ by a thousandth, and nothing is wrong. In
// float64 the same plan then equals one device to some 1e-14, while a wrong cut stays as wrong as it was. In
// bfloat16 and float16, gradients may differ by a third where one device itself is so far from float64.
#pragma once

#include <functional>
#include <string>

#include "ir/plan/plan.h"
#include "runtime/validation/validate.h"

namespace pipeshard {

struct Float64Request {
  const Plan& plan;                   // in a narrower type
  const std::string& plan_directory;  // its programs, as they were run
  ValidateSpec spec;                  // as it was run; its directories and bounds are replaced
  std::string scratch;                // a folder for the programs in float64 and what they leave
};

// Where `report` may be rounding (mayBeRounding): makes the plan's programs in float64, runs them and the
// single device's, and puts what comes of it into the report. Returns why that was not done; "": it was, or
// there was no need. Not for programs that are no longer those of their plan: they could be wrong in what is
// made anew. Errors: JobInterrupted; what else fails is said in the text.
std::string checkInFloat64(const Float64Request& request, ValidationReport& report,
                           const std::function<void(const std::string&)>& progress);

}  // namespace pipeshard
