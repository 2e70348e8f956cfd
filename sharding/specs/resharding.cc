#include "sharding/specs/resharding.h"

#include <functional>
#include <limits>
#include <queue>

#include "ir/base/error.h"
#include "sharding/specs/spec_space.h"

namespace pipeshard {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The specs and steps of one tensor: what each step costs.
class TensorSpecs {
 public:
  TensorSpecs(const Shape& shape, DataType type, const LogicalMesh& mesh, const CostModel& model)
      : shape_(shape), mesh_(mesh), space_(SpecSpace::of(shape.size(), mesh.rank())) {
    const int64_t element = byteCount(type, {});
    bytes_.reserve(space_->specs().size());
    for (const ShardingSpec& spec : space_->specs())
      bytes_.push_back(isPossible(spec) ? largestShard(spec, shape, mesh) * element : -1);
    cost_.reserve(space_->edges().size());
    for (const SpecSpace::Edge& edge : space_->edges()) cost_.push_back(costOf(edge, model));
  }

  const SpecSpace& space() const { return *space_; }
  int64_t cost(int edge) const { return cost_[edge]; }  // kNever: not for this tensor

  int indexOf(const ShardingSpec& spec) const {
    const std::string fault = specFault(spec, shape_, mesh_);
    PIPESHARD_CHECK(fault.empty(), "spec {} of a tensor {} on mesh {}: {}", printSpec(spec),
                    shapeToString(shape_), printMesh(mesh_), fault);
    return space_->find(spec);
  }

 private:
  // As specFault says of a well-formed spec.
  bool isPossible(const ShardingSpec& spec) const {
    for (size_t axis = 0; axis < shape_.size(); ++axis) {
      int64_t parts = 1;
      for (int mesh_axis : spec.axes[axis]) parts *= mesh_.axisSize(mesh_axis);
      if (parts > 1 && shape_[axis] / mesh_.unit(shape_[axis]) < parts) return false;
    }
    return true;
  }

  int64_t costOf(const SpecSpace::Edge& edge, const CostModel& model) const {
    const int64_t before = bytes_[edge.from];
    const int64_t after = bytes_[edge.to];
    if (before < 0 || after < 0) return kNever;
    const auto collective = [&](CollectiveKind kind) {
      return collectiveCost(model, mesh_, kind, edge.mesh_axis, collectiveBytes(kind, before, after));
    };
    switch (edge.kind) {
      case ReshardingStep::Kind::kSlice:
      case ReshardingStep::Kind::kKeepOne: return 0;
      case ReshardingStep::Kind::kAllGather: return collective(CollectiveKind::kAllGather);
      case ReshardingStep::Kind::kAllReduce: return collective(CollectiveKind::kAllReduce);
      case ReshardingStep::Kind::kReduceScatter: return collective(CollectiveKind::kReduceScatter);
      case ReshardingStep::Kind::kAllToAll: return collective(CollectiveKind::kAllToAll);
    }
    PIPESHARD_CHECK(false, "step {}", static_cast<int>(edge.kind));
  }

  const Shape& shape_;
  const LogicalMesh& mesh_;
  std::shared_ptr<const SpecSpace> space_;
  std::vector<int64_t> bytes_;  // by spec; -1: the tensor cannot have it
  std::vector<int64_t> cost_;   // by edge
};

struct Distance {
  int64_t cost_ns = kNever;
  int steps = 0;
  friend auto operator<=>(const Distance&, const Distance&) = default;
};

// From every spec to `target`, or from `target` to every spec.
std::vector<Distance> distances(const TensorSpecs& tensor, int target, bool towards) {
  const SpecSpace& space = tensor.space();
  std::vector<Distance> best(space.specs().size());
  using Entry = std::pair<Distance, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto reach = [&](const Distance& at, int edge, int other) {
    const int64_t cost = tensor.cost(edge);
    if (cost == kNever) return;
    const Distance next{at.cost_ns + cost, at.steps + 1};
    if (next >= best[other]) return;
    best[other] = next;
    queue.emplace(next, other);
  };
  best[target] = {0, 0};
  queue.emplace(Distance{0, 0}, target);
  while (!queue.empty()) {
    const auto [at, spec] = queue.top();
    queue.pop();
    if (at != best[spec]) continue;
    if (towards) {
      for (int edge : space.edgesInto(spec)) reach(at, edge, space.edges()[edge].from);
    } else {
      const auto [first, last] = space.edgesFrom(spec);
      for (int edge = first; edge < last; ++edge) reach(at, edge, space.edges()[edge].to);
    }
  }
  return best;
}

}  // namespace

Resharding planResharding(const Shape& shape, DataType type, const ShardingSpec& from, const ShardingSpec& to,
                          const LogicalMesh& mesh, const CostModel& model) {
  if (from == to) return {};
  const TensorSpecs tensor(shape, type, mesh, model);
  const int target = tensor.indexOf(to);
  const std::vector<Distance> rest = distances(tensor, target, true);
  int at = tensor.indexOf(from);
  Resharding resharding;
  resharding.cost_ns = rest[at].cost_ns;
  while (at != target) {
    const Distance here = rest[at];
    auto [edge, last] = tensor.space().edgesFrom(at);
    const auto isNext = [&](int candidate) {
      const Distance& there = rest[tensor.space().edges()[candidate].to];
      return tensor.cost(candidate) != kNever &&
             there == Distance{here.cost_ns - tensor.cost(candidate), here.steps - 1};
    };
    while (edge < last && !isNext(edge)) ++edge;
    PIPESHARD_CHECK(edge < last, "no step from {} to {}", printSpec(tensor.space().specs()[at]),
                    printSpec(to));
    const SpecSpace::Edge& step = tensor.space().edges()[edge];
    at = step.to;
    resharding.steps.push_back({step.kind, step.mesh_axis, step.from_axis, step.to_axis,
                                tensor.space().specs()[at], tensor.cost(edge)});
  }
  return resharding;
}

std::vector<int64_t> reshardingCosts(const Shape& shape, DataType type, const std::vector<ShardingSpec>& from,
                                     const std::vector<ShardingSpec>& to, const LogicalMesh& mesh,
                                     const CostModel& model) {
  const TensorSpecs tensor(shape, type, mesh, model);
  const bool towards = to.size() < from.size();
  const std::vector<ShardingSpec>& few = towards ? to : from;
  const std::vector<ShardingSpec>& many = towards ? from : to;
  std::vector<size_t> many_index;
  for (const ShardingSpec& spec : many) many_index.push_back(tensor.indexOf(spec));
  std::vector<int64_t> costs(from.size() * to.size());
  for (size_t f = 0; f < few.size(); ++f) {
    const std::vector<Distance> found = distances(tensor, tensor.indexOf(few[f]), towards);
    for (size_t m = 0; m < many.size(); ++m)
      costs[towards ? m * to.size() + f : f * to.size() + m] = found[many_index[m]].cost_ns;
  }
  return costs;
}

}  // namespace pipeshard
