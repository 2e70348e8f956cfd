#include "sharding/spec_table.h"

#include "sharding/resharding.h"

namespace pipeshard {

SpecTable::SpecTable(Shape shape, DataType type, const LogicalMesh& mesh, const CostModel& model)
    : shape_(std::move(shape)), type_(type), mesh_(mesh), model_(model) {
  number(replicated(shape_.size()));
}

int SpecTable::number(const ShardingSpec& spec) {
  const auto [place, is_new] = numbers_.try_emplace(spec, static_cast<int>(specs_.size()));
  if (is_new) specs_.push_back(spec);
  return place->second;
}

int SpecTable::find(const ShardingSpec& spec) const {
  const auto found = numbers_.find(spec);
  return found == numbers_.end() ? -1 : found->second;
}

int64_t SpecTable::bytes(int number) const { return largestShard(spec(number), shape_, mesh_) * static_cast<int64_t>(dataTypeSize(type_)); }

int64_t SpecTable::cost(int from, int to) {
  if (priced_ < specs_.size()) {
    costs_ = reshardingCosts(shape_, type_, specs_, specs_, mesh_, model_);
    priced_ = specs_.size();
  }
  return costs_[static_cast<size_t>(from) * priced_ + static_cast<size_t>(to)];
}

SpecTable& SpecCatalog::of(const Shape& shape, DataType type) {
  std::unique_ptr<SpecTable>& space = spaces_[{type, shape}];
  if (!space) space = std::make_unique<SpecTable>(shape, type, mesh_, model_);
  return *space;
}

}  // namespace pipeshard
