// What a validation has found: of every tensor how far the planned job is from one device, and what follows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/job.h"

namespace pipeshard {

enum class ComparedKind : uint8_t {
  kLoss,
  kGradient,
  kParameter,       // against the single device's, by the measure of validate.h
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
  int microbatch = -1;  // of outputs
  // the measure of validate.h; NaN in one tensor counts as infinity, and so does not_a_number
  double error = 0;
  double largest_difference = 0;  // largest |got - want|
  double bound = 0;               // infinity: shown, but not decisive
  // Elements are NaN, or the same infinity, on both sides at the same places, and the rest is within the
  // bound: there is no number to compare on one device either.
  bool not_a_number = false;
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
  // Where nothing but such tensors is beyond its bound: the first of them, by step. Neither does the plan
  // differ then, nor can anybody say that it is right. nullptr: there are none, or others differ.
  const TensorComparison* firstNotANumber() const;
  // So it is, or rounding alone is beyond its bounds: mayBeRounding, it passed in float64, and one device
  // rounds as much where the type is narrow.
  bool passed() const;
};

// Something is beyond its bounds, but only what rounding can reach (not updates on identical gradients, nor
// one device against the gradients in the file), and, in float32, by no more than rounding makes (0.05 of a
// tensor's norm; a gradient left out is 1).
bool mayBeRounding(const ValidationReport& report, bool is_narrow = false);

}  // namespace pipeshard
