// Validation: the planned job against one device. Same initial weights, same data, same microbatches;
// compared are the loss of every step, every gradient, every updated parameter and every optimizer state.
//
// The measure, everywhere: for a tensor, in 2-norms,
//   error = norm(got - want) / max(norm(want), floor * norm(all wants) * sqrt(size / total size)),
// "all wants" being all tensors of the same kind and step. The floor keeps a gradient that is analytically
// zero (a key bias under softmax, a bias before a batch normalisation) from deciding: what is left of it is
// rounding of the terms that cancel, which are as large as other gradients or, near the loss, a hundred times
// as large. A bound times the floor is some forty roundings of an average element in float32, and twenty
// thousand in float64: where forty are too few, float64 tells.
//
// Adaptive optimizers magnify rounding: Adam turns a gradient of 1e-12 instead of 0 into a step of a whole
// learning rate. So the update of every optimizer is judged on identical gradients as well: the single-device
// update program runs on the planned job's own parameters, states and gradients of that step, and must make
// the same change element by element. With all but SGD this replaces the comparison of parameters and
// states with the single device's, which is shown but does not decide.
//
// Where results cannot be bit by bit equal (data-parallel devices add up gradients in another order) or are
// magnified (all but SGD), the single device starts every step from the planned job's parameters and states
// of the step before. Every step is so compared at identical parameters: a rounding of step 1 that turns a
// Relu in step 3 decides nothing, and an error in what a step leaves behind shows in that step's update or in
// the gradients of the next.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ir/base/data_type.h"
#include "runtime/job/job.h"
#include "runtime/validation/validation_report.h"

namespace pipeshard {

struct ValidateSpec {
  JobSpec planned;    // its dump settings are overridden
  JobSpec reference;  // the single-device program of the same plan
  // plan directory of the model's own gradients (planning/programs/imported_gradients.h); "": it has none
  std::string imported;
  double imported_bound = 1e-4;
  double bound = 1e-5;         // losses, gradients; parameters and states too unless `adaptive`
  double update_bound = 1e-6;  // element by element, on identical gradients
  double floor = 0.25;         // of the measure
  bool adaptive = false;       // all optimizers but SGD
  // the single device starts every step from the planned job's parameters; `adaptive` implies it
  bool same_start = false;
  std::string work_directory;  // for dumps; made and removed by the caller
};

// Bounds that the main job promises: 1e-5 and 1e-6 for float32, 1e-11 and 1e-12 for float64, 0.1
// (devices that share sums round apart) and 1e-6 for bfloat16 and float16.
// Imported gradients, made by other operators in another order, have ten times as much as ours; in halves
// as much, since an error of 1 is that of a gradient of zeros.
void setPromisedBounds(DataType precision, ValidateSpec& spec);

// Runs both jobs and compares. A tensor that one side lacks is an Error(kInternal); a plan that was replaced
// between two jobs, kVersionMismatch. Failures of a job are its errors.
ValidationReport validate(const ValidateSpec& spec, const std::function<void(const std::string&)>& progress);

// Of parameters after and `before` an update: the largest difference between the two changes, relative to the
// wanted change (or a thousandth of the tensor's largest, if that is more), beyond what rounding the
// parameters to multiples of `unit` allows, and beyond `uncertainty` of each change, relative to it (empty:
// none). An update that was skipped has error 1, however small the learning rate.
double largestUpdateDifference(std::span<const double> got, std::span<const double> want,
                               std::span<const double> before, double unit,
                               std::span<const double> uncertainty = {});

// Of states after and `before` an update: the largest difference, relative to the wanted state (or a
// thousandth of the tensor's largest, if that is more), beyond what rounding the sum of old state and
// gradient to multiples of `unit` allows: where the two cancel, devices that fuse other products with the sum
// differ by a last bit of what was there before. A state that was not updated differs by as much as it should
// have changed.
double largestStateDifference(std::span<const double> got, std::span<const double> want,
                              std::span<const double> before, double unit);

// The measure on top. Spans of different size, or NaN: infinity.
double relativeError(std::span<const double> got, std::span<const double> want, double all_wants_norm,
                     int64_t all_wants_size, double floor);

}  // namespace pipeshard
