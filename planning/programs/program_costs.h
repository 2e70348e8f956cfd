// What the programs of a plan directory cost by the cost model, for simulatePrograms.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/plan.h"
#include "ir/program/program.h"
#include "ir/program/program_set.h"
#include "partition/simulation/program_simulation.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/subgraph.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

// Subgraphs by their FLOPs and bytes, collectives by their bytes and the group's size, copies by their bytes.
// Gradients that can be computed where they are accumulated (runtime/execute/accumulation.h) cost neither
// time nor memory of their own (accumulationOf says which). `model`: groupModel.
ProgramCosts programCosts(const Program& program, const std::vector<const CompiledSubgraph*>& subgraphs,
                          const CostModel& model, const Accumulation& accumulation);

// Kinds that share most of their subgraphs, together: first of all those of one stage.
std::vector<std::vector<KindId>> kindsBySubgraphs(const ProgramSet& set);

// By a plan's cluster. What ranks of a stage have in common is found once. The plan must outlive it.
class PlanCosts {
 public:
  explicit PlanCosts(const Plan& plan);

  // Of one rank, with a link for each of the groups of its program.
  CostModel model(RankId rank, const std::vector<std::vector<RankId>>& groups);
  // Of a message from one rank to another, while all devices of their stages send and receive.
  LinkCost link(RankId from, RankId to);

 private:
  // The devices of the first stage that has the rank; of none, itself.
  std::vector<RankId> devicesBeside(RankId rank) const;
  LinkCost groupLink(RankId rank, const std::vector<RankId>& group);

  const Plan& plan_;
  IdVector<RankId, StageId> stage_;  // the first that has the rank; invalid: none
  IdVector<RankId, int> node_;
  std::map<std::pair<StageId, std::vector<RankId>>, LinkCost> of_groups_;
  std::map<std::pair<StageId, StageId>, LinkCost> between_;
};

}  // namespace pipeshard
