#include "sharding/spmd/local_indices.h"

namespace pipeshard {

AxisPart axisPart(const FormContext& context, const ShardingSpec& spec, const Shape& whole, size_t axis) {
  const DeviceId device = context.exchange.device;
  return {axisKey(spec, whole, axis), device, context.startsOf(spec, whole, axis),
          shardOf(spec, whole, context.exchange.mesh, device).size[axis], whole[axis]};
}

LocalIndices localIndices(NodeEmitter& emit, ValueId indices, const AxisPart& part, bool wraps,
                          ValueId skipped) {
  const DataType type = emit.type(indices);
  const ValueId zero = emit.scalar(type, 0);
  const ValueId whole = emit.scalar(type, static_cast<double>(part.whole));
  const ValueId start = emit.ofPlace("start of " + part.key, type, part.device, part.start);
  const ValueId end =
      emit.ofPlace("end of " + part.key, type, part.device,
                   [start = part.start, size = part.size](DeviceId of) { return start(of) + size; });
  const auto within = [&](ValueId index, ValueId from, ValueId to) {
    return emit.binary("And", emit.compare("GreaterOrEqual", index, from), emit.compare("Less", index, to));
  };
  ValueId place = indices;
  if (wraps)
    place = emit.where(emit.compare("Less", indices, zero), emit.binary("Add", indices, whole), indices);
  LocalIndices result;
  result.mine = within(place, start, end);
  ValueId harmless = within(place, zero, whole);
  if (skipped.valid()) {
    result.mine = emit.binary("And", result.mine, emit.unary("Not", skipped));
    harmless = emit.binary("Or", harmless, skipped);
  }
  // The kernels refuse what is out of range: an index beyond the whole axis is one beyond the part.
  const ValueId elsewhere = emit.where(harmless, zero, whole);
  result.index = emit.where(result.mine, emit.binary("Sub", place, start), elsewhere);
  return result;
}

}  // namespace pipeshard
