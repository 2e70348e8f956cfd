// What the programs of a plan directory cost by the cost model, for simulatePrograms.
#pragma once

#include "partition/program_simulation.h"
#include "runtime/executor.h"
#include "sharding/cost_model.h"

namespace pipeshard {

// Subgraphs by their FLOPs and bytes, collectives by their bytes and the group's size, copies by their bytes. Gradients that can be
// computed where they are accumulated (runtime/accumulation.h) cost neither time nor memory of their own. `model` has one link.
ProgramCosts programCosts(const RankImage& rank, const CostModel& model);
// The same, where it is known which gradients are (Executor::accumulation).
ProgramCosts programCosts(const RankImage& rank, const CostModel& model, Accumulation accumulation);

}  // namespace pipeshard
