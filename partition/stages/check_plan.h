// A plan that people may have edited, against its model.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"

namespace pipeshard {

// Every rule that the plan violates, a message each, which names the field, what was found and what was
// expected: layers that are not those of the model; a schedule that does not exist for so many stages and
// microbatches, or places stages on other devices; fewer rows than data-parallel devices; shardings that do
// not fit shapes and operators, with names that may have been meant. Empty: nothing. What planFromJson checks
// is taken for granted. Emission (emitPrograms) may still refuse it for what is rarer than that.
std::vector<std::string> planMisfits(const TrainingGraph& training, const Plan& plan);

// What follows from layers, stages and schedule, as partitionTraining fills it in: names and FLOPs of layers;
// FLOPs, bytes of parameters and microbatches in flight of stages. The plan must fit the model.
void fillNumbers(const TrainingGraph& training, Plan& plan);

// What is allowed, and seldom meant: stages whose devices are neither a part of one node nor whole nodes.
std::vector<std::string> planOddities(const Plan& plan);

}  // namespace pipeshard
