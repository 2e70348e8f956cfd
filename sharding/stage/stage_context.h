// A stage with the limits on its shardings, and the best sharding within them: what shardStage,
// explainSharding, exhaustiveSharding and priced stages share. Internal to sharding.
#pragma once

#include <string>
#include <vector>

#include "sharding/stage/shard_stage.h"
#include "sharding/stage/sharding_problem.h"
#include "sharding/stage/stage_memory.h"
#include "sharding/stage/stage_price.h"
#include "sharding/stage/stage_solver.h"

namespace pipeshard {

// A stage with the method's limits on it.
struct StageContext {
  StageContext(const TrainingGraph& training, const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
               const CostModel& model, const ShardStageOptions& options);

  // The best sharding without the forbidden options. Errors: kOutOfMemory, kConfiguration.
  ShardingResult solve(const ShardingProblem& problem, const std::vector<ForbiddenOption>& forbidden) const;
  ShardingResult result(const ShardingProblem& problem, const StageSolution& solution) const;
  StageMemory memory() const;

  const TrainingGraph& training;
  const std::vector<NodeId>& nodes;
  const LogicalMesh& mesh;
  const CostModel& model;
  const ShardStageOptions& options;
  std::vector<StageValue> values;
  ProblemLimits limits;

 private:
  ShardingResult solveWithin(const ShardingProblem& problem, const std::vector<ForbiddenOption>& forbidden,
                             int64_t lower_bound) const;
  std::string memoryAdvice() const;
  [[noreturn]] void failMemory(const ShardingProblem& problem, const SolverInfeasibility& reason) const;
  [[noreturn]] void failForbidden() const;
};

}  // namespace pipeshard
