// What the programs of a plan directory cost by the cost model, for simulatePrograms.
#pragma once

#include "ir/plan/plan.h"
#include "partition/simulation/program_simulation.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/rank_image.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

// Subgraphs by their FLOPs and bytes, collectives by their bytes and the group's size, copies by their bytes.
// Gradients that can be computed where they are accumulated (runtime/execute/accumulation.h) cost neither
// time nor memory of their own. `model`: groupModel.
ProgramCosts programCosts(const RankImage& rank, const CostModel& model);
// The same, where it is known which gradients are (Executor::accumulation).
ProgramCosts programCosts(const RankImage& rank, const CostModel& model, Accumulation accumulation);

// By the plan's cluster: of one rank, with a link for each group of its program.
CostModel rankModel(const Plan& plan, const Program& program);
// Of a message from one rank to another, while all devices of their stages send and receive.
LinkCost rankLink(const Plan& plan, RankId from, RankId to);

}  // namespace pipeshard
