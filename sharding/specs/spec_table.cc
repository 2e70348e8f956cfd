#include "sharding/specs/spec_table.h"

#include <functional>

#include "sharding/specs/resharding.h"

namespace pipeshard {

std::vector<ShardingSpec> possibleSpecs(const Shape& shape, const LogicalMesh& mesh, bool partial) {
  std::vector<ShardingSpec> result;
  ShardingSpec spec = replicated(shape.size());
  const std::function<void(int)> place = [&](int mesh_axis) {
    if (mesh_axis == mesh.rank()) {
      if (specFault(spec, shape, mesh).empty()) result.push_back(spec);
      return;
    }
    place(mesh_axis + 1);
    if (partial) {
      spec.partial.push_back(mesh_axis);
      place(mesh_axis + 1);
      spec.partial.pop_back();
    }
    for (std::vector<int>& axes : spec.axes) {
      for (size_t before = 0; before <= axes.size(); ++before) {
        axes.insert(axes.begin() + before, mesh_axis);
        place(mesh_axis + 1);
        axes.erase(axes.begin() + before);
      }
    }
  };
  place(0);
  return result;
}

SpecTable::SpecTable(Shape shape, DataType type, const LogicalMesh& mesh, const CostModel& model)
    : shape_(std::move(shape)), type_(type), mesh_(mesh), model_(model) {
  number(replicated(shape_.size()));
}

int SpecTable::number(const ShardingSpec& spec) {
  const auto [place, is_new] = numbers_.try_emplace(spec, specs_.size());
  if (is_new) specs_.push_back(spec);
  return place->second;
}

int SpecTable::find(const ShardingSpec& spec) const {
  const auto found = numbers_.find(spec);
  return found == numbers_.end() ? -1 : found->second;
}

int64_t SpecTable::bytes(int number) const {
  return largestShard(spec(number), shape_, mesh_) * dataTypeSize(type_);
}

int64_t SpecTable::cost(int from, int to) {
  if (priced_ < specs_.size()) {
    costs_ = reshardingCosts(shape_, type_, specs_, specs_, mesh_, model_);
    priced_ = specs_.size();
  }
  return costs_[from * priced_ + to];
}

SpecTable& SpecCatalog::of(const Shape& shape, DataType type) {
  std::unique_ptr<SpecTable>& space = spaces_[{type, shape}];
  if (!space) space = std::make_unique<SpecTable>(shape, type, mesh_, model_);
  return *space;
}

}  // namespace pipeshard
