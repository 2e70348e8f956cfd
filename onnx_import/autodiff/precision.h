// The whole graph in another precision.
#pragma once

#include <map>
#include <string>

#include "ir/base/data_type.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// Changes every float32 value, constant, Cast target and attribute type of the graph to `precision` (kFloat64
// for validation; kFloat32 leaves it as it is). Weight references keep their bytes: the value's type then
// differs from the file's, and `source types` remembers the latter (by value name).
struct PrecisionChange {
  std::map<std::string, DataType> source_types;
};
PrecisionChange setPrecision(Graph& graph, DataType precision);

}  // namespace pipeshard
