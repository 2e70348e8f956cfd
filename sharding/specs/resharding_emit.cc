#include "sharding/specs/resharding_emit.h"

#include <string>

#include "ir/base/error.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {
namespace {

using Kind = ReshardingStep::Kind;

// Emits the steps of one tensor on one device.
class Emitter {
 public:
  Emitter(GraphBuilder& builder, const Shape& shape, const LogicalMesh& mesh, DeviceId device,
          const MeshGroups& groups)
      : builder_(builder), shape_(shape), mesh_(mesh), device_(device), groups_(groups) {}

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

  ValueId integer(std::string_view name, int64_t number) {
    return builder_.addConstant(name, makeConstant<int64_t>({1}, {number}));
  }

  ValueId slice(ValueId local, const ShardingSpec& before, const ReshardingStep& step) {
    const size_t axis = step.to_axis;
    const int64_t start = shardOf(step.after, shape_, mesh_, device_).start[axis] -
                          shardOf(before, shape_, mesh_, device_).start[axis];
    const ValueId part = result(local, "_part", step.after);
    const int64_t end = start + builder_.graph().shape(part)[axis];
    builder_.addNode("", "Slice",
                     {local, integer("start", start), integer("end", end), integer("axis", step.to_axis)},
                     {part});
    return part;
  }

  ValueId keepOne(ValueId local, const ReshardingStep& step) {
    const DataType type = builder_.graph().dataType(local);
    const bool keeps = mesh_.coordinate(device_, step.mesh_axis) == 0;
    const ValueId condition = builder_.addConstant("keeps", {DataType::kBool, {}, {std::byte{keeps}}});
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
};

}  // namespace

ValueId emitResharding(GraphBuilder& builder, ValueId local, const Shape& shape, const ShardingSpec& from,
                       const Resharding& resharding, const LogicalMesh& mesh, DeviceId device,
                       const MeshGroups& groups) {
  Emitter emitter(builder, shape, mesh, device, groups);
  const ShardingSpec* before = &from;
  for (const ReshardingStep& step : resharding.steps) {
    local = emitter.emit(local, *before, step);
    before = &step.after;
  }
  return local;
}

}  // namespace pipeshard
