// Numbers for sharding specs while a stage is planned: for tensors of one shape and type, the specs that have
// come up so far, and what it costs to go from one to another. Internal to shard_stage.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/sharding_spec.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

// Every spec that a tensor of this shape can have, replicated first.
std::vector<ShardingSpec> possibleSpecs(const Shape& shape, const LogicalMesh& mesh, bool partial);

class SpecTable {
 public:
  SpecTable(Shape shape, DataType type, const LogicalMesh& mesh, const CostModel& model);

  // The number of a spec: new ones are added.
  int number(const ShardingSpec& spec);
  // -1: never met.
  int find(const ShardingSpec& spec) const;
  int count() const { return specs_.size(); }
  const ShardingSpec& spec(int number) const { return specs_[number]; }
  int replicatedSpec() const { return 0; }

  // Bytes on the device with the largest shard.
  int64_t bytes(int number) const;
  // planResharding's cost. The first call after a new number was given computes all pairs.
  int64_t cost(int from, int to);

 private:
  Shape shape_;
  DataType type_;
  LogicalMesh mesh_;
  CostModel model_;
  std::vector<ShardingSpec> specs_;
  std::map<ShardingSpec, int> numbers_;
  std::vector<int64_t> costs_;  // row-major, of the first `priced_` specs
  size_t priced_ = 0;
};

// One space per shape and type.
class SpecCatalog {
 public:
  SpecCatalog(const LogicalMesh& mesh, const CostModel& model) : mesh_(mesh), model_(model) {}
  SpecTable& of(const Shape& shape, DataType type);

 private:
  LogicalMesh mesh_;
  CostModel model_;
  std::map<std::pair<DataType, Shape>, std::unique_ptr<SpecTable>> spaces_;
};

}  // namespace pipeshard
