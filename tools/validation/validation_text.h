// What `validate` prints and writes of its result.
#pragma once

#include <string>

#include "ir/plan/plan.h"
#include "runtime/validation/validate.h"

namespace pipeshard {

// Losses of every step, for each kind the worst tensor, and the tensors that are beyond their bounds.
std::string validationTables(const ValidationReport& report);

// Error(kNotANumber) where no more can be said than that there are no numbers to compare
// (ValidationReport::firstNotANumber): neither "equals" nor "differs".
void refuseNotANumber(const ValidationReport& report);

// What there is to be said of it, and in the last line "PASS: gpt2.onnx on 4 workers equals one device".
// `otherwise`: why a result beyond float32's bounds was not looked at in float64; "": it was, or there was no
// need.
std::string validationVerdict(const Plan& plan, const ValidationReport& report, const std::string& otherwise);

// For --json.
std::string validationJson(const ValidationReport& report);

}  // namespace pipeshard
