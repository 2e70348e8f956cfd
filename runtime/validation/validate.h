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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/data_type.h"
#include "runtime/job/job.h"

namespace pipeshard {

enum class ComparedKind : uint8_t {
  kLoss,
  kGradient,
  kParameter,       // against the single device's, by the measure
  kOptimizerState,  // likewise
  kForwardState,    // likewise (running statistics)
  kOutput,          // likewise (a forward-only step)
  kMeasure,         // likewise (the norm of all gradients)
  // on identical gradients: the change in this step, element by element (largestUpdateDifference)
  kUpdatedParameter,
  // the single device's, in the first step, against those that the model was exported with, by the measure
  kImportedGradient,
  kUpdatedState,  // on identical gradients: the state after this step (largestStateDifference)
};
std::string_view comparedKindName(ComparedKind kind);

struct TensorComparison {
  ComparedKind kind = ComparedKind::kGradient;
  std::string name;   // the model's name of the parameter; "loss"
  std::string state;  // of optimizer states
  int step = 0;       // 1-based
  // of losses and gradients where a step is a window of several updates: which of them, from 0 on
  int update = -1;
  int microbatch = -1;            // of outputs
  double error = 0;               // as above; NaN in either tensor counts as infinity
  double largest_difference = 0;  // largest |got - want|
  double bound = 0;               // infinity: shown, but not decisive
  bool passed() const { return error <= bound; }
};

// Of a step, or of an update where a step is a window of several.
struct StepComparison {
  double loss = 0;            // planned
  double reference_loss = 0;  // one device
  int step = 0;
  int update = -1;
};

// What rounding to a narrow type does to a tensor that is beyond its bound
// (runtime/validation/own_rounding.h).
struct OwnRounding {
  std::string name;
  double error = 0;  // between planned job and single device
  double own = 0;    // between the single device and what it computes in float64; the worst gradient's
  // Two that round apart, each by so much, differ by about 1.4 times that, and by less than 3 times. By no
  // more than 0.75, whatever one device rounds: a gradient that is lost, or counted twice, is 1 away, and
  // some of what narrow types do (copies of weights, sums of theirs) is not there in float64. One device that
  // gives no numbers explains nothing.
  bool explains() const { return std::isfinite(own) && error <= std::min(3 * own, 0.75); }
};

// What the same plan came to in float64, where a narrower type went beyond its bounds: rounding is a
// billionth there, and a wrong cut as wrong as before.
struct Float64Check {
  bool passed = false;  // by float64's own bounds
  int64_t compared = 0;
  TensorComparison worst;
  // Of bfloat16 and float16: the tensor that one device's own rounding explains least. float32's has a limit
  // instead (mayBeRounding).
  std::optional<OwnRounding> own = {};
};

struct ValidationReport {
  std::vector<StepComparison> steps;
  // Numbers of steps that both sides have left out, as their gradients were not finite (float16). They change
  // nothing, which is compared; their losses and gradients are not.
  std::vector<int> left_out;
  std::vector<TensorComparison> tensors;  // worst (error / bound) first, ties by kind, name and step
  int ranks = 0;
  JobResult planned;
  JobResult reference;
  std::optional<Float64Check> in_float64;  // nothing: it was not looked at, or there was no need
  bool withinBounds() const;
  // So it is, or rounding alone is beyond its bounds: mayBeRounding, it passed in float64, and one device
  // rounds as much where the type is narrow.
  bool passed() const;
};

// Something is beyond its bounds, but only what rounding can reach (not updates on identical gradients, nor
// one device against the gradients in the file), and, in float32, by no more than rounding makes (0.05 of a
// tensor's norm; a gradient left out is 1).
bool mayBeRounding(const ValidationReport& report, bool is_narrow = false);

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

// Runs both jobs and compares. A tensor that one side lacks is an Error(kInternal). Failures of a job are its
// errors.
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
