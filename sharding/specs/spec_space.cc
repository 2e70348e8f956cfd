#include "sharding/specs/spec_space.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kMostSpecs = 50'000;

// Mesh axis k has one of r + 2 + k places when the k before it are placed anywhere.
size_t specCount(size_t tensor_rank, int mesh_rank) {
  size_t count = 1;
  for (int k = 0; k < mesh_rank && count <= kMostSpecs; ++k) count *= tensor_rank + 2 + k;
  return count;
}

}  // namespace

std::shared_ptr<const SpecSpace> SpecSpace::of(size_t tensor_rank, int mesh_rank) {
  static std::mutex mutex;
  static std::map<std::pair<size_t, int>, std::shared_ptr<const SpecSpace>> spaces;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const SpecSpace>& space = spaces[{tensor_rank, mesh_rank}];
  if (space == nullptr) space = std::make_shared<const SpecSpace>(tensor_rank, mesh_rank);
  return space;
}

SpecSpace::SpecSpace(size_t tensor_rank, int mesh_rank) : tensor_rank_(tensor_rank), mesh_rank_(mesh_rank) {
  if (specCount(tensor_rank, mesh_rank) > kMostSpecs) {
    fail(ErrorCode::kConfiguration,
         "a tensor of {} axes has more than {} sharding specs on a logical mesh of {} axes, too many to "
         "search; use a mesh of fewer axes",
         tensor_rank, kMostSpecs, mesh_rank);
  }
  ShardingSpec spec = replicated(tensor_rank);
  enumerate(spec, 0);
  into_.resize(specs_.size());
  for (size_t from = 0; from < specs_.size(); ++from) {
    first_out_.push_back(edges_.size());
    addEdges(from);
  }
  first_out_.push_back(edges_.size());
}

void SpecSpace::enumerate(ShardingSpec& spec, int mesh_axis) {
  if (mesh_axis == mesh_rank_) {
    index_[keyOf(spec)] = specs_.size();
    specs_.push_back(spec);
    return;
  }
  enumerate(spec, mesh_axis + 1);
  spec.partial.push_back(mesh_axis);
  enumerate(spec, mesh_axis + 1);
  spec.partial.pop_back();
  for (int axis = 0; axis < tensor_rank_; ++axis) {
    for (size_t place = 0; place <= spec.axes[axis].size(); ++place) {
      spec.axes[axis].insert(spec.axes[axis].begin() + place, mesh_axis);
      enumerate(spec, mesh_axis + 1);
      spec.axes[axis].erase(spec.axes[axis].begin() + place);
    }
  }
}

// By mesh axis a digit: not used, partial, or the place in the list of a tensor axis.
uint64_t SpecSpace::keyOf(const ShardingSpec& spec) const {
  constexpr int kMostAxes = 16;
  uint64_t digits[kMostAxes] = {};
  PIPESHARD_CHECK(mesh_rank_ <= kMostAxes, "a mesh of {} axes", mesh_rank_);
  for (int mesh_axis : spec.partial) digits[mesh_axis] = 1;
  for (size_t axis = 0; axis < spec.axes.size(); ++axis) {
    for (size_t place = 0; place < spec.axes[axis].size(); ++place) {
      digits[spec.axes[axis][place]] = 2 + axis * mesh_rank_ + place;
    }
  }
  uint64_t key = 0;
  for (int mesh_axis = 0; mesh_axis < mesh_rank_; ++mesh_axis) {
    key = key * (2 + tensor_rank_ * mesh_rank_) + digits[mesh_axis];
  }
  return key;
}

int SpecSpace::find(const ShardingSpec& spec) const { return index_.at(keyOf(spec)); }

void SpecSpace::addEdge(Edge edge, const ShardingSpec& after) {
  edge.to = find(after);
  into_[edge.to].push_back(edges_.size());
  edges_.push_back(edge);
}

void SpecSpace::addEdges(int from) {
  using Kind = ReshardingStep::Kind;
  const ShardingSpec spec = specs_[from];
  const auto without = [&](int mesh_axis) {
    ShardingSpec rest = spec;
    std::erase(rest.partial, mesh_axis);
    for (std::vector<int>& axis : rest.axes) std::erase(axis, mesh_axis);
    return rest;
  };
  const auto cutAlong = [&](Kind kind, int mesh_axis, int from_axis) {
    for (int to_axis = 0; to_axis < tensor_rank_; ++to_axis) {
      if (to_axis == from_axis) continue;
      ShardingSpec after = without(mesh_axis);
      after.axes[to_axis].push_back(mesh_axis);
      addEdge({from, 0, kind, mesh_axis, from_axis, to_axis}, after);
    }
  };
  const auto forInnermost = [&](auto&& body) {
    for (int mesh_axis = 0; mesh_axis < mesh_rank_; ++mesh_axis) {
      for (int axis = 0; axis < tensor_rank_; ++axis) {
        const std::vector<int>& cuts = spec.axes[axis];
        if (!cuts.empty() && cuts.back() == mesh_axis) body(mesh_axis, axis);
      }
    }
  };
  for (int mesh_axis = 0; mesh_axis < mesh_rank_; ++mesh_axis) {
    if (!spec.uses(mesh_axis)) cutAlong(Kind::kSlice, mesh_axis, -1);
  }
  for (int mesh_axis = 0; mesh_axis < mesh_rank_; ++mesh_axis) {
    if (spec.uses(mesh_axis)) continue;
    ShardingSpec after = spec;
    after.partial.insert(std::lower_bound(after.partial.begin(), after.partial.end(), mesh_axis), mesh_axis);
    addEdge({from, 0, Kind::kKeepOne, mesh_axis, -1, -1}, after);
  }
  forInnermost([&](int mesh_axis, int axis) {
    addEdge({from, 0, Kind::kAllGather, mesh_axis, axis, -1}, without(mesh_axis));
  });
  for (int mesh_axis : spec.partial)
    addEdge({from, 0, Kind::kAllReduce, mesh_axis, -1, -1}, without(mesh_axis));
  for (int mesh_axis : spec.partial) cutAlong(Kind::kReduceScatter, mesh_axis, -1);
  forInnermost([&](int mesh_axis, int axis) { cutAlong(Kind::kAllToAll, mesh_axis, axis); });
}

}  // namespace pipeshard
