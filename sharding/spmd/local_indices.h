// Indices into an axis of which a device holds a part.
#pragma once

#include "sharding/spmd/form_table.h"

namespace pipeshard {

// Where the device's part of an axis lies: [start, start + size) of [0, whole).
struct AxisPart {
  std::string key;  // NodeEmitter::ofDevice
  DeviceId device;
  std::function<int64_t(DeviceId)> start;
  int64_t size = 0;
  int64_t whole = 0;
};
AxisPart axisPart(const FormContext& context, const ShardingSpec& spec, const Shape& whole, size_t axis);

struct LocalIndices {
  // into the part; 0 where the index is another device's, out of every range where it is nobody's
  ValueId index;
  ValueId mine;  // bool: the part holds the index
};
// Of integers of any shape. `wraps`: -1 names the last place of the whole axis; else a negative index is
// nobody's. `skipped`: bool, the places that are nobody's and name nothing; invalid: none.
LocalIndices localIndices(NodeEmitter& emit, ValueId indices, const AxisPart& part, bool wraps,
                          ValueId skipped = ValueId());

}  // namespace pipeshard
