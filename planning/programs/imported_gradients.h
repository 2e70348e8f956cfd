// The gradients of a model that was exported with its backward pass
// (onnx_import/autodiff/imported_backward.h), as a program: what `validate` compares ours with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/emit/rank_program.h"
#include "planning/model/forward_model.h"

namespace pipeshard {

// Computes the gradients of a whole batch on one device, from the operators of the file. `reference` is the
// single-device program of our own training step, which reads the same batch. Where they cannot be computed
// or compared: nothing, and a note that says why.
std::optional<RankProgram> importedGradients(const ForwardModel& model, const TrainingGraph& training,
                                             const Program& reference, std::vector<std::string>& notes);

}  // namespace pipeshard
