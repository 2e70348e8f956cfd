// Every sharding spec of a tensor, for tests that try all.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"

namespace pipeshard::testing {

// All that the tensor can have on this mesh, partial sums included, in the order of their comparison.
std::vector<ShardingSpec> specsOf(const Shape& shape, const LogicalMesh& mesh);

}  // namespace pipeshard::testing
