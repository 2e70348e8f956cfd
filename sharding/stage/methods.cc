#include "sharding/stage/methods.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/stage/megatron.h"

namespace pipeshard {

namespace {

int devicesOn(const LogicalMesh& mesh, const Strategy& strategy, const AxisUse& use) {
  int devices = 1;
  for (size_t axis = 0; axis < strategy.uses.size(); ++axis) {
    if (strategy.uses[axis] == use) devices *= mesh.shape[axis];
  }
  return devices;
}

bool hasFactorUse(const Strategy& strategy) {
  return std::any_of(strategy.uses.begin(), strategy.uses.end(),
                     [](const AxisUse& use) { return use.kind == AxisUse::Kind::kFactor; });
}

int devicesCutting(const LogicalMesh& mesh, const ShardingSpec& spec) {
  int devices = 1;
  for (const std::vector<int>& axes : spec.axes) {
    for (int axis : axes) devices *= mesh.axisSize(axis);
  }
  return devices;
}

// The most devices that a tensor can be cut over.
int mostDevices(const LogicalMesh& mesh, const Shape& shape) {
  int most = 1;
  for (const ShardingSpec& spec : possibleSpecs(shape, mesh, false))
    most = std::max(most, devicesCutting(mesh, spec));
  return most;
}

// The strategies of the highest rank; those of a negative one only if there are no others.
template <typename Rank>
std::vector<int> best(const NodeChoices& choices, const Rank& rank) {
  std::vector<int> result;
  int most = -1;
  for (size_t index = 0; index < choices.strategies.size(); ++index) {
    const int value = rank(choices.strategies[index]);
    if (value > most) result.clear();
    most = std::max(most, value);
    if (value == most && value >= 0) result.push_back(index);
  }
  if (result.empty()) result.push_back(0);
  return result;
}

std::vector<int> every(const NodeChoices& choices) {
  std::vector<int> all(choices.strategies.size());
  for (size_t index = 0; index < all.size(); ++index) all[index] = index;
  return all;
}

// What a stage's nodes and values are to the methods.
struct Roles {
  std::shared_ptr<const BatchDependence> batch;
  std::vector<Phase> phase;
  std::vector<bool> weight;       // by value index: held from step to step, or a copy of what is
  std::vector<bool> copies;       // by node index: it makes such a copy
  std::vector<bool> only_copied;  // by value index: a weight of which passes read copies alone
};

std::shared_ptr<const Roles> rolesOf(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                     std::shared_ptr<const BatchDependence> batch) {
  auto roles = std::make_shared<Roles>();
  roles->batch = std::move(batch);
  roles->phase = training.node_phase;
  const std::vector<StageValue> values = stageValues(training, nodes, {});
  for (const StageValue& value : values) roles->weight.push_back(value.persistent);
  for (size_t n = 0; n < training.graph.nodes.size(); ++n)
    roles->copies.push_back(isWeightCopy(training, NodeId(n)));
  roles->only_copied = onlyCopied(training);
  return roles;
}

void requireBatch(const TrainingGraph& training, const LogicalMesh& mesh, int devices,
                  std::string_view method) {
  bool any = false;
  for (const BatchInput& input : training.inputs) {
    if (input.axis < 0) continue;
    any = true;
    const int64_t rows = training.graph.shape(input.value)[input.axis];
    if (rows < devices) {
      fail(ErrorCode::kConfiguration,
           "method {}: a microbatch has {} rows ('{}', axis {}) for {} devices of mesh {}; use fewer "
           "devices, a larger batch or fewer microbatches, or another method",
           method, rows, training.graph.value(input.value).name, input.axis, devices, printMesh(mesh));
    }
  }
  if (any || devices == 1) return;
  fail(ErrorCode::kConfiguration,
       "method {}: no input of the model has a batch axis that could be cut; export the model with a dynamic "
       "batch axis, or use auto",
       method);
}

// Along the mesh axes `from`..`to` the batch is cut wherever it can be, and nothing else.
int batchRank(const LogicalMesh& mesh, const Strategy& strategy, int factor) {
  const int devices = factor < 0 ? 1 : devicesOn(mesh, strategy, {AxisUse::Kind::kFactor, factor});
  const bool other = std::any_of(strategy.uses.begin(), strategy.uses.end(), [factor](const AxisUse& use) {
    return use.kind == AxisUse::Kind::kFactor && use.index != factor;
  });
  return other ? -1 : devices;
}

ProblemLimits dataParallelLimits(ShardingKind kind, const TrainingGraph& training,
                                 const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                                 std::shared_ptr<const BatchDependence> batch) {
  requireBatch(training, mesh, mesh.deviceCount(), shardingMethodToString({kind}));
  const std::shared_ptr<const Roles> roles = rolesOf(training, nodes, std::move(batch));
  std::vector<bool> is_state(training.graph.values.size(), false);
  for (const Parameter& parameter : training.parameters) {
    for (const OptimizerState& state : parameter.states) is_state[state.value.index()] = true;
  }
  ProblemLimits limits;
  limits.strategies = [roles, kind, mesh](NodeId node, const NodeChoices& choices) {
    const Phase phase = roles->phase[node.index()];
    if (phase == Phase::kPrologue) return every(choices);
    if (phase != Phase::kUpdate && !roles->copies[node.index()]) {
      const int factor = roles->batch->factor_of_node[node.index()];
      return best(choices, [&](const Strategy& strategy) { return batchRank(mesh, strategy, factor); });
    }
    return best(choices, [&](const Strategy& strategy) {
      if (kind == ShardingKind::kDataParallel) return hasFactorUse(strategy) ? -1 : 0;
      return strategy.outputs.empty() ? 0 : devicesCutting(mesh, strategy.outputs.front());
    });
  };
  limits.kept = [roles, kind, mesh, is_state, &training](ValueId value, const ShardingSpec& spec) {
    if (!roles->weight[value.index()]) return true;
    if (kind == ShardingKind::kDataParallel) return spec.isReplicated();
    // What the update alone reads besides: passes read a gathered copy of half the bytes.
    const bool is_master = kind == ShardingKind::kZero2 && roles->only_copied[value.index()];
    if (is_state[value.index()] || is_master)
      return devicesCutting(mesh, spec) == mostDevices(mesh, training.graph.shape(value)) ||
             spec.isReplicated();
    if (kind == ShardingKind::kZero2) return spec.isReplicated();
    return devicesCutting(mesh, spec) == mostDevices(mesh, training.graph.shape(value));
  };
  return limits;
}

ProblemLimits tensorParallelLimits(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                   std::shared_ptr<const BatchDependence> batch) {
  const std::shared_ptr<const Roles> roles = rolesOf(training, nodes, std::move(batch));
  ProblemLimits limits;
  limits.strategies = [roles](NodeId node, const NodeChoices& choices) {
    const AxisUse cut{AxisUse::Kind::kFactor, roles->batch->factor_of_node[node.index()]};
    std::vector<int> result;
    for (int index : every(choices)) {
      const std::vector<AxisUse>& uses = choices.strategies[index].uses;
      if (cut.index < 0 || std::find(uses.begin(), uses.end(), cut) == uses.end()) result.push_back(index);
    }
    return result;
  };
  limits.kept = [roles](ValueId value, const ShardingSpec& spec) {
    const int axis = roles->batch->axis_of_value[value.index()];
    return axis < 0 || spec.axes[axis].empty();
  };
  return limits;
}

}  // namespace

ProblemLimits methodLimits(const ShardingMethod& method, const TrainingGraph& training,
                           const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                           std::shared_ptr<const BatchDependence> batch) {
  if (method.batchAxes() != BatchAxes::kFree && batch == nullptr)
    batch = std::make_shared<const BatchDependence>(followBatch(training));
  switch (method.kind) {
    case ShardingKind::kDataParallel:
    case ShardingKind::kZero2:
    case ShardingKind::kZero3:
      return dataParallelLimits(method.kind, training, nodes, mesh, std::move(batch));
    case ShardingKind::kTensorParallel: return tensorParallelLimits(training, nodes, std::move(batch));
    case ShardingKind::kMegatron:
    case ShardingKind::kMegatronZero2:
      if (mesh != LogicalMesh{{method.data, method.tensor}}) {
        fail(ErrorCode::kConfiguration, "method {} needs mesh {}x{}, not {}", shardingMethodToString(method),
             method.data, method.tensor, printMesh(mesh));
      }
      requireBatch(training, mesh, method.data, shardingMethodToString({method.kind}));
      return megatronLimits(training, nodes, std::move(batch), method.kind == ShardingKind::kMegatronZero2);
    case ShardingKind::kAuto:
    case ShardingKind::kManual:
    case ShardingKind::kExhaustive: break;
  }
  ProblemLimits limits;
  limits.strategies = [](NodeId, const NodeChoices& choices) { return every(choices); };
  limits.kept = [](ValueId, const ShardingSpec&) { return true; };
  return limits;
}

}  // namespace pipeshard
