#include "sharding/specs/resharding_emit.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {
namespace {

using Kind = ReshardingStep::Kind;

// Emits the steps of one tensor on one device.
class Emitter {
 public:
  Emitter(GraphBuilder& builder, const Shape& shape, const LogicalMesh& mesh, DeviceId device,
          const MeshGroups& groups, std::vector<DeviceConstant>* own)
      : builder_(builder), shape_(shape), mesh_(mesh), device_(device), groups_(groups), own_(own) {}

  ValueId emit(ValueId local, const ShardingSpec& before, const ReshardingStep& step) {
    if (mesh_.axisSize(step.mesh_axis) == 1) return local;
    switch (step.kind) {
      case Kind::kSlice: return slice(local, before, step);
      case Kind::kKeepOne: return keepOne(local, step);
      case Kind::kAllReduce:
        return collective(CollectiveKind::kAllReduce, local, step, {{"reduction", std::string("sum")}});
      case Kind::kAllGather:
        return collective(
            CollectiveKind::kAllGather, local, step,
            {{"axis", int64_t{step.from_axis}}, {"sizes", partSizes(before, step, step.from_axis)}});
      case Kind::kReduceScatter:
        return collective(CollectiveKind::kReduceScatter, local, step,
                          {{"axis", int64_t{step.to_axis}},
                           {"sizes", partSizes(step.after, step, step.to_axis)},
                           {"reduction", std::string("sum")}});
      case Kind::kAllToAll:
        return collective(CollectiveKind::kAllToAll, local, step,
                          {{"axis", int64_t{step.from_axis}},
                           {"sizes", partSizes(before, step, step.from_axis)},
                           {"to_axis", int64_t{step.to_axis}},
                           {"to_sizes", partSizes(step.after, step, step.to_axis)}});
    }
    PIPESHARD_CHECK(false, "step {}", static_cast<int>(step.kind));
  }

 private:
  // Of the devices along the step's mesh axis.
  std::vector<int64_t> partSizes(const ShardingSpec& spec, const ReshardingStep& step,
                                 int tensor_axis) const {
    std::vector<int64_t> sizes;
    for (const DeviceId member : mesh_.lineOf(device_, step.mesh_axis)) {
      sizes.push_back(shardOf(spec, shape_, mesh_, member).size[tensor_axis]);
    }
    return sizes;
  }

  ValueId result(ValueId local, std::string_view suffix, const ShardingSpec& spec) {
    const std::string name = builder_.graph().value(local).name + std::string(suffix);
    return builder_.addValue(name, builder_.graph().dataType(local),
                             shardOf(spec, shape_, mesh_, device_).size);
  }

  // A constant that follows from the device's place.
  ValueId own(std::string_view name, std::string key, std::function<Constant(DeviceId)> of) {
    const ValueId value = builder_.addConstant(name, of(device_));
    if (own_ != nullptr) own_->push_back({value, std::move(key), std::move(of)});
    return value;
  }

  ValueId slice(ValueId local, const ShardingSpec& before, const ReshardingStep& step) {
    const ValueId part = result(local, "_part", step.after);
    const auto bound = [&](const char* name, bool end) {
      const auto of = [axis = step.to_axis, end, before, after = step.after, shape = shape_,
                       mesh = mesh_](DeviceId device) {
        const Shard to = shardOf(after, shape, mesh, device);
        const int64_t start = to.start[axis] - shardOf(before, shape, mesh, device).start[axis];
        return makeConstant<int64_t>({1}, {end ? start + to.size[axis] : start});
      };
      return own(name,
                 fmt::format("{} of {} in {} of {}", name, printSpec(step.after), printSpec(before),
                             shapeToString(shape_)),
                 of);
    };
    const ValueId start = bound("start", false), end = bound("end", true);
    const ValueId axis = builder_.addConstant("axis", makeConstant<int64_t>({1}, {step.to_axis}));
    builder_.addNode("", "Slice", {local, start, end, axis}, {part});
    return part;
  }

  ValueId keepOne(ValueId local, const ReshardingStep& step) {
    const DataType type = builder_.graph().dataType(local);
    const auto keeps = [mesh = mesh_, axis = step.mesh_axis](DeviceId device) {
      return Constant{DataType::kBool, {}, {std::byte{mesh.coordinate(device, axis) == 0}}};
    };
    const ValueId condition = own("keeps", fmt::format("first along mesh axis {}", step.mesh_axis), keeps);
    const ValueId zero = builder_.addConstant("zero", {type, {}, std::vector<std::byte>(dataTypeSize(type))});
    const ValueId summand = result(local, "_summand", step.after);
    builder_.addNode("", "Where", {condition, local, zero}, {summand});
    return summand;
  }

  ValueId collective(CollectiveKind kind, ValueId local, const ReshardingStep& step,
                     std::map<std::string, Attribute> attributes) {
    const GroupId group = groups_.group_of_axis.at(step.mesh_axis);
    PIPESHARD_CHECK(group.valid(), "no group along mesh axis {} of mesh {}", step.mesh_axis,
                    printMesh(mesh_));
    attributes["group"] = static_cast<int64_t>(group.index());
    const ValueId whole = result(local, "_" + std::string(collectiveName(kind)), step.after);
    builder_.graph().opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
    builder_.addNode(kPipeshardDomain, collectiveName(kind), {local}, {whole}, std::move(attributes));
    return whole;
  }

  GraphBuilder& builder_;
  const Shape& shape_;
  const LogicalMesh& mesh_;
  DeviceId device_;
  const MeshGroups& groups_;
  std::vector<DeviceConstant>* own_;
};

}  // namespace

ValueId emitResharding(GraphBuilder& builder, ValueId local, const Shape& shape, const ShardingSpec& from,
                       const Resharding& resharding, const LogicalMesh& mesh, DeviceId device,
                       const MeshGroups& groups, std::vector<DeviceConstant>* own) {
  Emitter emitter(builder, shape, mesh, device, groups, own);
  const ShardingSpec* before = &from;
  for (const ReshardingStep& step : resharding.steps) {
    local = emitter.emit(local, *before, step);
    before = &step.after;
  }
  return local;
}

}  // namespace pipeshard
