// The strategies of a graph's nodes, found once for all nodes of equal structure. Internal to shard_stage.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sharding/rules/factor_rule.h"
#include "sharding/specs/spec_table.h"
#include "sharding/spmd/strategy.h"
#include "sharding/spmd/strategy_cost.h"
#include "sharding/stage/repeats.h"

namespace pipeshard {

// The strategies of a node and of all that are structurally equal to it. Of strategies that need and give the
// same, the cheapest one.
struct NodeChoices {
  std::optional<FactorRule> rule;
  std::vector<Strategy> strategies;
  std::vector<StrategyCost> costs;
  std::vector<SpecTable*> input_tables;  // by position; nullptr: absent
  std::vector<SpecTable*> output_tables;
  std::vector<std::vector<int>> inputs;  // by position, by strategy: the spec's number in its table
  std::vector<std::vector<int>> outputs;
};

class ChoiceCache {
 public:
  ChoiceCache(const Graph& graph, const LogicalMesh& mesh, const CostModel& model);
  const NodeChoices& of(NodeId node);
  SpecTable& specsOf(ValueId value) { return catalog_.of(graph_.shape(value), graph_.dataType(value)); }

 private:
  std::unique_ptr<NodeChoices> make(const Node& node);

  const Graph& graph_;
  LogicalMesh mesh_;
  CostModel model_;
  SpecCatalog catalog_;
  std::map<std::string, std::unique_ptr<NodeChoices>> by_key_;
  std::vector<const NodeChoices*> by_node_;
};

}  // namespace pipeshard
