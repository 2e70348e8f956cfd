// The programs of `run --eval`: forward passes of a plan that trains, for a loss of held-out data.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/emit/rank_program.h"
#include "planning/model/forward_model.h"
#include "planning/model/training_step.h"
#include "runtime/data/data.h"

namespace pipeshard {

using HeldOutRows = std::function<int64_t(const Program&, const ShorterInputs&)>;

struct EvaluationPrograms {
  EmittedPrograms whole;
  std::optional<EmittedPrograms> last;  // of the rows that do not fill a batch
  // Of shorter sequences (Plan::shorter_lengths), as many rows as `whole`.
  std::vector<EmittedPrograms> shorter;
  int64_t batch = 1;       // rows of `whole`
  int64_t last_batch = 0;  // rows of `last`
  int64_t left_out = 0;    // rows that no number of microbatches of this plan can take
  // The name of the total that the loss of a batch is divided by, such as the count of its labels: a measure
  // of the programs. "": its rows are what the losses of batches are weighted by.
  std::string divisor;
  bool adds = false;  // the losses of batches are to be added up: the loss is a sum over rows
  // The weighted mean of batches (or their sum) is the loss of all their rows: no other totals, and no other
  // terms. Rows that are left out (`left_out`) are not asked for here.
  bool exact = true;
  int drawn = 0;  // inputs that the model draws at random in evaluation, too
};

// The model in evaluation mode (onnx_import/exporter/evaluation_mode.h), on the stages, devices and shardings
// of a plan that trains, the forward passes in its schedule's order. Every tensor that lasts is one that the
// plan's own programs keep on the same rank. `rows_of`: of the held-out data; it is given a program whose
// inputs say what they hold, and what these are in shorter sequences. `training`: the plan's training graph.
// Errors: kConfiguration, kBadModel: what this plan cannot evaluate, by name.
EvaluationPrograms emitEvaluationPrograms(const ForwardModel& model, const TrainingGraph& training,
                                          const BatchCut& batch, const Plan& plan,
                                          const HeldOutRows& rows_of);

}  // namespace pipeshard
