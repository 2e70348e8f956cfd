// The choice of shardings of a stage as a network of costs: a variable per node (its strategies) and per kept
// value (its specs), and tables over pairs of them. Structurally equal nodes share strategies, and equal
// tables are one object. Internal to shard_stage.
//
// A value that one node makes and one other node reads once has no variable: any spec on the way between the
// two will do, and the one with the smaller shards of the two ends is taken.
//
// Costs are nanoseconds per step times `scale()`, plus a small share that settles ties: less communication,
// then less replication.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sharding/stage/choice_cache.h"
#include "sharding/stage/cost_network.h"
#include "sharding/stage/shard_stage.h"
#include "sharding/stage/stage_values.h"

namespace pipeshard {

// What a method or a person allows.
struct ProblemLimits {
  // Which strategies of a node may be used, by index into NodeChoices::strategies; at least one.
  std::function<std::vector<int>(NodeId, const NodeChoices&)> strategies;
  // Whether a value may be kept so; asked for the first value of a group.
  std::function<bool(ValueId, const ShardingSpec&)> kept;
  // Values (first ones of groups) that are kept in the one spec given.
  std::map<ValueId, ShardingSpec> given;
  // Values that are kept in one of the specs listed, whether somebody asks for them or not.
  std::map<ValueId, std::vector<ShardingSpec>> among = {};
  // Every value that somebody reads gets a variable, so that each has a memory usage of its own.
  bool keep_all = false;
  // Every spec that a value can have, not only those that producers give and consumers want: to see that
  // these are enough.
  bool all_specs = false;
};

struct ShardingVariable {
  NodeId node;  // of a node variable, else invalid
  const NodeChoices* choices = nullptr;
  ValueId value;  // of a value variable: the group's first value
  SpecTable* specs = nullptr;
  std::vector<int> options;  // indices of strategies, or numbers of specs
};

class ShardingProblem {
 public:
  ShardingProblem(const TrainingGraph& training, const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                  const CostModel& model, const ShardStageOptions& options, const ProblemLimits& limits);

  const std::vector<ShardingVariable>& variables() const { return variables_; }
  const CostNetwork& network() const { return network_; }  // its variable i is variables()[i]
  int64_t scale() const { return scale_; }
  const std::vector<StageValue>& values() const { return values_; }
  int variableOf(NodeId node) const { return node_variable_[node.index()]; }
  // -1: none.
  int variableOf(ValueId value) const { return value_variable_[values_[value.index()].shares.index()]; }

  // The sharding that a choice of options (by variable) is.
  StageSharding sharding(const std::vector<int>& choice) const;

 private:
  // What the cost of a pair of variables consists of: reshardings from a spec of the first to a spec of the
  // second.
  struct Relation;

  void addNodeVariables();
  void addValueVariables();
  bool needsVariable(ValueId first, const std::vector<ValueId>& members) const;
  void addValueVariable(ValueId first, const std::vector<ValueId>& members);
  void addSpecs(ValueId member, std::vector<int>& specs) const;
  void addGradientSpecs(ValueId part, std::vector<int>& specs) const;
  void chooseScale();
  void addRelations();
  void relateValue(ValueId id, std::vector<Relation>& relations) const;
  void addTable(const std::vector<Relation>& relations, size_t begin, size_t end);
  void addUnaryTables();
  int domainOf(const ShardingVariable& variable);
  int64_t runs(NodeId node) const { return runsPerStep(training_, node, options_.microbatches); }
  const ShardingSpec& outputSpec(ValueId value, const std::vector<int>& choice) const;
  ShardingSpec keptAlone(ValueId value, const std::vector<int>& choice) const;

  const TrainingGraph& training_;
  const std::vector<NodeId>& nodes_;
  LogicalMesh mesh_;
  const ShardStageOptions& options_;
  const ProblemLimits& limits_;
  std::vector<StageValue> values_;
  std::map<ValueId, ValueId> gradient_of_;  // of the first part
  std::unique_ptr<ChoiceCache> cache_;
  std::vector<ShardingVariable> variables_;
  std::vector<int> node_variable_;
  std::vector<int> value_variable_;  // by the group's first value
  std::map<std::vector<int64_t>, int> domains_;
  std::map<std::vector<int64_t>, TableId> tables_;
  int64_t scale_ = 1;
  CostNetwork network_;
};

}  // namespace pipeshard
